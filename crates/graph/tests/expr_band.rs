//! Predicates that are bands, in every form, and predicates that only look like bands.

mod expr_support;

use expr_support::any_expr;
use proptest::prelude::*;
use qkvault_graph::expr::library::*;
use qkvault_graph::expr::*;
use qkvault_graph::{Band, Corner};

fn band(predicate: &Expr) -> Option<Band> {
    predicate.build_mask_mod().expect("a predicate").as_band()
}

const fn top_left(left: Option<i64>, right: Option<i64>) -> Option<Band> {
    Some(Band { corner: Corner::TopLeft, left, right })
}

const fn bottom_right(left: Option<i64>, right: Option<i64>) -> Option<Band> {
    Some(Band { corner: Corner::BottomRight, left, right })
}

#[test]
fn masks_of_the_library_are_bands() {
    assert_eq!(band(&top_left_causal()), Some(Band::CAUSAL));
    assert_eq!(band(&causal()), Some(Band::CAUSAL_BOTTOM_RIGHT));
    assert_eq!(band(&top_left_window(128)), Some(Band::window(Corner::TopLeft, 128)));
    assert_eq!(band(&sliding_window(128)), Some(Band::window(Corner::BottomRight, 128)));
    assert_eq!(band(&dilated_window(4, 1)), None);
    assert_eq!(band(&padding()), None);
}

#[test]
fn a_band_is_recognised_in_every_form() {
    for causal in [
        query().ge(key()),
        !key().gt(query()),
        (query() - key()).ge(0),
        (key() - query()).lt(1),
        (2 * key()).le(2 * query() + 1),
        (-query()).le(-key()),
        top_left_causal() & true,
        !(!top_left_causal() | false),
        top_left_causal() & (key() - 5).le(query()),
    ] {
        assert_eq!(band(&causal), Some(Band::CAUSAL), "{}", causal.build().expect("a predicate"));
    }
    assert_eq!(band(&key().eq(query())), top_left(Some(1), Some(0)));
    assert_eq!(band(&(key() + 3).gt(query())), top_left(Some(3), None));
    assert_eq!(band(&(query() - query_len()).ge(key() - key_len())), bottom_right(None, Some(0)));
    let distance = key_len() - key() - (query_len() - query());
    assert_eq!(band(&(distance.lt(7) & distance.ge(-2))), bottom_right(Some(7), Some(2)));
}

#[test]
fn other_predicates_stay_predicates() {
    for other in [
        Expr::from(true),
        Expr::from(false),
        key().lt(query()),
        key().gt(query()),
        key().ne(query()),
        key().le(query() + int_scalar("n")),
        key().le(2 * query()),
        key().le(query() + key_len()),
        key().le(query_len()),
        key().to_float().le(query().to_float()),
        top_left_causal() | key().lt(4),
        top_left_causal() & (key() + 3).gt(query() + key_len() - query_len()),
        top_left_causal() & padding(),
        top_left_causal() & head().eq(0),
        top_left_causal() & !Expr::from(true),
    ] {
        assert_eq!(band(&other), None, "{}", other.build().expect("a predicate"));
    }
    assert_eq!(score().build().expect("a float").as_band(), None);
    // With integers that wrap, this is not a causal mask.
    assert_eq!(band(&(key() + i32::MAX).le(query() + i32::MAX)), None);
}

/// Predicates around the diagonal, so that many are bands.
fn diagonal() -> impl Strategy<Value = Expr> {
    let distance = prop_oneof![
        Just(query() - key()),
        Just(key() - query()),
        Just(query() + (key_len() - query_len()) - key()),
        Just(key() - key_len() - (query() - query_len())),
    ];
    let compare = prop::sample::select(Compare::ALL.to_vec());
    let bound = (distance, compare, -4..5_i32, prop::bool::ANY, 1..4_i32).prop_map(|(d, op, n, not, scale)| {
        let kept = expr_support::relate(op, &(d * scale), &Expr::from(n));
        if not { !kept } else { kept }
    });
    prop::collection::vec(bound, 1..4).prop_map(|bounds| bounds.into_iter().reduce(|a, b| a & b).expect("one at least"))
}

fn agrees(expr: &ScoreExpr) -> Result<(), TestCaseError> {
    let Some(band) = expr.as_band() else { return Ok(()) };
    for (q_len, k_len) in [(6, 9), (9, 6), (5, 5)] {
        for q in 0..q_len {
            for k in 0..k_len {
                let context = PointContext { at: [0, 0, q, k], lengths: [q_len, k_len], ..PointContext::default() };
                let kept = band.keeps(q.into(), k.into(), q_len.into(), k_len.into());
                prop_assert_eq!(expr.eval(&context).expect("no operands"), Value::Bool(kept), "{} is {:?}", expr, band);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_recognised_band_keeps_what_the_predicate_keeps(predicate in diagonal()) {
        agrees(&predicate.build().expect("a predicate"))?;
    }

    #[test]
    fn no_expression_becomes_a_band_that_differs(expr in any_expr(3)) {
        let expr = expr.0.build().expect("well typed");
        if expr.scalars().is_empty() && expr.tensors().is_empty() {
            agrees(&expr)?;
        }
    }
}
