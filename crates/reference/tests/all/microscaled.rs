//! The microscaled backward against loops written from its graph, and against 16 bits.

use crate::common;

use common::{near, valid};
use qkvault_graph::{Attention, BackwardOptions, Band, DType, Fp8, Order, Role, Scaled, Tensor, Valid, operand};
use qkvault_reference::{Buffer, ExactOutputs, Inputs, ReferenceError, View, backward, forward};

/// Grouped heads, lengths that do not fill a block of 32, head dims that do not fill a tile of 128, and a different
/// order for each operand.
fn microscaled(band: Option<Band>) -> Valid {
    microscaled_of(band, [64, 32])
}

/// The same with head dims of queries and of values.
fn microscaled_of(band: Option<Band>, [d_qk, d_v]: [i64; 2]) -> Valid {
    let t = |order, heads, seq, d, dtype| Tensor::dense(order, [2, heads, seq, d], dtype);
    let q = t(Order::Bshd, 4, 40, d_qk, DType::E4M3);
    let k = t(Order::Sbhd, 2, 70, d_qk, DType::E4M3);
    let v = t(Order::Bhsd, 2, 70, d_v, DType::E4M3);
    let o = t(Order::Sbhd, 4, 40, d_v, DType::BF16);
    let mut a = Attention::forward(q, k, v, o).with_stats();
    (a.fp8, a.mask.band) = (Some(Fp8::Block), band);
    let d_o = t(Order::Bhsd, 4, 40, d_v, DType::E5M2);
    let d_o_half = t(Order::Bshd, 4, 40, d_v, DType::F16);
    valid(a.backward(BackwardOptions { d_o: Some(d_o), d_o_half: Some(d_o_half), ..BackwardOptions::default() }))
}

/// Index of the scale of (row, group) within one head: tiles of 128 by 4, in which four rows that are 32 apart are
/// adjacent.
fn scale_place(row: usize, group: usize, groups: usize) -> usize {
    let tile = row / 128 * groups.div_ceil(4) + group / 4;
    tile * 512 + (row % 32) * 16 + (row % 128) / 32 * 4 + group % 4
}

/// Elements of an operand by (batch, head, sequence, head dim).
fn elements<'a>(a: &Valid, inputs: &'a Inputs, role: Role) -> impl Fn(usize, usize, usize, usize) -> f64 + use<'a> {
    let (view, buffer) = (View::new(a, role, inputs).expect("sound"), inputs.get(role).expect("bound"));
    move |b, h, s, d| buffer.get(view.at(b, h, s, d))
}

/// Elements, multiplied by their scales.
fn scaled<'a>(
    a: &Valid,
    inputs: &'a Inputs,
    (role, which, by_sequence): (Role, Scaled, bool),
) -> impl Fn(usize, usize, usize, usize) -> f64 + use<'a> {
    let [batch, heads, s, d] = operand(a, role).expect("it has it").tensor.dims.map(|n| n as usize);
    let (stored, scales) = (elements(a, inputs, role), inputs.get(Role::Descale(which)).expect("bound"));
    move |b, h, row, column| {
        let head = b * heads + h;
        let place = if by_sequence {
            // One matrix for all heads: its columns are the blocks of 128 rows of each head, one head after the other.
            let blocks = s.div_ceil(128) * 4;
            scale_place(column, head * blocks + row / 32, batch * heads * blocks)
        } else {
            let plane = s.div_ceil(128) * 128 * (d.div_ceil(32).div_ceil(4) * 4);
            head * plane + scale_place(row, column / 32, d.div_ceil(32))
        };
        stored(b, h, row, column) * scales.get(place)
    }
}

#[test]
fn a_microscaled_backward_is_what_its_graph_says() {
    // Head dims of 192 have two planes of scales along the sequence.
    for (band, dims) in [(None, [64, 32]), (Some(Band::CAUSAL), [64, 32]), (None, [192, 128])] {
        let a = microscaled_of(band, dims);
        let inputs = Inputs::random(&a, 4).expect("random");
        let got = backward(&a, &inputs).expect("computes");
        let scale = inputs.get(Role::Scale).expect("bound").get(0);
        let ([h_q, s_q, s_kv], [d_qk, d_v]) = ([4_usize, 40, 70], dims.map(|d| d as usize));
        let at = |role, which, sequence| scaled(&a, &inputs, (role, which, sequence));
        let (half, o) = (elements(&a, &inputs, Role::DOHalf), elements(&a, &inputs, Role::O));
        let (q, k, v) = (at(Role::Q, Scaled::Q, false), at(Role::K, Scaled::K, false), at(Role::V, Scaled::V, false));
        let (q_t, k_t) = (at(Role::QT, Scaled::QT, true), at(Role::KT, Scaled::KT, true));
        let (d_o, d_o_t) = (at(Role::DO, Scaled::DO, false), at(Role::DOT, Scaled::DOT, true));
        for b in 0..2 {
            let mut d_k = vec![0.0; 2 * s_kv * d_qk];
            let mut d_values = vec![0.0; 2 * s_kv * d_v];
            for (h, i) in (0..h_q).flat_map(|h| (0..s_q).map(move |i| (h, i))) {
                let h_kv = h / 2;
                let seen = |j: usize| band.is_none_or(|band| band.keeps(i as i64, j as i64, s_q as i64, s_kv as i64));
                let keys: Vec<usize> = (0..s_kv).filter(|&j| seen(j)).collect();
                let score = |j| scale * (0..d_qk).map(|d| q(b, h, i, d) * k(b, h_kv, j, d)).sum::<f64>();
                let scores: Vec<f64> = keys.iter().map(|&j| score(j)).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - most).exp()).sum();
                let row_sum: f64 = (0..d_v).map(|d| half(b, h, i, d) * o(b, h, i, d)).sum();
                let mut d_q = vec![0.0; d_qk];
                for (&j, s) in keys.iter().zip(&scores) {
                    let p = (s - most).exp() / sum;
                    let d_p: f64 = (0..d_v).map(|d| d_o(b, h, i, d) * v(b, h_kv, j, d)).sum();
                    let d_s = p * (d_p - row_sum) * scale;
                    for d in 0..d_qk {
                        d_q[d] += d_s * k_t(b, h_kv, j, d);
                        d_k[(h_kv * s_kv + j) * d_qk + d] += d_s * q_t(b, h, i, d);
                    }
                    for d in 0..d_v {
                        d_values[(h_kv * s_kv + j) * d_v + d] += p * d_o_t(b, h, i, d);
                    }
                }
                let row = got.get(Role::DQ).expect("always");
                (0..d_qk).for_each(|d| assert!(near(row.at(b, h, i, d), d_q[d]), "dQ {b} {h} {i} {d}"));
            }
            for (role, want, d) in [(Role::DK, &d_k, d_qk), (Role::DV, &d_values, d_v)] {
                let out = got.get(role).expect("always");
                for (place, &x) in want.iter().enumerate() {
                    let (h, j, at) = (place / d / s_kv, place / d % s_kv, place % d);
                    assert!(near(out.at(b, h, j, at), x), "{role} {b} {h} {j} {at}: {} and {x}", out.at(b, h, j, at));
                }
            }
        }
        for (role, which) in [(Role::DQ, Scaled::DQ), (Role::DK, Scaled::DK), (Role::DV, Scaled::DV)] {
            let largest = got.get(role).expect("always").values().iter().fold(0.0, |max: f64, x| max.max(x.abs()));
            assert!(near(got.get(Role::Amax(which)).expect("measured").at(0, 0, 0, 0), largest), "{role}");
        }
    }
}

/// Root mean square of the difference, relative to the first output.
fn apart(x: &ExactOutputs, y: &ExactOutputs, role: Role) -> f64 {
    let (x, y) = (x.get(role).expect("always").values(), y.get(role).expect("always").values());
    let off: f64 = x.iter().zip(y).map(|(x, y)| (x - y).powi(2)).sum();
    (off / x.iter().map(|x| x * x).sum::<f64>()).sqrt()
}

/// Both forms of a tensor hold the same numbers except for the smallest, so gradients are near those of 16 bits.
#[test]
fn microscaled_gradients_are_near_those_in_sixteen_bits() {
    let eight = microscaled(None);
    let inputs = Inputs::random(&eight, 9).expect("random");
    let mut wide = eight.clone().into_inner();
    (wide.fp8, wide.pass) = (None, qkvault_graph::Pass::Forward);
    for t in [&mut wide.q, &mut wide.k, &mut wide.v, &mut wide.o] {
        t.dtype = DType::BF16;
    }
    let d_o = Tensor::dense(Order::Bhsd, [2, 4, 40, 32], DType::BF16);
    let wide = valid(wide.backward(BackwardOptions { d_o: Some(d_o), ..BackwardOptions::default() }));
    let mut same = Inputs::new();
    same.set_f32(Role::Scale, eight.default_scale());
    for (role, which) in [(Role::Q, Scaled::Q), (Role::K, Scaled::K), (Role::V, Scaled::V), (Role::DO, Scaled::DO)] {
        let t = operand(&wide, role).expect("it has it").tensor;
        let mut buffer = Buffer::poisoned(DType::BF16, t.span().expect("small") as usize);
        let number = scaled(&eight, &inputs, (role, which, false));
        let view = View::new(&wide, role, &same).expect("dense");
        let [bs, hs, ss, ds] = t.dims.map(|n| n as usize);
        for (b, h) in (0..bs).flat_map(|b| (0..hs).map(move |h| (b, h))) {
            for (s, d) in (0..ss).flat_map(|s| (0..ds).map(move |d| (s, d))) {
                buffer.set(view.at(b, h, s, d), number(b, h, s, d));
            }
        }
        same.insert(role, buffer);
    }
    let (want, got) = (backward(&wide, &same).expect("computes"), backward(&eight, &inputs).expect("computes"));
    for role in [Role::DQ, Role::DK, Role::DV] {
        let error = apart(&want, &got, role);
        // The difference in dV is small: the second dO equals the first, with other powers of two, except for the
        // smallest numbers.
        let least = if role == Role::DV { 0.0 } else { 1e-3 };
        assert!((least..8e-2).contains(&error), "{role}: {error}");
    }
    // Given a backward, `forward` computes the backward's own forward: V with the scales that the backward reads.
    let o = apart(&forward(&wide, &same).expect("computes"), &forward(&eight, &inputs).expect("computes"), Role::O);
    assert!(o < 1e-2, "{o}");
}

#[test]
fn every_second_form_is_asked_for_by_name() {
    let a = microscaled(None);
    let inputs = Inputs::random(&a, 1).expect("random");
    for role in [Role::QT, Role::KT, Role::DOT, Role::DOHalf, Role::Descale(Scaled::QT), Role::Descale(Scaled::DOT)] {
        let mut without = inputs.clone();
        without.remove(role);
        assert_eq!(backward(&a, &without).map(|_| ()), Err(ReferenceError::Missing { role }));
    }
}
