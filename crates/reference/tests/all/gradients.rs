//! The backward against central differences of the forward, and the gradients that callers can request.

use crate::common;

use std::time::Instant;

use common::{cases, valid};
use proptest::prelude::*;
use qkvault_graph::arbitrary::{Features, Space, attention};
use qkvault_graph::expr::{key, query, score};
use qkvault_graph::{
    Attention, BackwardOptions, Band, DType, Dropout, DropoutSource, Fp8, Role, Scaled, Tensor, Valid,
};
use qkvault_reference::{
    Buffer, Inputs, LengthChoice, RandomChoice, ReferenceError, Unused, backward, backward_of_o, buffer_len,
    check_gradients, forward,
};

/// Checks `samples` elements of each gradient of the backward of this forward.
fn check(forward_of: &Attention, seed: u64, samples: usize, choice: &RandomChoice) -> Result<(), TestCaseError> {
    let mut plain = forward_of.clone();
    plain.outputs.stats = true;
    let plain = valid(plain);
    let options = BackwardOptions { d_sink: plain.sink, ..BackwardOptions::default() };
    let a = valid(plain.backward(options));
    let inputs = Inputs::random_with(&a, seed, choice).expect("random");
    let found = check_gradients(&a, &inputs, samples, seed).expect("computes");
    prop_assert!(found.worst < 1e-6, "{found:?}");
    Ok(())
}

const ANY: RandomChoice = RandomChoice {
    lengths: LengthChoice::Any,
    unused: Unused::Poison,
    spread: true,
    family: qkvault_reference::Family::Normal,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn gradients_are_the_slopes_of_the_forward(a in cases::dense(), seed in any::<u64>(), dropout in prop::option::weighted(0.3, 0.1_f32..0.6)) {
        let mut a = a;
        a.outputs = qkvault_graph::Outputs::default();
        a.dropout = dropout.map(|probability| Dropout::new(DropoutSource::Mask, probability));
        check(&a, seed, 4, &ANY)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gradients_of_varlen_masked_and_dropped_out_attention_are_slopes(
        a in attention(Space::SMALL.with(Features { score_mod: false, fp8: false, ..Features::ALL })), seed in any::<u64>(),
    ) {
        prop_assume!(a.is_backward());
        let mut plain = a.as_forward();
        // A given mask replaces dropout by Philox, whose mask is unknown.
        plain.dropout = plain.dropout.map(|dropout| Dropout::new(DropoutSource::Mask, dropout.probability));
        check(&plain, seed, 4, &ANY)?;
    }
}

#[test]
fn every_tensor_that_asks_gets_its_gradient_and_it_is_right() {
    let mut a = Attention::bshd(2, (4, 2), (5, 6), 8, DType::F16);
    a.mask.band = Some(Band::CAUSAL_BOTTOM_RIGHT);
    a = a.with_lengths();
    for (i, (name, expression)) in cases::smooth(&a).into_iter().enumerate() {
        let built = expression.build_score_mod().expect(name);
        let asked = built.tensors().len();
        let with = a.clone().with_score_mod(built);
        let choice = RandomChoice { lengths: LengthChoice::Exact { q: vec![5, 3], kv: vec![6, 5] }, ..ANY };
        check(&with, i as u64, 12, &choice).unwrap_or_else(|e| panic!("{name}: {e}"));
        let back = valid(with.with_stats().backward(BackwardOptions::default()));
        let outputs = backward(&back, &Inputs::random(&back, 1).expect("random")).expect("computes");
        for n in 0..asked as u16 {
            let out = outputs.get(Role::DScoreTensor(n)).unwrap_or_else(|| panic!("{name}: no gradient of tensor {n}"));
            assert!(out.values().iter().any(|&x| x != 0.0), "{name}: the gradient of tensor {n} is zeros");
            assert_eq!(Some(out.values().len()), buffer_len(&back, Role::ScoreTensor(n)));
        }
    }
}

#[test]
fn a_predicate_beside_a_softcap_does_not_disturb_gradients() {
    let keep = (key().le(query()) | key().lt(2)).build_mask_mod().expect("a predicate");
    let cap = ((score() / 3.0).tanh() * 3.0).build_score_mod().expect("a score");
    let a = Attention::bshd(2, (2, 2), (6, 6), 8, DType::BF16).with_mask_mod(keep).with_score_mod(cap).with_sink();
    check(&a, 5, 12, &ANY).expect("right");
}

#[test]
fn heads_of_different_groups_are_summed_each_by_its_own() {
    for (h_q, h_k, h_v) in [(6, 2, 3), (4, 1, 4), (4, 4, 1)] {
        let t = |h, s, d| Tensor::sbhd(1, h, s, d, DType::F16);
        let a = Attention::forward(t(h_q, 3, 8), t(h_k, 4, 8), t(h_v, 4, 16), t(h_q, 3, 16));
        check(&a, 8, 16, &ANY).expect("right");
    }
}

#[test]
fn a_row_that_sees_nothing_has_no_gradient_and_spoils_none() {
    let a = valid(Attention::bshd(1, (1, 1), (5, 3), 8, DType::F16).with_band(Band::CAUSAL_BOTTOM_RIGHT).with_stats());
    let a = valid(a.backward(BackwardOptions::default()));
    let gradients = backward(&a, &Inputs::random(&a, 2).expect("random")).expect("computes");
    let d_q = gradients.get(Role::DQ).expect("always");
    for d in 0..8 {
        assert_eq!((d_q.at(0, 0, 0, d), d_q.at(0, 0, 1, d)), (0.0, 0.0));
    }
    for role in [Role::DQ, Role::DK, Role::DV] {
        let out = gradients.get(role).expect("always");
        assert!(out.values().iter().all(|x| x.is_finite()) && out.values().iter().any(|&x| x != 0.0));
    }
}

#[test]
fn a_backward_is_fast_enough_to_be_an_oracle() {
    let a = valid(Attention::bshd(1, (8, 8), (1024, 1024), 64, DType::BF16).with_band(Band::CAUSAL).with_stats());
    let a = valid(a.backward(BackwardOptions::default()));
    let inputs = Inputs::random(&a, 1).expect("random");
    let start = Instant::now();
    backward(&a, &inputs).expect("computes");
    println!("backward {:?}", start.elapsed());
}

/// In 8 bits, with scales at which nothing saturates, gradients equal those in 16 bits except for rounding, and they
/// are measured before they are scaled.
#[test]
fn gradients_in_eight_bits_are_near_those_in_sixteen() {
    let shape = |dtype| (Tensor::bshd(1, 4, 24, 64, dtype), Tensor::bshd(1, 2, 40, 64, dtype));
    let ((q, kv), (q_wide, kv_wide)) = (shape(DType::E4M3), shape(DType::BF16));
    let mut eight = Attention::forward(q, kv, kv, q).with_stats();
    eight.fp8 = Some(Fp8::Delayed);
    let eight = valid(eight.backward(BackwardOptions::default()));
    let inputs = Inputs::random(&eight, 5).expect("random");
    let sixteen = Attention::forward(q_wide, kv_wide, kv_wide, q_wide).with_stats();
    let sixteen = valid(sixteen.backward(BackwardOptions::default()));
    let mut same = Inputs::new();
    same.set_f32(Role::Scale, eight.default_scale());
    let pairs = [(Role::Q, Scaled::Q), (Role::K, Scaled::K), (Role::V, Scaled::V), (Role::DO, Scaled::DO)];
    for (role, which) in pairs {
        let descale = inputs.get(Role::Descale(which)).expect("bound").get(0);
        let stored = inputs.get(role).expect("bound");
        same.insert(role, Buffer::from_values(DType::BF16, (0..stored.len()).map(|at| stored.get(at) * descale)));
    }
    let (want, got) = (backward(&sixteen, &same).expect("computes"), backward(&eight, &inputs).expect("computes"));
    for (role, which) in [(Role::DQ, Scaled::DQ), (Role::DK, Scaled::DK), (Role::DV, Scaled::DV)] {
        let scale = inputs.get(Role::ScaleOf(which)).expect("bound").get(0);
        let (x, y) = (want.get(role).expect("always").values(), got.get(role).expect("always").values());
        let off: f64 = x.iter().zip(y).map(|(x, y)| (x - y / scale).powi(2)).sum();
        let error = (off / x.iter().map(|x| x * x).sum::<f64>()).sqrt();
        assert!((1e-3..6e-2).contains(&error), "{role}: {error}");
        let largest = y.iter().fold(0.0, |max: f64, y| max.max((y / scale).abs()));
        let amax = got.get(Role::Amax(which)).expect("measured").at(0, 0, 0, 0);
        assert!(common::near(amax, largest), "{role}: {amax} and {largest}");
    }
    assert!(got.get(Role::Amax(Scaled::DP)).expect("measured").at(0, 0, 0, 0) > 0.0);
}

#[test]
fn a_wrong_gradient_is_found() {
    let plain = valid(Attention::bshd(1, (2, 1), (3, 4), 8, DType::F16).with_stats());
    let a = valid(plain.backward(BackwardOptions::default()));
    // A floor has slope zero almost everywhere, but with a step nearby the measured slope differs from the backward.
    let floors = ((score() * 128.0).floor() / 128.0 + score() * 1e-6).build_score_mod().expect("a score");
    let stepped = valid(valid(plain.into_inner().with_score_mod(floors)).backward(BackwardOptions::default()));
    let worst = |a: &Valid| check_gradients(a, &Inputs::random(a, 3).expect("random"), 20, 1).expect("computes").worst;
    assert!(worst(&a) < 1e-6 && worst(&stepped) > 1e-3, "{} and {}", worst(&a), worst(&stepped));
}

#[test]
fn what_is_not_modelled_is_said() {
    let mut eight = Attention::bshd(1, (1, 1), (4, 4), 32, DType::E4M3).with_stats();
    eight.fp8 = Some(Fp8::Delayed);
    let back = valid(eight.backward(BackwardOptions::default()));
    let slopes = check_gradients(&back, &Inputs::new(), 1, 1);
    assert!(matches!(slopes, Err(ReferenceError::NotModelled { .. })), "{slopes:?}");
    let forward_of = valid(Attention::bshd(1, (1, 1), (4, 4), 32, DType::F16));
    assert_eq!(backward(&forward_of, &Inputs::new()).map(|_| ()), Err(ReferenceError::NotABackward));
    let philox = valid(Attention::bshd(1, (1, 1), (4, 4), 32, DType::F16).with_dropout(0.5));
    let refused = forward(&philox, &Inputs::random(&philox, 1).expect("random")).map(|_| ());
    assert_eq!(refused, Err(ReferenceError::DropoutMask));
}

/// From the self-test on an H200 (seed 61, case 528): one query whose score grows with its square, so that two keys
/// have all of the probability. There `dP` and its row sum nearly cancel, and the difference is the rounding of the
/// 16-bit O from which the row sum is computed.
#[test]
fn a_gradient_of_nearly_one_key_follows_the_rounded_o() {
    const TEXT: &str = "pass: backward\nq: f16 [1,2,1,80] bshd\nk: f16 [1,2,256,80] bshd\nv: f16 [1,2,256,80] bshd\no: f16 [1,2,1,80] bshd\n\
        mask: none\nlengths: full\nmask_mod: {\n  tensor @q_ids: i32[1, 1, 1, 1];\n  tensor @k_ids: i32[1, 1, 1, 256];\n  query == key | @q_ids == @k_ids\n}\n\
        score_mod: scalar $s1: float; score + score * score * $s1\nsink: no\ndropout: none\nblock_mask: no\noutputs: stats\npadded_rows: undefined\nfp8: none\n\
        d_o: f16 [1,2,1,80] bshd\nd_q: f16 [1,2,1,80] bshd\nd_k: f16 [1,2,256,80] bshd\nd_v: f16 [1,2,256,80] bshd\nd_sink: no\ndeterministic: no\n";
    let a = valid(qkvault_graph::text::parse(TEXT).expect("an attention"));
    let inputs = Inputs::random(&a, 61 ^ 528).expect("random");
    let (exact, of_o) = (backward(&a, &inputs).expect("computes"), backward_of_o(&a, &inputs).expect("computes"));
    let far = |role: Role| {
        let (x, y) = (exact.get(role).expect("requested").values(), of_o.get(role).expect("requested").values());
        let norm = |list: &mut dyn Iterator<Item = f64>| list.map(|x| x * x).sum::<f64>().sqrt();
        norm(&mut x.iter().zip(y).map(|(x, y)| x - y)) / norm(&mut x.iter().copied())
    };
    // The dQ and dK of the H200 were 1.2e-2 and 1.3e-2 from the exact ones.
    assert!(
        (0.008..0.016).contains(&far(Role::DQ)) && (0.008..0.016).contains(&far(Role::DK)),
        "{} {}",
        far(Role::DQ),
        far(Role::DK)
    );
    assert!(far(Role::DV) == 0.0, "dV does not go through the row sum");
    // On the H200, dQ[0, 1, 0, 48] was 0.6494140625; the exact value is 0.6570.
    let at = of_o.get(Role::DQ).expect("requested").values()[80 + 48];
    assert!((at - 0.649_414).abs() < 1e-3, "{at}");
}

#[test]
fn row_sums_of_a_given_o_are_those_of_the_exact_one_up_to_its_rounding() {
    let a = Attention::bshd(2, (4, 2), (40, 60), 16, DType::F16).with_stats();
    let a = valid(a.backward(BackwardOptions::default()));
    let inputs = Inputs::random(&a, 3).expect("random");
    let (exact, of_o) = (backward(&a, &inputs).expect("computes"), backward_of_o(&a, &inputs).expect("computes"));
    for role in [Role::DQ, Role::DK, Role::DV] {
        let (x, y) = (exact.get(role).expect("requested").values(), of_o.get(role).expect("requested").values());
        let largest = x.iter().zip(y).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
        assert!(if role == Role::DV { largest == 0.0 } else { largest > 0.0 && largest < 1e-3 }, "{role}: {largest}");
    }
}

/// Ring attention feeds each part of the keys the Stats and O of all of them; with those of the part alone, gradients
/// are wrong.
#[test]
fn parts_of_the_keys_add_up_to_the_backward_of_all() {
    use qkvault_reference::{Whole, backward_part};

    let of = |keys| Attention::bshd(1, (2, 1), (3, keys), 8, DType::BF16).with_stats();
    let whole = valid(of(6).backward(BackwardOptions::default()));
    let part = valid(of(3).backward(BackwardOptions::default()));
    let inputs = Inputs::random(&whole, 5).expect("random");
    let exact = forward(&valid(of(6)), &inputs).expect("forward");
    let numbers = |role| exact.get(role).expect("an output").values();
    let saved = Whole { o: numbers(Role::O), stats: numbers(Role::Stats) };
    let expected = backward(&whole, &inputs).expect("backward");
    let mut d_q = vec![0.0; expected.get(Role::DQ).expect("dQ").values().len()];
    for half in 0..2 {
        let mut bound = inputs.clone();
        for role in [Role::K, Role::V] {
            let bytes = inputs.buffer(role).expect("bound").bytes();
            let half = bytes.chunks(bytes.len() / 2).nth(half).expect("two halves").to_vec();
            bound.insert(role, Buffer::new(DType::BF16, half).expect("whole"));
        }
        let found = backward_part(&part, &bound, saved).expect("a part");
        d_q.iter_mut().zip(found.get(Role::DQ).expect("dQ").values()).for_each(|(sum, x)| *sum += x);
        for role in [Role::DK, Role::DV] {
            let of_all = expected.get(role).expect("a gradient").values();
            let of_half = found.get(role).expect("a gradient").values();
            let pairs = of_all[half * of_half.len()..].iter().zip(of_half);
            assert!(pairs.clone().all(|(x, y)| (x - y).abs() < 1e-12), "{role}");
        }
    }
    let pairs = d_q.iter().zip(expected.get(Role::DQ).expect("dQ").values());
    assert!(pairs.clone().all(|(x, y)| (x - y).abs() < 1e-12));
    let short = Whole { o: &saved.o[1..], ..saved };
    assert!(backward_part(&whole, &inputs, short).is_err());
}
