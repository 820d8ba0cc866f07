//! Varlen and paged attentions: the op graph for every branch of versions, interpreted, has the same results as the
//! oracle.

use crate::common;

use std::cell::Cell;

use common::lowered::{check_on, targets_of};
use common::valid;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};
use qkvault_graph::arbitrary::{Features, Space, attention};
use qkvault_graph::expr::{library, scalar, score};
use qkvault_graph::{Attention, BackwardOptions, Band, Corner, DType, Storage, Tensor};
use qkvault_reference::{LengthChoice, RandomChoice, Unused};

/// Versions on both sides of each branch: 32-bit offsets, varlen queries over pages, fused masks and softmax, varlen
/// sinks.
const MINORS: [u16; 5] = [5, 6, 7, 19, 27];

/// Checks random attentions; at least the share `least` of cases times targets must lower.
fn over<S: Strategy>(cases: u32, least: f64, strategy: &S, check: impl Fn(S::Value) -> Result<usize, TestCaseError>) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let graphs = Cell::new(0);
    let each = |value| -> TestCaseResult {
        graphs.set(graphs.get() + check(value)?);
        Ok(())
    };
    TestRunner::new(config).run(strategy, each).unwrap_or_else(|e| panic!("{e}"));
    assert!(graphs.get() as f64 >= least * f64::from(cases), "{} graphs in {cases} cases", graphs.get());
}

fn is_stored(a: &Attention) -> bool {
    [a.q, a.k, a.v].iter().any(|t| t.storage != Storage::Dense)
}

#[test]
fn whatever_lowers_of_varlen_and_paged_operands_means_what_the_oracle_computes() {
    let features = Features { storage: true, sink: true, backward: true, ..Features::NONE };
    let stored = attention(Space::SMALL.with(features)).prop_filter("varlen or paged", is_stored);
    over(512, 2.0, &(stored, any::<u64>(), any::<bool>()), |(a, seed, apart)| {
        let choice = RandomChoice {
            lengths: LengthChoice::Any,
            unused: Unused::Pages,
            spread: apart,
            ..RandomChoice::default()
        };
        check_on(targets_of(&MINORS), &valid(a), seed, &choice)
    });
}

/// Attentions of a serving engine: queries of one step or varlen, over pages of every layout.
fn steps() -> impl Strategy<Value = Attention> {
    let heads = (1..=2_i64, prop::sample::select(vec![1_i64, 2, 4]));
    let tiles = (prop::sample::select(vec![16_i64, 32, 64, 128]), 1..=2_i64);
    let sizes = (1..=3_i64, heads, 1..=7_i64, tiles, (1..=2_i64, 1..=2_i64));
    let band = prop_oneof![
        Just(None),
        Just(Some(Band::CAUSAL_BOTTOM_RIGHT)),
        (1..150_i64).prop_map(|n| Some(Band::window(Corner::BottomRight, n))),
    ];
    (sizes, band, any::<[bool; 6]>()).prop_map(
        |((b, (h_kv, group), longest, (page, tiles), (d_qk, d_v)), band, [decode, hnd, cap, sink, stats, bf16])| {
            let (h, d_qk, d_v) = (h_kv * group, 8 * d_qk, 8 * d_v);
            let dtype = if bf16 { DType::BF16 } else { DType::F16 };
            // Whole tiles of 128 keys, but not always whole pages if a page has 128 rows.
            let s_kv = 128 * tiles - if page == 128 { longest } else { 0 };
            let per = (s_kv + page - 1) / page;
            let paged = if hnd { Tensor::paged_hnd } else { Tensor::paged_nhd };
            let pool = |d| paged(b, h_kv, s_kv, d, b * per + 2, page, dtype);
            let rows = |d| match decode {
                true => Tensor::bshd(b, h, 1, d, dtype),
                false => Tensor::thd(b, h, longest, d, b * longest + 3, dtype),
            };
            let mut a = Attention::forward(rows(d_qk), pool(d_qk), pool(d_v), rows(d_v)).with_lengths();
            a.mask.band = band;
            a.sink = sink;
            a.outputs.stats = stats;
            if cap {
                let capped = library::softcap(score(), scalar("cap"));
                a.score_mod = Some(capped.build_score_mod().expect("well typed"));
            }
            a
        },
    )
}

#[test]
fn serving_steps_lower_to_what_they_mean() {
    over(128, 3.0, &(steps(), any::<u64>(), any::<bool>()), |(a, seed, any)| {
        let lengths = if any { LengthChoice::Any } else { LengthChoice::Varied };
        let choice = RandomChoice { lengths, unused: Unused::Pages, spread: !any, ..RandomChoice::default() };
        check_on(targets_of(&MINORS), &valid(a), seed, &choice)
    });
}

#[test]
fn varlen_backwards_with_parts_of_one_buffer_are_the_gradients() {
    // Q, K and V in one buffer of (tokens, 3, heads, head dim): consecutive tokens are one row of all three apart.
    let (b, h, s, d, tokens) = (3, 2, 7, 8, 15);
    let part = Tensor { strides: [s * 3 * h * d, d, 3 * h * d, 1], ..Tensor::thd(b, h, s, d, tokens, DType::BF16) };
    let o = Tensor::thd(b, h, s, d, tokens, DType::BF16);
    let forward = Attention::forward(part, part, part, o).with_lengths().with_stats();
    for (i, band) in [None, Some(Band::CAUSAL), Some(Band::CAUSAL_BOTTOM_RIGHT)].into_iter().enumerate() {
        let mut a = forward.backward(BackwardOptions::default());
        a.mask.band = band;
        let choice = RandomChoice { spread: true, ..RandomChoice::default() };
        let graphs = check_on(targets_of(&MINORS), &valid(a), i as u64, &choice).unwrap_or_else(|e| panic!("{e}"));
        assert!(graphs >= 6, "expanded for every version, fused for the last: {graphs}");
    }
}

#[test]
fn varlen_keys_whose_heads_lie_outside_tokens_keep_rows_of_other_heads_out_of_their_gradients() {
    // (heads, tokens, head dim): the dense view of one head reaches into the next.
    let (b, h, s, d, tokens) = (2, 2, 4, 8, 3);
    let outside = |h: i64| Tensor { strides: [s * d, tokens * d, d, 1], ..Tensor::thd(b, h, s, d, tokens, DType::F16) };
    let q = Tensor::thd(b, h, s, d, tokens, DType::F16);
    let a = Attention::forward(q, outside(h), outside(h), q).with_lengths().with_stats();
    let a = valid(a.backward(BackwardOptions::default()));
    let choice = RandomChoice { lengths: LengthChoice::Any, ..RandomChoice::default() };
    for seed in 0..8 {
        let graphs = check_on(targets_of(&[19]), &a, seed, &choice).unwrap_or_else(|e| panic!("{e}"));
        assert!(graphs >= 1);
    }
}
