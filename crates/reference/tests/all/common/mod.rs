//! The definition of attention in its simplest form: one loop per index, without shared work or views of memory.
#![allow(dead_code, reason = "each test uses its own part")]

pub(crate) mod cases;
pub(crate) mod lowered;
pub(crate) mod memory;
pub(crate) mod slack;

use qkvault_graph::expr::{PointContext, ScalarTy, ScoreExpr, Value};
use qkvault_graph::{Attention, Corner, DType, DropoutSource, Role, Storage, Valid, Varlen, validate};
use qkvault_reference::{Buffer, Inputs, View};

pub(crate) fn valid(a: Attention) -> Valid {
    validate(a).unwrap_or_else(|why| panic!("{why}"))
}

/// Element (batch, head, sequence, head dim) of an operand.
pub(crate) fn read(a: &Attention, inputs: &Inputs, role: Role, [b, h, s, d]: [usize; 4]) -> f64 {
    inputs.get(role).expect("bound").get(View::new(a, role, inputs).expect("sound").at(b, h, s, d))
}

pub(crate) struct NaiveRow {
    pub(crate) o: Vec<f64>,
    pub(crate) max: f64,
    pub(crate) sum: f64,
    pub(crate) stats: f64,
    /// Probabilities before dropout.
    pub(crate) p: Vec<f64>,
}

pub(crate) fn lens(a: &Attention, inputs: &Inputs, b: usize) -> [usize; 2] {
    let of = |role, dim: i64| inputs.get(role).map_or(dim as usize, |buffer| buffer.int(b) as usize);
    [of(Role::SeqLenQ, a.q.dims[2]), of(Role::SeqLenKv, a.k.dims[2])]
}

/// Positions of the first query and the first key.
fn origins(inputs: &Inputs) -> [i64; 2] {
    [Role::QueryOrigin, Role::KeyOrigin].map(|role| inputs.get(role).map_or(0, |buffer| buffer.int(0)))
}

/// The value of an expression at one place; its scalars and tensors are numbered from (`scalar`, `tensor`).
fn point(
    e: &ScoreExpr,
    inputs: &Inputs,
    (scalar, tensor): (usize, usize),
    at: [usize; 4],
    lens: [usize; 2],
    score: f64,
) -> Value {
    let scalars: Vec<Value> = (scalar..)
        .zip(e.scalars())
        .map(|(n, spec)| {
            let x = inputs.get(Role::Scalar(n as u16)).expect("bound").get(0);
            if spec.ty == ScalarTy::Float { Value::Float(x) } else { Value::Int(x as i32) }
        })
        .collect();
    let tensors: Vec<Value> = (tensor..)
        .zip(e.tensors())
        .map(|(n, spec)| {
            let mut place = 0;
            for (i, &extent) in at.iter().zip(&spec.dims) {
                place = place * extent as usize + if extent == 1 { 0 } else { *i };
            }
            let x = inputs.get(Role::ScoreTensor(n as u16)).expect("bound").get(place);
            if spec.dtype.is_float() { Value::Float(x) } else { Value::Int(x as i32) }
        })
        .collect();
    let [query, key] = origins(inputs);
    let context = PointContext {
        score,
        at: [at[0] as i32, at[1] as i32, at[2] as i32 + query as i32, at[3] as i32 + key as i32],
        lengths: lens.map(|n| n as i32),
        scalars: &scalars,
        tensors: &tensors,
        ..PointContext::default()
    };
    e.eval(&context).expect("everything is bound")
}

/// One row of a 16-bit forward.
pub(crate) fn naive_row(a: &Attention, inputs: &Inputs, [b, h, i]: [usize; 3]) -> NaiveRow {
    let [q_len, kv_len] = lens(a, inputs, b);
    let (h_q, h_k, h_v) = a.heads();
    let (k_head, v_head) = (h as i64 * h_k / h_q, h as i64 * h_v / h_q);
    let scale = inputs.get(Role::Scale).expect("bound").get(0);
    let element = |role| {
        let (view, buffer) = (View::new(a, role, inputs).expect("sound"), inputs.get(role).expect("bound"));
        move |b, h, s, d| buffer.get(view.at(b, h, s, d))
    };
    let (q, k, v) = (element(Role::Q), element(Role::K), element(Role::V));
    let mut scores = vec![f64::NEG_INFINITY; kv_len];
    for (j, score) in scores.iter_mut().enumerate() {
        if let Some(band) = a.mask.band {
            let delta = if band.corner == Corner::BottomRight { kv_len as i64 - q_len as i64 } else { 0 };
            let [query, key] = origins(inputs);
            let (row, col) = (i as i64 + query + delta, j as i64 + key);
            if band.right.is_some_and(|r| col > row + r) || band.left.is_some_and(|l| col <= row - l) {
                continue;
            }
        }
        let first = a.score_mod.as_ref().map_or((0, 0), |e| (e.scalars().len(), e.tensors().len()));
        if let Some(keep) = &a.mask.mask_mod
            && point(keep, inputs, first, [b, h, i, j], [q_len, kv_len], 0.0) == Value::Bool(false)
        {
            continue;
        }
        if a.block_mask {
            let (rows, tiles) = ((a.q.dims[2] as usize).div_ceil(128), (a.k.dims[2] as usize).div_ceil(128));
            let byte = ((b * h_q as usize + h) * rows + i / 128) * tiles.div_ceil(8) + j / 128 / 8;
            if inputs.get(Role::BlockMask).expect("bound").int(byte) >> (j / 128 % 8) & 1 == 0 {
                continue;
            }
        }
        if a.draft_tree && j + q_len >= kv_len {
            let row = match a.q.storage {
                Storage::Varlen { .. } => {
                    inputs.get(Role::Offsets(Varlen::Q)).expect("bound").int(b) as usize / a.q.strides[2] as usize + i
                }
                _ => b * a.q.dims[2] as usize + i,
            };
            let draft = j + q_len - kv_len;
            let word = inputs.get(Role::DraftTree).expect("bound").int(2 * row + draft / 32) as u32;
            if word & 1 << (draft % 32) == 0 {
                continue;
            }
        }
        let mut product = 0.0;
        for d in 0..a.q.dims[3] as usize {
            product += q(b, h, i, d) * k(b, k_head as usize, j, d);
        }
        *score = product * scale;
        if let Some(e) = &a.score_mod {
            *score = point(e, inputs, (0, 0), [b, h, i, j], [q_len, kv_len], *score).float().expect("a score");
        }
    }
    let sink = a.sink.then(|| inputs.get(Role::Sink).expect("bound").get(h));
    // exp(-inf - -inf) would be NaN; a score of minus infinity contributes nothing.
    let exp = |s: f64, top: f64| if s == f64::NEG_INFINITY { 0.0 } else { (s - top).exp() };
    let larger = |max: f64, s: f64| if s > max || s.is_nan() { s } else { max };
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, larger);
    let sum: f64 = scores.iter().map(|&s| exp(s, max)).sum();
    let top = sink.map_or(max, |sink| larger(max, sink));
    let total: f64 = scores.iter().copied().chain(sink).map(|s| exp(s, top)).sum();
    let p: Vec<f64> = scores.iter().map(|&s| if total == 0.0 { 0.0 } else { exp(s, top) / total }).collect();
    let mut o = vec![0.0; a.v.dims[3] as usize];
    for (j, &p) in p.iter().enumerate() {
        let kept = a.dropout.map_or(1.0, |dropout| {
            let at = ((b * h_q as usize + h) * a.q.dims[2] as usize + i) * a.k.dims[2] as usize + j;
            match inputs.get(Role::DropoutMask) {
                Some(mask) => mask.get(at) / (1.0 - f64::from(dropout.probability)),
                None => panic!("no mask for {:?}", DropoutSource::Philox),
            }
        });
        if p * kept != 0.0 {
            for (d, o) in o.iter_mut().enumerate() {
                *o += p * kept * v(b, v_head as usize, j, d);
            }
        }
    }
    NaiveRow { o, max, sum, stats: if total == 0.0 { max } else { top + total.ln() }, p }
}

/// Compares every row of the oracle with the naive computation.
pub(crate) fn check_naive(a: &Valid, inputs: &Inputs) {
    let outputs = qkvault_reference::forward(a, inputs).expect("computes");
    for b in 0..a.batch() as usize {
        for h in 0..a.q.dims[1] as usize {
            for i in 0..lens(a, inputs, b)[0] {
                let row = naive_row(a, inputs, [b, h, i]);
                for (d, &x) in row.o.iter().enumerate() {
                    let y = outputs.get(Role::O).expect("always").at(b, h, i, d);
                    assert!(near(x, y), "O at {:?}: {y} for {x}", [b, h, i, d]);
                }
                for (role, x) in [(Role::Max, row.max), (Role::SumExp, row.sum), (Role::Stats, row.stats)] {
                    if let Some(out) = outputs.get(role) {
                        let y = out.at(b, h, i, 0);
                        assert!(near(x, y), "{role} at {:?}: {y} for {x}", [b, h, i]);
                    }
                }
            }
        }
    }
}

/// Whether two numbers are equal except for the order of sums.
pub(crate) fn near(x: f64, y: f64) -> bool {
    x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= 1e-9 * x.abs().max(1.0)
}

/// Binds a random mask for dropout by Philox, as if the library had dumped it, and the operands that depend on it.
pub(crate) fn with_dropout_mask(a: &Valid, inputs: &mut Inputs, seed: u64) {
    let Some(dropout) = a.dropout.filter(|d| d.source == DropoutSource::Philox) else { return };
    let len = (a.batch() * a.q.dims[1] * a.q.dims[2] * a.k.dims[2]) as usize;
    let mut state = seed;
    let mask = (0..len).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u8::from((state >> 40) as f32 / (1 << 24) as f32 >= dropout.probability))
    });
    inputs.insert(Role::DropoutMask, Buffer::from_values(DType::F32, mask));
    if a.is_backward() {
        inputs.add_forward(a).expect("computes");
    }
}
