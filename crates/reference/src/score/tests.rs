//! Compares the row evaluator with the evaluator at a point, and its reverse sweep with the derived derivative. The two
//! programs in each comparison are independent.

use proptest::prelude::*;
use qkvault_graph::Role;
use qkvault_graph::arbitrary::Term;
use qkvault_graph::expr::{PointContext, ScalarTy, ScoreExpr, Value, vjp};

use super::{BoundScore, LANES, Registers, RowAt, element};
use crate::{Buffer, Inputs};

const DIMS: [i64; 4] = [2, 3, 4, 7];

/// Scalars and tensors for an expression: smooth numbers, all different.
fn inputs(e: &ScoreExpr, seed: u64) -> Inputs {
    let mut state = seed;
    let mut number = |whole: bool| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = (state >> 40) as f64 / f64::from(1 << 24) * 4.0 - 2.0;
        if whole { (x * 3.0).round() } else { x }
    };
    let scalars = (0..).map(Role::Scalar).zip(e.scalars());
    let scalars: Vec<_> =
        scalars.map(|(role, s)| (role, Buffer::from_values(s.ty.dtype(), [number(s.ty == ScalarTy::Int)]))).collect();
    let tensors = (0..).map(Role::ScoreTensor).zip(e.tensors());
    let tensors = tensors.map(|(role, t)| {
        let len = t.dims.iter().product::<i64>();
        (role, Buffer::from_values(t.dtype, (0..len).map(|_| number(!t.dtype.is_float()))))
    });
    scalars.into_iter().chain(tensors).collect()
}

/// The operands of the language's own evaluator for one key.
fn at_point<T>(
    e: &ScoreExpr,
    inputs: &Inputs,
    at: RowAt,
    key: usize,
    score: f64,
    eval: impl FnOnce(&PointContext<'_>) -> T,
) -> T {
    let value = |x: f64, float: bool| if float { Value::Float(x) } else { Value::Int(x as i32) };
    let scalars = e.scalars().iter().zip(0..);
    let scalars: Vec<Value> = scalars
        .map(|(s, n)| value(inputs.get(Role::Scalar(n)).expect("bound").get(0), s.ty == ScalarTy::Float))
        .collect();
    let tensors = e.tensors().iter().zip(0..);
    let tensors: Vec<Value> = tensors
        .map(|(t, n)| {
            let place = element(t.dims.map(|n| n as usize), at, key);
            value(inputs.get(Role::ScoreTensor(n)).expect("bound").get(place), t.dtype.is_float())
        })
        .collect();
    let indices = [at.batch, at.head, at.query, key].map(|i| i as i32);
    eval(&PointContext {
        score,
        upstream: 1.0,
        at: indices,
        lengths: at.lens.map(|n| n as i32),
        scalars: &scalars,
        tensors: &tensors,
    })
}

fn near(x: f64, y: f64, tolerance: f64) -> bool {
    x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= tolerance * x.abs().max(1.0)
}

const AT: RowAt = RowAt { batch: 1, head: 2, query: 3, lens: [4, 7], origins: [0, 0] };

fn scores() -> Vec<f64> {
    (0..7).map(|key| f64::from(key) * 0.37 - 1.25).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rows_evaluate_as_points_do(term in Term::score(6), seed in any::<u64>()) {
        let Ok(e) = term.write(DIMS).build_score_mod() else { return Ok(()) };
        let inputs = inputs(&e, seed);
        let bound = BoundScore::new(e.program(), 0, 0, &inputs).expect("bound");
        let mut values = Registers::default();
        let row = bound.run(AT, 0, &scores(), &mut values);
        for (key, (&x, &score)) in row.iter().zip(&scores()).enumerate() {
            let y = at_point(&e, &inputs, AT, key, score, |p| e.eval(p)).expect("bound").float().expect("a score");
            prop_assert!(near(y, x, 1e-12), "key {key}: {x} for {y} by {e}");
        }
    }

    #[test]
    fn the_reverse_sweep_agrees_with_the_derived_derivative(term in Term::score(4), seed in any::<u64>()) {
        let Ok(e) = term.write(DIMS).build_score_mod() else { return Ok(()) };
        let Ok(derived) = vjp(&e) else { return Ok(()) };
        let inputs = inputs(&e, seed);
        let bound = BoundScore::new(e.program(), 0, 0, &inputs).expect("bound");
        let [mut values, mut gradients] = [Registers::default(), Registers::default()];
        bound.run(AT, 0, &scores(), &mut values);
        // The derived program holds its constants in float32, which large or tiny numbers magnify; at poles the results
        // differ.
        let tame = |key: usize| {
            values.0.chunks(LANES).all(|node| node[key] == 0.0 || (1e-2..1e3).contains(&node[key].abs()))
        };
        bound.reverse(&values, &[1.0; 7], &mut gradients);
        let mut pairs = vec![(&derived.d_score, bound.score_gradient(&gradients, 7))];
        for t in &derived.d_tensors {
            pairs.push((&t.factor, bound.tensor_gradient(t.tensor, &gradients, 7)));
        }
        for (factor, own) in pairs {
            let own = own.expect("a derivative that is not zero is that of a leaf that is read");
            for (key, (&x, &score)) in own.iter().zip(&scores()).enumerate() {
                let y = at_point(&e, &inputs, AT, key, score, |p| factor.eval(p)).expect("bound").float().expect("a slope");
                if tame(key) && x.is_finite() && y.is_finite() && y.abs() < 1e3 {
                    prop_assert!(near(y, x, 1e-4), "key {key}: {x} for {y} by {e}");
                }
            }
        }
    }
}

/// At every kind of number the derived derivative is the slope, also where a formula of it would be a difference of
/// large numbers.
#[test]
fn derived_derivatives_are_slopes_over_the_whole_domain() {
    use qkvault_graph::arbitrary::domain;
    use qkvault_graph::expr::{Node, parse_expr};

    let (none, mut apart) = (Inputs::default(), Vec::new());
    for text in domain::of_every_operation() {
        let e = parse_expr(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let Ok(derived) = vjp(&e) else { continue };
        let bound = BoundScore::new(e.program(), 0, 0, &none).expect("no operands");
        for score in domain::NUMBERS.map(f64::from) {
            let [mut values, mut gradients] = [Registers::default(), Registers::default()];
            bound.run(AT, 0, &[score], &mut values);
            bound.reverse(&values, &[1.0], &mut gradients);
            let slope = bound.score_gradient(&gradients, 1).expect("it reads the score")[0];
            let found = at_point(&e, &none, AT, 0, score, |p| derived.d_score.eval(p));
            let found = found.expect("all is given").float().expect("a slope");
            // NaN has no side of a kink.
            let kink = score.is_nan() && ["abs(", "elu("].iter().any(|op| text.starts_with(op));
            if !near(found, slope, 1e-6) && !kink {
                apart.push(format!("{text} at {score}: {found}, {slope} expected"));
            }
        }
        assert!(e.nodes().contains(&Node::Score), "{text}");
    }
    assert!(apart.is_empty(), "{} differ: {:#?}", apart.len(), &apart[..apart.len().min(40)]);
}

/// On zeros, infinities and NaN both tables of operations return the same bits, and never -0.
#[test]
fn both_tables_of_operations_agree_bit_for_bit_on_special_numbers() {
    use qkvault_graph::expr::{Binary, Unary};

    use super::scalar;
    let special = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 1e-300, 1e300, 40.0, f64::MIN_POSITIVE, f64::INFINITY];
    let special: Vec<f64> = special.iter().flat_map(|&x| [x, -x]).chain([f64::NAN]).collect();
    let same = |x: f64, y: f64| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
    for &a in &special {
        for &op in Unary::ALL {
            let (ours, theirs) = (scalar::unary(op, a), op.apply(a));
            assert!(same(ours, theirs), "{op}({a}): {ours} and {theirs}");
            assert!(ours != 0.0 || ours.is_sign_positive(), "{op}({a}) is {ours}");
            assert!(same(op.apply(a + 0.0), theirs), "{op} sees the sign of {a}");
        }
        for (&b, &op) in special.iter().flat_map(|b| Binary::ALL.iter().map(move |op| (b, op))) {
            let (ours, theirs) = (scalar::binary(op, a, b), op.apply(a, b));
            assert!(same(ours, theirs), "{op}({a}, {b}): {ours} and {theirs}");
            assert!(ours != 0.0 || ours.is_sign_positive(), "{op}({a}, {b}) is {ours}");
            assert!(same(op.apply(a + 0.0, b + 0.0), theirs), "{op} sees the sign of {a} or {b}");
        }
    }
    let whole = [0, 1, -1, 2, -2, 3, 7, -7, i32::MAX, i32::MIN];
    for &a in &whole {
        for op in Unary::ALL.iter().filter(|op| op.takes_int()) {
            assert_eq!(op.apply_int(a).map(f64::from), Some(scalar::unary_int(*op, f64::from(a))), "{op}({a})");
        }
        for (&b, op) in whole.iter().flat_map(|b| Binary::ALL.iter().map(move |op| (b, op))) {
            if let Some(theirs) = op.apply_int(a, b) {
                assert_eq!(f64::from(theirs), scalar::binary_int(*op, f64::from(a), f64::from(b)), "{op}({a}, {b})");
            }
        }
    }
}
