//! The remainder of floored division, which lowering writes as a quotient, a floor and a product in float32.

use crate::common;

use common::valid;
use qkvault_base::random::Rng;
use qkvault_cudnn::op::{Op, Pointwise};
use qkvault_cudnn::{CompileOptions, Profile, Target, lower};
use qkvault_graph::expr::{Binary, Expr, TensorSpec, floor_div_reach, int_scalar, key, query, score, tensor};
use qkvault_graph::{Attention, BackwardOptions, CudnnVersion, DType, LibrarySet, Role};
use qkvault_reference::{Buffer, Inputs, Precision, backward, forward, interpret};

/// Whether the lowered remainder of each pair, rounded as declared, equals the language's remainder.
///
/// Each pair belongs to a key that is visible if both agree: scores are equal, so Stats is the logarithm of the number
/// of visible keys.
fn agreeing(pairs: &[(i32, i32)]) -> Vec<bool> {
    let n = pairs.len() as i64;
    let list = |name| tensor(name, TensorSpec::new(DType::I32, [1, 1, 2, n]));
    let right: Expr = list("a").floor_rem(list("b")).eq(list("r"));
    // One launch per key, so that each pair is tested by itself.
    let a = Attention::bshd(1, (1, 1), (2, n), 8, DType::F16).with_stats();
    let a = valid(a.with_mask_mod(right.build_mask_mod().expect("a predicate")));
    let graph = lower(&a, &under(27), &CompileOptions::default()).expect("a dense forward");
    let keep = a.mask.mask_mod.as_ref().expect("no band");
    pairs
        .iter()
        .enumerate()
        .map(|(i, _)| {
            let mut inputs = Inputs::random(&a, 1).expect("random");
            for (name, of) in [("a", 0), ("b", 1), ("r", 2)] {
                let number =
                    |&(a, b): &(i32, i32)| f64::from([a, b, Binary::FloorRem.apply_int(a, b).expect("integers")][of]);
                // The other keys are masked: no remainder is -1 if the divisor is 1.
                let hidden = [0.0, 1.0, -1.0][of];
                let one = pairs.iter().enumerate().map(|(j, pair)| if i == j { number(pair) } else { hidden });
                let one: Vec<f64> = one.collect();
                let id = keep.tensor_named(name).expect("it reads it").0 as u16;
                inputs.insert(Role::ScoreTensor(id), Buffer::from_values(DType::I32, one.iter().chain(&one).copied()));
            }
            let exact = forward(&a, &inputs).expect("computes").get(Role::Stats).expect("requested").at(0, 0, 1, 0);
            assert!(exact.is_finite(), "the language disagrees with itself");
            let found = interpret(&graph, &inputs, Precision::Rounded).expect("runs");
            found.get(&Role::Stats).expect("requested").at([0, 0, 1, 0]).is_finite()
        })
        .collect()
}

const MOST: i32 = 1 << 24;

#[test]
fn floor_rem_is_exact_up_to_the_bound_that_is_documented() {
    let mut pairs = vec![
        (MOST - 1, 1),
        (1, MOST - 1),
        (-1, MOST - 1),
        (MOST - 1, -1),
        (MOST - 3, 3),
        (-(MOST - 3), 3),
        (MOST / 2, MOST / 2),
        (MOST / 2, -MOST / 2),
        (MOST / 2 - 1, MOST / 2 + 1),
        (-(MOST / 2 - 1), MOST / 2 + 1),
        (0, 7),
        (0, -7),
    ];
    let mut rng = Rng::new(24);
    while pairs.len() < 200 {
        let b = 1 + rng.within(0, [10, 1 << 12, MOST as usize - 2][pairs.len() % 3]) as i32;
        let whole = rng.within(0, (MOST - b) as usize) as i32;
        // Half of them are a multiple of `b` or one below it, where a quotient that rounds would be wrong by one.
        let a = if pairs.len() % 2 == 0 { whole } else { whole / b * b - rng.within(0, 1) as i32 };
        let (a, b) = (if rng.unit() < 0.5 { -a } else { a }, if rng.unit() < 0.5 { -b } else { b });
        pairs.push((a, b));
    }
    let wrong: Vec<_> = pairs.iter().zip(agreeing(&pairs)).filter(|(_, agrees)| !agrees).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// In both kinds of division the remainder by 0 is 0 for every number, whatever a device computes.
#[test]
fn b11_remainders_by_a_tensor_or_scalar_of_zeros_are_zero_in_what_is_lowered() {
    let by_tensor = tensor("b", TensorSpec::new(DType::I32, [1, 1, 1, 1]));
    for (divisor, role) in [(by_tensor, Role::ScoreTensor(0)), (int_scalar("b"), Role::Scalar(0))] {
        for floored in [false, true] {
            let distance = query() - key() + 5;
            let rem = if floored { distance.floor_rem(&divisor) } else { distance % &divisor };
            let e = (score() + rem.to_float()).build_score_mod().expect("a score");
            let first = Attention::bshd(1, (1, 1), (3, 9), 8, DType::F16).with_stats().with_score_mod(e);
            for a in [first.clone(), first.backward(BackwardOptions::default())].map(valid) {
                let which = if a.is_backward() { Role::DK } else { Role::Stats };
                for (minor, number) in [19, 27].into_iter().flat_map(|minor| [0.0, 1.0, 4.0].map(|n| (minor, n))) {
                    let graph = lower(&a, &under(minor), &CompileOptions::default()).expect("dense");
                    let mut inputs = Inputs::random(&a, 1).expect("random");
                    inputs.insert(role, Buffer::from_values(DType::I32, [number]));
                    if a.is_backward() {
                        inputs.add_forward(&a).expect("computes");
                    }
                    let exact = if a.is_backward() { backward(&a, &inputs) } else { forward(&a, &inputs) };
                    let exact = exact.expect("computes").get(which).expect("requested").at(0, 0, 1, 0);
                    let found = interpret(&graph, &inputs, Precision::Exact).expect("runs");
                    let found = found.get(&which).expect("requested").at([0, 0, 1, 0]);
                    // A backward reads O in 16 bits.
                    assert!((exact - found).abs() < 0.01, "{exact} and {found} by {number} under 9.{minor}\n{graph}");
                }
            }
        }
    }
}

fn under(minor: u16) -> Target {
    Profile::named("h200").expect("built in").target(CudnnVersion::v9(minor, 0), LibrarySet::Slim)
}

#[test]
fn b11_a_divisor_that_is_seen_not_to_be_zero_has_no_guard() {
    let n = || int_scalar("n");
    let guards = |divisor: Expr| {
        let e = (score() + (key() % divisor).to_float()).build_score_mod().expect("a score");
        let a = valid(Attention::bshd(1, (1, 1), (3, 9), 8, DType::F16).with_score_mod(e));
        let graph = lower(&a, &under(19), &CompileOptions::default()).expect("dense");
        let is_guard = |op: &&Op| matches!(op, Op::Pointwise { mode: Pointwise::CmpEq, .. });
        graph.ops.iter().filter(is_guard).count()
    };
    assert_eq!([n(), key(), n().min(1), n() * 2].map(guards), [1; 4]);
    assert_eq!([7.into(), n().max(1), -n().max(3), n().min(-2), (-n().max(1)).abs()].map(guards), [0; 5]);
}

#[test]
fn floor_rem_is_not_promised_beyond_the_bound() {
    // The quotient 2^24 - 1/3 rounds to 2^24.
    assert_eq!(agreeing(&[(3 * MOST - 1, 3), (MOST - 4, 3)]), [false, true]);
    // The quotient of these rounds down to -3, as it should, but -3 * 5592407 is odd and above 2^24, which float32
    // cannot hold.
    let (a, b) = (-(MOST - 1) as f32, 5_592_407_f32);
    assert_eq!((a / b).floor(), -3.0);
    assert_ne!(f64::from(-3.0 * b), -3.0 * f64::from(b));
}

/// Whether the lowered quotient of each number by a constant, rounded as declared, equals the language's: as
/// [`agreeing`].
fn dividing(numbers: &[i32], by: i32) -> Vec<bool> {
    let n = numbers.len() as i64;
    let list = |name| tensor(name, TensorSpec::new(DType::I32, [1, 1, 2, n]));
    let reach = floor_div_reach(by) as i32;
    let right: Expr = list("a").max(-reach).min(reach).floor_div(by).eq(list("r"));
    let a = Attention::bshd(1, (1, 1), (2, n), 8, DType::F16).with_stats();
    let a = valid(a.with_mask_mod(right.build_mask_mod().expect("a predicate")));
    let graph = lower(&a, &under(27), &CompileOptions::default()).expect("a dense forward within reach");
    let keep = a.mask.mask_mod.as_ref().expect("no band");
    let quotient = |a: i32| Binary::FloorDiv.apply_int(a, by).expect("integers");
    let visible = |inputs: &Inputs| {
        let exact = forward(&a, inputs).expect("computes").get(Role::Stats).expect("requested").at(0, 0, 1, 0);
        assert!(exact.is_finite(), "the language disagrees with itself");
        let found = interpret(&graph, inputs, Precision::Rounded).expect("runs");
        found.get(&Role::Stats).expect("requested").at([0, 0, 1, 0]).is_finite()
    };
    (0..numbers.len())
        .map(|i| {
            let mut inputs = Inputs::random(&a, 1).expect("random");
            // The other keys are masked: their quotient is not what is asked for.
            let a = numbers.iter().map(|&a| f64::from(a));
            let r = numbers.iter().enumerate().map(|(j, &a)| f64::from(quotient(a)) + f64::from(u8::from(i != j)));
            for (name, of) in [("a", a.collect::<Vec<_>>()), ("r", r.collect())] {
                let id = keep.tensor_named(name).expect("it reads it").0 as u16;
                inputs.insert(Role::ScoreTensor(id), Buffer::from_values(DType::I32, of.iter().chain(&of).copied()));
            }
            visible(&inputs)
        })
        .collect()
}

/// Numbers where a quotient that rounds would be wrong by one: multiples and those beside them, near 0 and at the ends.
fn edges(by: i32) -> Vec<i32> {
    let (reach, step) = (floor_div_reach(by), i64::from(by).abs());
    let last = reach / step * step;
    let near = [0, step, last, -last, last - step, reach, -reach, reach / 2 / step * step];
    let all = near.iter().flat_map(|n| [n - 1, *n, n + 1]).filter(|n| n.abs() <= reach);
    all.map(|n| n as i32).collect()
}

#[test]
fn whole_quotients_are_exact_up_to_their_reach_as_they_are_lowered() {
    for by in [1, -1, 2, 128, -4096, 3, 7, -10, 100, 127, 129, 4_194_301, -16_777_215, i32::MAX, i32::MIN] {
        let numbers = edges(by);
        let wrong: Vec<_> = numbers.iter().zip(dividing(&numbers, by)).filter(|(_, agrees)| !agrees).collect();
        assert!(wrong.is_empty(), "by {by}: {wrong:?}");
    }
}

/// The operations that lowering writes, in float32 as a device has it, over many divisors and all their edges.
#[test]
fn whole_quotients_are_exact_for_every_divisor_in_float32() {
    let mut rng = Rng::new(11);
    let small = (1..3000).flat_map(|by| [by, -by]);
    let random: Vec<i32> = (0..3000).map(|_| 1 + rng.within(0, i32::MAX as usize - 2) as i32).collect();
    for by in small.chain(random).chain([i32::MIN, i32::MAX]) {
        let reciprocal = (1.0 / f64::from(by)) as f32;
        let exact = by.unsigned_abs().is_power_of_two();
        let half = if exact { 0.0 } else { 0.5_f32.copysign(by as f32) };
        let reach = floor_div_reach(by) as usize;
        let random = (0..20).map(|_| rng.within(0, 2 * reach) as i32 - reach as i32);
        for a in edges(by).into_iter().chain(random) {
            let found = ((a as f32 + half) * reciprocal).floor();
            assert_eq!(Some(found as i32), Binary::FloorDiv.apply_int(a, by), "{a} // {by}");
        }
    }
}

/// Without the half a multiple of the divisor comes out one lower, already near 0.
#[test]
fn the_half_is_needed_where_the_reciprocal_rounds_down() {
    let plain = |a: i32, by: i32| (a as f32 * (1.0 / f64::from(by)) as f32).floor() as i32;
    let wrong = (1..200).filter(|by| (1..100).any(|n| plain(n * by, *by) != n)).count();
    assert!(wrong > 20, "{wrong} of 199 divisors");
}

/// `query // 128 == key // 128` keeps the keys of a query's own block, in every path.
#[test]
fn a_block_mask_keeps_the_block_of_each_query() {
    let mask = query().floor_div(4).eq(key().floor_div(4)).build_mask_mod().expect("a predicate");
    let a = valid(Attention::bshd(1, (1, 1), (10, 10), 8, DType::F16).with_stats().with_mask_mod(mask));
    assert!(a.mask.band.is_none());
    let mut inputs = Inputs::random(&a, 1).expect("random");
    // Scores of zero: the log-sum-exp is the logarithm of how many keys are seen.
    inputs.insert(Role::Scale, Buffer::from_values(DType::F32, [0.0]));
    let graph = lower(&a, &under(19), &CompileOptions::default()).expect("dense");
    let exact = forward(&a, &inputs).expect("computes");
    let found = interpret(&graph, &inputs, Precision::Exact).expect("runs");
    for row in 0..10 {
        let block: f64 = if row < 8 { 4.0 } else { 2.0 };
        let exact = exact.get(Role::Stats).expect("requested").at(0, 0, row, 0);
        let found = found.get(&Role::Stats).expect("requested").at([0, 0, row, 0]);
        assert!((exact - block.ln()).abs() < 1e-6 && (found - exact).abs() < 1e-6, "{row}: {exact} and {found}");
    }
}
