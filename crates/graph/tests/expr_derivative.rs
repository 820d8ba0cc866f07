//! Derivatives against central differences in float64: every operation, random compositions, tensors, conventions,
//! refusals.

mod expr_support;

use expr_support::{Point, SCORES, call, central, float_expr, join, point};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use qkvault_graph::DType;
use qkvault_graph::expr::*;

const POINT: Point = Point {
    score: 0.7,
    at: [1, 2, 3, 4],
    lengths: [5, 7],
    scalars: [1.3, -0.6, 2.1],
    n: 3,
    tensors: [0.4, -1.2, 2.5],
    id: 1,
};

/// Compares the derivatives with respect to every input with central differences; returns the number of comparisons.
fn compared(expr: &ScoreExpr, point: &Point) -> Result<usize, TestCaseError> {
    let mut count = 0;
    let tensors =
        (0..expr.tensors().len() as u32).map(TensorId).filter(|t| expr.tensors()[t.at()].ty() == Some(Ty::Float));
    for wrt in std::iter::once(Wrt::Score).chain(tensors.map(Wrt::Tensor)) {
        let derived = derivative(expr, wrt).expect("random expressions are small floats");
        let values = point.values(expr);
        let context = point.context(&values);
        let Some(expected) = central(expr, &context, wrt) else { continue };
        let found = derived.eval(&context).expect("same operands").float().expect("a float");
        let close = |found: f64| (found - expected).abs() <= 2e-5 * (1.0 + expected.abs());
        // At a pole of the formula, the derivative would be infinite or NaN although the function is smooth.
        prop_assert!(
            close(found),
            "{expr}\n  by {wrt:?}: {derived}\n  gives {found}, differences give {expected} at {point:?}"
        );
        let applied = derived.applied();
        let context = PointContext { upstream: -2.5, ..context };
        let applied_value = applied.eval(&context).expect("same operands").float().expect("a float") / -2.5;
        prop_assert!(close(applied_value), "{expr}\n  applied: {applied}\n  gives {applied_value}, not {expected}");
        count += 1;
    }
    Ok(count)
}

#[test]
fn every_unary_operation_has_its_derivative() {
    for &op in Unary::ALL {
        let mut count = 0;
        for s in [-2.3, -0.9, -0.2, 0.3, 0.8, 1.7] {
            let point = Point { score: s, ..POINT };
            let outer = call(op, &(score() * 1.5 + 0.25)).build().expect("well typed");
            let inner = (call(op, &score()) * scalar("a")).sin().build().expect("well typed");
            count += compared(&outer, &point).unwrap() + compared(&inner, &point).unwrap();
        }
        assert!(count >= 6, "{op}: only {count} points could be compared");
    }
}

#[test]
fn every_binary_operation_has_both_its_derivatives() {
    // Integers, which floor division is for, have no derivative.
    for &op in Binary::ALL.iter().filter(|op| op.takes_float()) {
        let mut count = 0;
        let bias = tensor("bias", TensorSpec::new(DType::F32, SCORES));
        for s in [-2.3, -0.9, 0.3, 0.8, 1.7] {
            let point = Point { score: s, tensors: [1.4, 0.0, 0.0], ..POINT };
            for expr in
                [join(op, &score(), &bias), join(op, &bias, &score()), join(op, &(score().abs() + 0.5), &score())]
            {
                count += compared(&expr.build().expect("well typed"), &point).unwrap();
            }
        }
        assert!(count >= 12, "{op}: only {count} points could be compared");
    }
}

#[test]
fn enough_random_points_can_be_compared() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut compared_with, mut asked) = (0, 0);
    for _ in 0..1000 {
        let (expr, point) = (float_expr(6), point()).new_tree(&mut runner).expect("no filters").current();
        let expr = expr.0.build().expect("well typed");
        let nonzero = derivative(&expr, Wrt::Score).is_ok_and(|d| !d.is_zero());
        asked += usize::from(nonzero);
        compared_with += usize::from(nonzero && compared(&expr, &point).unwrap() > 0);
    }
    assert!(compared_with > 300, "{compared_with} of {asked} could be compared");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_compositions_have_their_derivative(expr in float_expr(6), points in prop::array::uniform3(point())) {
        let expr = expr.0.build().expect("well typed");
        for point in &points {
            compared(&expr, point)?;
        }
    }
}
