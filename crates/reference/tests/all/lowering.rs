//! A lowered op graph, interpreted, has the same results as the oracle.

use crate::common;

use std::cell::Cell;

use common::lowered::check;
use common::{cases, valid};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};
use qkvault_graph::arbitrary::{Features, Space, attention};
use qkvault_graph::expr::{Binary, Node};
use qkvault_graph::{Attention, BackwardOptions, Band, DType, Dropout, DropoutSource, ScoreExpr};
use qkvault_reference::{LengthChoice, RandomChoice, Unused};

/// Attentions that the tests below skip: a floored remainder is lowered as `a - b floor(a / b)`, which differs where
/// `a` is much larger than `b`; and a score expression that does not read the score is lowered without the dims of
/// scores.
fn is_delicate(a: &Attention) -> bool {
    let floor_rem = |e: &ScoreExpr| e.nodes().iter().any(|n| matches!(n, Node::Binary(Binary::FloorRem, ..)));
    a.score_mod.iter().chain(&a.mask.mask_mod).any(floor_rem)
        || a.score_mod.as_ref().is_some_and(|e| !e.contains(Node::Score))
}

/// Checks random attentions. The rules of lowering may refuse some, but at least every eighth must have a graph.
fn over<S: Strategy>(cases: u32, strategy: &S, check: impl Fn(S::Value) -> Result<usize, TestCaseError>) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let graphs = Cell::new(0);
    let each = |value| -> TestCaseResult {
        graphs.set(graphs.get() + check(value)?);
        Ok(())
    };
    TestRunner::new(config).run(strategy, each).unwrap_or_else(|e| panic!("{e}"));
    assert!(8 * graphs.get() >= cases as usize, "{} graphs in {cases} cases", graphs.get());
}

#[test]
fn interpreting_the_lowering_of_dense_forwards_equals_the_oracle() {
    over(96, &(cases::dense(), any::<u64>(), any::<bool>()), |(a, seed, poison)| {
        let unused = if poison { Unused::Poison } else { Unused::Finite };
        check(
            &valid(a),
            seed,
            &RandomChoice { lengths: LengthChoice::Any, unused, spread: false, ..RandomChoice::default() },
        )
    });
}

#[test]
fn whatever_lowers_means_what_the_oracle_computes() {
    // The slopes of random expressions are too large to compare; a test below checks smooth expressions.
    let sane = |a: &Attention| !(is_delicate(a) || a.is_backward() && a.score_mod.is_some());
    let any_attention = attention(Space::SMALL).prop_filter("sane", sane);
    over(512, &(any_attention, any::<u64>(), any::<bool>()), |(a, seed, any)| {
        let lengths = if any { LengthChoice::Any } else { LengthChoice::Varied };
        check(&valid(a), seed, &RandomChoice { lengths, unused: Unused::Pages, spread: any, ..RandomChoice::default() })
    });
}

#[test]
fn score_expressions_lower_to_what_they_mean() {
    let features = Features { score_mod: true, mask_mod: true, sink: true, ..Features::NONE };
    let modified = attention(Space::SMALL.with(features)).prop_filter("sane", |a| !is_delicate(a));
    over(192, &(modified, any::<u64>()), |(a, seed)| {
        check(&valid(a), seed, &RandomChoice { lengths: LengthChoice::Any, ..RandomChoice::default() })
    });
}

#[test]
fn lowered_backwards_are_the_gradients() {
    let features = Features { mask_mod: true, sink: true, backward: true, ..Features::NONE };
    let sane = |a: &Attention| a.is_backward() && !is_delicate(a);
    let backwards = attention(Space::SMALL.with(features)).prop_filter("a backward", sane);
    let dropout = prop::option::weighted(0.2, 0.1_f32..0.7);
    over(96, &(backwards, dropout, any::<u64>()), |(mut a, dropout, seed)| {
        a.dropout = dropout.map(|probability| Dropout::new(DropoutSource::Philox, probability));
        check(&valid(a), seed, &RandomChoice::default())
    });
}

#[test]
fn score_expressions_lower_with_their_derivatives_and_tensor_gradients() {
    let mut lowered = 0;
    for (i, lengths) in [false, true].into_iter().enumerate() {
        let plain = Attention::bshd(2, (4, 2), (5, 6), 8, DType::F16).with_band(Band::CAUSAL_BOTTOM_RIGHT).with_stats();
        let plain = if lengths { plain.with_lengths() } else { plain };
        for (name, expression) in cases::smooth(&plain) {
            let a = valid(plain.clone().with_score_mod(expression.build_score_mod().expect(name)));
            let a = valid(a.backward(BackwardOptions::default()));
            lowered += check(&a, i as u64, &RandomChoice::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
    assert!(lowered > 0);
}
