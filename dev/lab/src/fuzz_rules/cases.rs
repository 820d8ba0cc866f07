//! Random valid descriptions: those of the self-test, dense and serving, also with sizes, lengths and features that
//! would take a GPU too long.

use qkvault_graph::{Attention, BackwardOptions, DType, Order, Pass, Storage, Tensor, Valid, validate};

use crate::selftest::{Draw, dense, served};

/// Head dims: those of models, tile edges, too large ones, and odd ones.
const HEAD_DIM: [i64; 18] = [8, 16, 24, 32, 40, 64, 72, 80, 96, 112, 128, 136, 160, 192, 256, 264, 512, 576];
const LENGTHS: [i64; 14] = [1, 2, 17, 63, 64, 65, 100, 128, 192, 256, 300, 512, 1000, 4096];

/// The description of a case. With `deterministic` it is a deterministic backward.
pub(super) fn attention(seed: u64, number: u64, deterministic: bool) -> Valid {
    for attempt in 0.. {
        let case = number.wrapping_mul(1_000).wrapping_add(attempt);
        let mut draw = Draw::new(seed ^ 0x6875_6e74, case);
        let mut a = if draw.chance(30) { served(seed, case) } else { dense(seed, case) };
        if a.q.storage == Storage::Dense && a.k.storage == Storage::Dense && draw.chance(60) {
            resize(&mut draw, &mut a);
        }
        if deterministic {
            let sums = match a.pass {
                Pass::Forward => BackwardOptions { d_sink: a.sink && draw.chance(50), ..BackwardOptions::default() },
                Pass::Backward(g) => BackwardOptions { d_sink: g.d_sink, ..BackwardOptions::default() },
            };
            a = a.with_stats().backward(BackwardOptions { deterministic, ..sums });
        }
        // A resized description may be invalid; then draw another one.
        if let Ok(valid) = validate(a) {
            return valid;
        }
    }
    unreachable!("most random descriptions are valid")
}

/// Reads the descriptions of a file.
pub(super) fn read(path: &std::path::Path) -> anyhow::Result<Vec<Valid>> {
    use anyhow::Context as _;
    let all = std::fs::read_to_string(path).with_context(|| format!("{} could not be read", path.display()))?;
    all.split("\n---")
        .map(|one| Ok(validate(qkvault_graph::text::parse(one.trim_start_matches(['-', '\n']))?)?))
        .collect()
}

/// Gives a dense description without score tensors other sizes and a plain layout.
fn resize(draw: &mut Draw, a: &mut Attention) {
    let tensors = |e: &Option<qkvault_graph::ScoreExpr>| e.as_ref().is_some_and(|e| !e.tensors().is_empty());
    if tensors(&a.score_mod) || tensors(&a.mask.mask_mod) {
        return;
    }
    let d_qk = if draw.chance(4) { draw.within(1, 300) } else { draw.one_of(&HEAD_DIM) };
    let d_v = if draw.chance(60) { d_qk } else { draw.one_of(&HEAD_DIM) };
    let s_kv = draw.one_of(&LENGTHS);
    let s_q = if draw.chance(50) { s_kv } else { draw.one_of(&LENGTHS) };
    let group = draw.one_of(&[1, 2, 8]);
    let (b, h_kv) = (draw.one_of(&[1, 2, 8]), draw.one_of(&[1, 2, 8]));
    let h_v = if draw.chance(5) { h_kv * group } else { h_kv };
    let dtype = if draw.chance(50) { DType::BF16 } else { DType::F16 };
    let order = draw.one_of(&Order::ALL);
    let t = |h, s, d| Tensor::dense(order, [b, h, s, d], dtype);
    (a.q, a.k, a.v, a.o) =
        (t(h_kv * group, s_q, d_qk), t(h_kv, s_kv, d_qk), t(h_v, s_kv, d_v), t(h_kv * group, s_q, d_v));
    if let Pass::Backward(g) = a.pass {
        let options =
            BackwardOptions { d_sink: g.d_sink, deterministic: g.deterministic, ..BackwardOptions::default() };
        *a = a.backward(options);
    }
}
