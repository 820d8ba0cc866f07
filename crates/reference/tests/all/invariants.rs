//! Properties of softmax attention that hold for all numbers.

use crate::common;

use common::{near, valid};
use proptest::prelude::*;
use qkvault_graph::expr::{TensorSpec, score, tensor};
use qkvault_graph::{Attention, Band, DType, Fp8, Role, Scaled, Tensor, Valid};
use qkvault_reference::{Buffer, ExactOutputs, Inputs, OutputTolerance, compare, forward, operand};

fn shape() -> impl Strategy<Value = (i64, (i64, i64), (i64, i64), Option<Band>)> {
    let bands = prop::option::of(prop::sample::select(vec![Band::CAUSAL, Band::CAUSAL_BOTTOM_RIGHT]));
    (1..3_i64, (1..3_i64, 1..3_i64), (1..9_i64, 1..9_i64), bands)
}

fn attention((b, (h_kv, group), seq, band): (i64, (i64, i64), (i64, i64), Option<Band>)) -> Attention {
    let mut a = Attention::bshd(b, (h_kv * group, h_kv), seq, 8, DType::BF16).with_stats();
    a.mask.band = band;
    a
}

fn all(a: &Valid, outputs: &ExactOutputs, role: Role) -> Vec<f64> {
    let dims = operand(a, role).expect("there").tensor.dims.map(|n| n as usize);
    let out = outputs.get(role).expect("computed");
    let mut list = Vec::new();
    for i in 0..dims.iter().product() {
        let [_, h, s, d] = dims;
        list.push(out.at(i / (h * s * d), i / (s * d) % h, i / d % s, i % d));
    }
    list
}

/// Rewrites K or V row by row: `row` computes the new row `s` from the old rows.
fn rewritten(
    a: &Valid,
    inputs: &Inputs,
    role: Role,
    row: impl Fn(usize, &dyn Fn(usize, usize) -> f64, usize) -> f64,
) -> Buffer {
    let t: Tensor = operand(a, role).expect("there").tensor;
    let (source, [sb, sh, ss, _]) = (inputs.get(role).expect("bound"), t.strides.map(|n| n as usize));
    let mut buffer = source.clone();
    let [b, h, s, d] = t.dims.map(|n| n as usize);
    for (b, h) in (0..b).flat_map(|b| (0..h).map(move |h| (b, h))) {
        let old = |s: usize, d: usize| source.get(b * sb + h * sh + s * ss + d);
        for (s, d) in (0..s).flat_map(|s| (0..d).map(move |d| (s, d))) {
            buffer.set(b * sb + h * sh + s * ss + d, row(s, &old, d));
        }
    }
    buffer
}

/// Padding masks of PyTorch: rows of the lowest float are not empty, rows of minus infinity are.
#[test]
fn rows_of_the_lowest_float_weigh_all_their_keys_alike_and_minus_infinity_hides() {
    let spec = TensorSpec::new(DType::F32, [1, 1, 4, 6]);
    let biased = (score() + tensor("padding", spec)).build_score_mod().expect("a score");
    let a = valid(Attention::bshd(1, (1, 1), (4, 6), 8, DType::BF16).with_stats().with_score_mod(biased));
    let mut inputs = Inputs::random(&a, 3).expect("random");
    let (lowest, hidden) = (f64::from(f32::MIN), f64::NEG_INFINITY);
    let rows = [[lowest; 6], [hidden, lowest, hidden, lowest, lowest, hidden], [0.0, lowest, hidden, lowest, 0.0, 0.0]];
    let rows: Vec<f64> = rows.into_iter().chain([[hidden; 6]]).flatten().collect();
    inputs.insert(Role::ScoreTensor(0), Buffer::from_values(DType::F32, rows));
    let outputs = forward(&a, &inputs).expect("computes");
    let v = |key: usize, d: usize| {
        let strides = a.v.strides.map(|n| n as usize);
        inputs.get(Role::V).expect("bound").get(key * strides[2] + d)
    };
    let (o, stats) = (outputs.get(Role::O).expect("computed"), outputs.get(Role::Stats).expect("computed"));
    for d in 0..8 {
        let mean = |keys: &[usize]| keys.iter().map(|key| v(*key, d)).sum::<f64>() / keys.len() as f64;
        assert!((o.at(0, 0, 0, d) - mean(&[0, 1, 2, 3, 4, 5])).abs() < 1e-12);
        assert!((o.at(0, 0, 1, d) - mean(&[1, 3, 4])).abs() < 1e-12);
        assert_eq!(o.at(0, 0, 3, d), 0.0);
    }
    assert!(stats.at(0, 0, 0, 0) <= lowest && stats.at(0, 0, 2, 0) > -100.0);
    assert_eq!(stats.at(0, 0, 3, 0), hidden);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn probabilities_of_a_row_sum_to_one(shape in shape(), seed in any::<u64>()) {
        let a = valid(attention(shape));
        let mut inputs = Inputs::random(&a, seed).expect("random");
        inputs.insert(Role::V, rewritten(&a, &inputs, Role::V, |_, _, _| 1.0));
        let outputs = forward(&a, &inputs).expect("computes");
        let stats = all(&a, &outputs, Role::Stats);
        for (at, x) in all(&a, &outputs, Role::O).into_iter().enumerate() {
            let sees = stats[at / 8] > f64::NEG_INFINITY;
            prop_assert!(near(x, if sees { 1.0 } else { 0.0 }), "{x}");
        }
    }

    #[test]
    fn a_shift_of_all_scores_moves_the_log_sum_and_nothing_else(shape in shape(), seed in any::<u64>(), by in -8.0_f32..8.0) {
        let plain = valid(attention(shape));
        let shifted = valid(attention(shape).with_score_mod((score() + by).build_score_mod().expect("a score")));
        let inputs = Inputs::random(&plain, seed).expect("random");
        let [x, y] = [&plain, &shifted].map(|a| forward(a, &inputs).expect("computes"));
        for (x, y) in all(&plain, &x, Role::O).into_iter().zip(all(&plain, &y, Role::O)) {
            prop_assert!(near(x, y), "{x} and {y}");
        }
        for (x, y) in all(&plain, &x, Role::Stats).into_iter().zip(all(&plain, &y, Role::Stats)) {
            prop_assert!(near(x + f64::from(by), y), "{x} and {y}");
        }
    }

    #[test]
    fn without_a_mask_the_order_of_keys_does_not_matter(shape in shape(), seed in any::<u64>(), by in 0..8_usize) {
        let a = valid(attention((shape.0, shape.1, shape.2, None)));
        let inputs = Inputs::random(&a, seed).expect("random");
        let keys = a.k.dims[2] as usize;
        let mut turned = inputs.clone();
        for role in [Role::K, Role::V] {
            turned.insert(role, rewritten(&a, &inputs, role, |s, old, d| old((s + by) % keys, d)));
        }
        let [x, y] = [&inputs, &turned].map(|inputs| forward(&a, inputs).expect("computes"));
        for role in [Role::O, Role::Stats] {
            for (x, y) in all(&a, &x, role).into_iter().zip(all(&a, &y, role)) {
                prop_assert!(near(x, y), "{x} and {y}");
            }
        }
    }
}

#[test]
fn a_query_that_sees_nothing_has_zeros_and_minus_infinity() {
    let mut a = Attention::bshd(1, (1, 1), (4, 2), 8, DType::F16).with_band(Band::CAUSAL_BOTTOM_RIGHT).with_stats();
    a.outputs.max = true;
    a.outputs.sum_exp = true;
    for sink in [false, true] {
        a.sink = sink;
        let a = valid(a.clone());
        let inputs = Inputs::random(&a, 6).expect("random");
        let outputs = forward(&a, &inputs).expect("computes");
        let at = |role| outputs.get(role).expect("requested").at(0, 0, 1, 0);
        let stats = if sink { inputs.get(Role::Sink).expect("bound").get(0) } else { f64::NEG_INFINITY };
        assert_eq!(
            [at(Role::O), at(Role::Max), at(Role::SumExp), at(Role::Stats)],
            [0.0, f64::NEG_INFINITY, 0.0, stats]
        );
        assert!(outputs.get(Role::Stats).expect("requested").at(0, 0, 2, 0).is_finite());
    }
}

#[test]
fn a_far_lower_sink_is_as_good_as_none_and_a_far_higher_one_takes_everything() {
    let plain = valid(Attention::bshd(1, (2, 2), (3, 5), 8, DType::BF16).with_stats());
    let with = valid(plain.clone().into_inner().with_sink());
    let mut inputs = Inputs::random(&with, 9).expect("random");
    inputs.insert(Role::Sink, Buffer::from_values(DType::F32, [-1e4, 1e4]));
    let [x, y] = [&plain, &with].map(|a| all(a, &forward(a, &inputs).expect("computes"), Role::O));
    let half = |list: &[f64], h: usize| list[h * 24..(h + 1) * 24].to_vec();
    assert_eq!(half(&x, 0), half(&y, 0));
    assert_eq!(half(&y, 1), vec![0.0; 24]);
}

/// The relative error between an 8-bit attention and a 16-bit attention over the same numbers.
fn eight_bit_error(scaling: Fp8, o: DType) -> f64 {
    let t = |h, s, dtype| Tensor::bshd(1, h, s, 64, dtype);
    let (q, kv) = (t(2, 40, DType::E4M3), t(1, 70, DType::E4M3));
    let mut a = Attention::forward(q, kv, kv, t(2, 40, o)).with_stats();
    a.fp8 = Some(scaling);
    let a = valid(a);
    let inputs = Inputs::random(&a, 5).expect("random");
    let got = forward(&a, &inputs).expect("computes");
    let (q, kv) = (t(2, 40, DType::BF16), t(1, 70, DType::BF16));
    let plain = valid(Attention::forward(q, kv, kv, q).with_stats());
    let mut same = Inputs::new();
    same.set_f32(Role::Scale, a.default_scale());
    for (role, which) in [(Role::Q, Scaled::Q), (Role::K, Scaled::K), (Role::V, Scaled::V)] {
        // The factors are powers of two, so the products are exact in bf16.
        let descale = inputs.get(Role::Descale(which)).expect("bound").get(0);
        let stored = inputs.get(role).expect("bound");
        same.insert(role, Buffer::from_values(DType::BF16, (0..stored.len()).map(|at| stored.get(at) * descale)));
    }
    let want = forward(&plain, &same).expect("computes");
    let scale = inputs.get(Role::ScaleOf(Scaled::O)).map_or(1.0, |b| b.get(0));
    let (x, y) = (all(&plain, &want, Role::O), all(&a, &got, Role::O));
    let off: f64 = x.iter().zip(&y).map(|(x, y)| (x - y / scale).powi(2)).sum();
    for (x, y) in all(&plain, &want, Role::Stats).into_iter().zip(all(&a, &got, Role::Stats)) {
        assert!(near(x, y), "scores are not rounded: {x} and {y}");
    }
    let amax = got.get(Role::Amax(Scaled::O)).expect("measured").at(0, 0, 0, 0);
    let largest = y.iter().fold(0.0, |max: f64, y| max.max((y / scale).abs()));
    assert!(near(amax, largest), "{amax} and {largest}");
    let o = got.get(Role::O).expect("always");
    let stored = compare(o, &o.buffer(), OutputTolerance::for_role(Role::O, o.operand().tensor.dtype));
    assert!(stored.good, "{stored}");
    (off / x.iter().map(|x| x * x).sum::<f64>()).sqrt()
}

#[test]
fn eight_bit_attention_is_sixteen_bit_attention_with_rounded_probabilities() {
    for (scaling, o) in [(Fp8::Delayed, DType::E4M3), (Fp8::Current, DType::BF16)] {
        let error = eight_bit_error(scaling, o);
        assert!((1e-3..6e-2).contains(&error), "{scaling:?}: {error}");
    }
}

#[test]
fn microscaled_factors_multiply_their_own_blocks() {
    let t = |h, s, d, dtype| Tensor::bshd(1, h, s, d, dtype);
    let (q, k, v) = (t(1, 3, 64, DType::E4M3), t(1, 40, 64, DType::E4M3), t(1, 40, 32, DType::E4M3));
    let mut a = Attention::forward(q, k, v, t(1, 3, 32, DType::F16)).with_stats();
    a.fp8 = Some(Fp8::Block);
    let a = valid(a);
    let mut inputs = Inputs::random(&a, 5).expect("random");
    let set = |inputs: &mut Inputs, which, factor: &dyn Fn(usize) -> f64| {
        let len = inputs.get(Role::Descale(which)).expect("bound").len();
        inputs.insert(Role::Descale(which), Buffer::from_values(DType::E8M0, (0..len).map(factor)));
    };
    set(&mut inputs, Scaled::Q, &|_| 1.0 / 32.0);
    set(&mut inputs, Scaled::K, &|_| 1.0 / 32.0);
    set(&mut inputs, Scaled::V, &|_| 1.0);
    let before = forward(&a, &inputs).expect("computes");
    // Entry 1 of a tile is row 0, block 1: head dims 32 to 63 of the first query.
    set(&mut inputs, Scaled::Q, &|at| if at == 1 { 1.0 / 16.0 } else { 1.0 / 32.0 });
    let after = forward(&a, &inputs).expect("computes");
    let stats = |outputs: &ExactOutputs, s| outputs.get(Role::Stats).expect("requested").at(0, 0, s, 0);
    assert!(stats(&before, 0) != stats(&after, 0));
    assert_eq!([stats(&before, 1), stats(&before, 2)], [stats(&after, 1), stats(&after, 2)]);
    // V is scaled along its rows: entry 16 is column 1, rows 0 to 31.
    set(&mut inputs, Scaled::V, &|at| if at == 16 { 4.0 } else { 1.0 });
    let scaled = forward(&a, &inputs).expect("computes");
    let o = |outputs: &ExactOutputs, d| outputs.get(Role::O).expect("always").at(0, 0, 1, d);
    assert!(o(&scaled, 1) != o(&after, 1));
    assert_eq!([o(&scaled, 0), o(&scaled, 2)], [o(&after, 0), o(&after, 2)]);
}
