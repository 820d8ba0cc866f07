//! The oracle against the definition written as plain loops, on small attentions with every feature.

use crate::common;

use std::time::Instant;

use common::{check_naive, valid, with_dropout_mask};
use proptest::prelude::*;
use qkvault_graph::arbitrary::{Features, Space, attention};
use qkvault_graph::{Attention, Band, DType};
use qkvault_reference::{Inputs, LengthChoice, OutputTolerance, RandomChoice, Unused, compare, forward};

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_feature_of_16_bit_forwards_agrees_with_plain_loops(
        a in attention(Space::SMALL.with(Features { fp8: false, backward: false, ..Features::ALL })),
        seed in any::<u64>(),
        spread in any::<bool>(),
    ) {
        let a = valid(a);
        let choice = RandomChoice { lengths: LengthChoice::Any, unused: Unused::Poison, spread, ..RandomChoice::default() };
        let mut inputs = Inputs::random_with(&a, seed, &choice).expect("random");
        with_dropout_mask(&a, &mut inputs, seed);
        check_naive(&a, &inputs);
    }
}

#[test]
fn dense() {
    for (seed, band) in [None, Some(Band::CAUSAL), Some(Band::CAUSAL_BOTTOM_RIGHT)].into_iter().enumerate() {
        let mut a = Attention::bshd(2, (4, 2), (5, 7), 16, DType::BF16).with_stats();
        a.mask.band = band;
        a.outputs.max = true;
        a.outputs.sum_exp = true;
        let a = valid(a);
        check_naive(&a, &Inputs::random(&a, seed as u64).expect("random"));
    }
}

#[test]
fn the_oracle_is_fast_enough_to_be_one() {
    let prefill = valid(Attention::bshd(1, (8, 8), (1024, 1024), 64, DType::BF16).with_stats());
    let inputs = Inputs::random(&prefill, 1).expect("random");
    let start = Instant::now();
    let outputs = forward(&prefill, &inputs).expect("computes");
    let took = start.elapsed();
    println!("prefill {took:?}");
    // It takes a third of a second on two cores; the limit allows for other work on them.
    assert!(took.as_secs() < 5, "{took:?}");
    let o = outputs.get(qkvault_graph::Role::O).expect("always");
    let same = compare(o, &o.buffer(), OutputTolerance::for_role(o.role(), DType::BF16));
    assert!(same.good, "{same}");
    println!("{same}");
    for s in [512, 8192] {
        let decode = valid(Attention::bshd(1, (32, 8), (1, s), 128, DType::BF16));
        let inputs = Inputs::random(&decode, 1).expect("random");
        let start = Instant::now();
        forward(&decode, &inputs).expect("computes");
        println!("decode {s} {:?}", start.elapsed());
    }
}
