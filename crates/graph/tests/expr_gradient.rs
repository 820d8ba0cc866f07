//! The backward of an expression: gradients of tensors, refusals, own backwards, conventions for points without a
//! derivative, simplicity.

use qkvault_graph::DType;
use qkvault_graph::expr::library::{alibi_with, softcap, top_left_causal as causal};
use qkvault_graph::expr::*;

fn built(e: &Expr) -> ScoreExpr {
    e.build().expect("well typed")
}

fn trained(name: &str, dims: [i64; 4]) -> Expr {
    tensor(name, TensorSpec::new(DType::F32, dims).with_grad())
}

/// The derivative with respect to the score at one point.
fn slope(e: &Expr, score: f64) -> f64 {
    let derived = derivative(&built(e), Wrt::Score).expect("a float");
    let at = PointContext { score, at: [0, 0, 2, 1], scalars: &[Value::Float(2.0)], ..PointContext::default() };
    derived.eval(&at).expect("has its operands").float().expect("a float")
}

#[test]
fn the_derived_backward_of_a_softcap_is_right() {
    for s in [-120.0, -3.0, 0.0, 0.5, 90.0] {
        let expected = 1.0 - (s / 2.0_f64).tanh().powi(2);
        assert!((slope(&softcap(score(), scalar("cap")), s) - expected).abs() < 1e-12);
    }
}

#[test]
fn the_backward_needs_only_the_description() {
    let forward = built(&softcap(score(), scalar("cap")));
    let elsewhere: ScoreExpr =
        serde_json::from_str(&serde_json::to_string(&forward).expect("plain data")).expect("valid");
    drop(forward.clone());
    assert_eq!(vjp(&elsewhere), vjp(&forward));
    let factor = vjp(&elsewhere).expect("a backward").d_score;
    assert!(factor.contains(Node::Score) && !factor.contains(Node::Upstream), "recomputed from the score: {factor}");
}

#[test]
fn a_tensor_gets_the_requested_gradient() {
    let e = (score() * trained("t", [1, 8, 1, 64])).exp() + trained("u", [2, 1, 1, 1]) * key();
    let e = built(&(e + tensor("frozen", TensorSpec::new(DType::F32, [1, 1, 1, 1]))));
    let Vjp { d_score, d_tensors } = vjp(&e).expect("every gradient exists");
    assert_eq!(d_tensors.len(), 2);
    let of = |name: &str| d_tensors.iter().find(|g| Some(g.tensor) == e.tensor_named(name)).expect("requested");
    assert_eq!(of("t").reduce, [true, false, true, false]);
    assert_eq!(of("u").reduce, [false, true, true, true]);
    assert_eq!(of("u").reduced_axes().collect::<Vec<_>>(), [Axis::Head, Axis::Query, Axis::Key]);
    let values = [("t", 0.5), ("u", 3.0), ("frozen", 1.0)];
    let named = |name: &String| values.iter().find(|(n, _)| n == name).map(|(_, x)| Value::Float(*x)).expect("known");
    let tensors: Vec<Value> = e.tensor_names().iter().map(named).collect();
    let at = PointContext { score: 0.8, at: [0, 0, 0, 5], tensors: &tensors, ..PointContext::default() };
    let value = |d: &Derived| d.eval(&at).expect("has its operands").float().expect("a float");
    assert!((value(&d_score) - 0.5 * 0.4_f64.exp()).abs() < 1e-12);
    assert!((value(&of("t").factor) - 0.8 * 0.4_f64.exp()).abs() < 1e-12);
    assert_eq!(value(&of("u").factor), 5.0);
}

#[test]
fn a_gradient_that_does_not_exist_is_refused_and_not_zero() {
    let refused = |e: Expr, parts: &[&str]| {
        let found = vjp(&built(&e)).expect_err("refused");
        let text: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(text.len(), parts.len(), "{text:?}");
        for (text, part) in text.iter().zip(parts) {
            assert!(text.contains(part), "{text}");
        }
    };
    let t = || trained("t", [1, 1, 1, 64]);
    refused(t().gt(0.0).select(score(), -1e9), &["respect to the tensor 't': it is used only in conditions"]);
    refused(
        score() + t().floor(),
        &["respect to the tensor 't': it is used only in conditions, comparisons, floor or ceil"],
    );
    refused(score() + (t() - t()), &["respect to the tensor 't': its contributions cancel"]);
    refused(score() + 0.0 * t(), &["respect to the tensor 't': its contributions cancel"]);
    refused(t(), &["respect to the score: it is not read"]);
    refused(
        score().floor() + t().ceil(),
        &["respect to the score: it is used only in", "respect to the tensor 't': it is used only in"],
    );
    refused(causal(), &["only floats have one"]);
    refused(key() + 1, &["only floats have one"]);
    let ids = tensor("ids", TensorSpec::new(DType::I32, [1, 1, 1, 64]).with_grad());
    assert!((score() * ids).build().is_err(), "an integer tensor has no gradient");
    let none = derivative(&built(&score()), Wrt::Tensor(TensorId(0))).expect_err("no such tensor");
    assert_eq!(none, DeriveError::NoSuchTensor { tensor: TensorId(0), count: 0 });
    // A single derivative may be zero, and then is marked as such.
    assert!(derivative(&built(&score().floor()), Wrt::Score).expect("a float").is_zero());
}

#[test]
fn conventions_hold_at_points_without_a_derivative() {
    assert_eq!(slope(&score().abs(), 0.0), 0.0);
    assert_eq!(slope(&score().relu(), 0.0), 0.0);
    assert_eq!(slope(&score().max(0.0), 0.0), 0.0);
    assert_eq!(slope(&score().min(1.0), 1.0), 0.0);
    let tie = (score() * 3.0).max(score());
    assert_eq!((slope(&tie, 0.0), built(&tie).to_string().as_str()), (3.0, "max(score, score * 3.0)"));
    assert_eq!(slope(&score().elu(), 0.0), 1.0);
    assert_eq!(slope(&(score() + score().floor() + score().ceil()), 2.0), 1.0);
    assert_eq!(slope(&(score() % 2.0), 4.0), 1.0);
    assert_eq!(slope(&score().floor_rem(2.0), 4.0), 1.0);
    assert_eq!(slope(&scalar("x").pow(score()), 0.0), 2.0_f64.ln());
    assert_eq!(slope(&(score() - score()).pow(score()), 3.0), 0.0);
    assert_eq!(slope(&score().gt(1.0).select(score() * 5.0, score()), 1.0), 1.0);
    assert_eq!(slope(&score().ge(1.0).select(score() * 5.0, score()), 1.0), 5.0);
    assert_eq!(slope(&score().log(), 0.0), f64::INFINITY);
    assert_eq!(slope(&score().sqrt(), 0.0), f64::INFINITY);
    assert_eq!(slope(&score().reciprocal(), 0.0), f64::NEG_INFINITY);
    assert!(slope(&score().log(), f64::NAN).is_nan());
}

#[test]
fn the_arm_that_is_not_selected_does_not_affect_a_derivative() {
    let safe = score().gt(0.0).select(score().log(), score());
    assert_eq!(slope(&safe, 0.0), 1.0);
    assert_eq!(slope(&safe, -2.0), 1.0);
    // The pole is outside the selection, where the selected value does not depend on the score.
    let outer = score().gt(0.0).select(score(), 0.0).sqrt();
    assert_eq!(slope(&outer, -1.0), 0.0);
    let two = score().gt(0.0).select(score().log(), 0.0) + score().gt(1.0).select(score().log(), 0.0);
    assert_eq!(slope(&two, 0.0), 0.0);
    let masked = causal().select(score(), -1e9).exp();
    assert_eq!(slope(&(!causal()).select(score().log(), masked), 0.0), 1.0);
    // 0^0 is 1, whatever the base does.
    let power = score().pow(score() * 0.0 + scalar("x") - 2.0);
    assert_eq!(slope(&power, 0.0), 0.0);
}

#[test]
fn derivatives_are_as_simple_as_by_hand() {
    let text = |e: Expr| derivative(&built(&e), Wrt::Score).expect("a float").to_string();
    assert_eq!(text(score()), "1.0");
    assert_eq!(text(score() * 0.5 + scalar("a")), "0.5");
    assert_eq!(text(score() * score()), "score * 2.0");
    assert_eq!(text(-(-score())), "1.0");
    assert_eq!(text(score() / scalar("a")), "scalar $a: float; reciprocal($a)");
    assert_eq!(text((score() / scalar("a")) * scalar("a")), "1.0");
    assert_eq!(text(score().exp().log()), "1.0");
    assert_eq!(text(causal().select(score(), -1e9)), "select(query >= key, 1.0, 0.0)");
    assert_eq!(text(causal().select(score(), score() + 1.0)), "1.0");
    assert_eq!(text((!causal()).select(causal().select(score() * 2.0, score()), score())), "1.0");
    assert_eq!(text(score().pow(3.0)), "pow(score, 2.0) * 3.0");
    assert_eq!(text(score().sigmoid()), "let t0 = sigmoid(score); t0 - t0 * t0");
    let applied = |e: Expr| derivative(&built(&e), Wrt::Score).expect("a float").applied().to_string();
    assert_eq!(applied(score()), "upstream");
    assert_eq!(applied(score() / scalar("a")), "scalar $a: float; upstream / $a");
    assert_eq!(applied(-score()), "-upstream");
    assert_eq!(applied(causal().select(score(), -1e9)), "select(query >= key, upstream, 0.0)");
    assert_eq!(
        applied(causal().select(softcap(score(), scalar("c")), -1e9)),
        "scalar $c: float; let t0 = tanh(score / $c); select(query >= key, upstream - upstream * (t0 * t0), 0.0)"
    );
}

#[test]
fn simplifying_keeps_the_sign_of_a_division_by_zero() {
    let e = built(&(-score() / -(key().to_float())));
    let at = PointContext { score: 0.5, ..PointContext::default() };
    assert_eq!(e.eval(&at), Ok(Value::Float(f64::NEG_INFINITY)));
    assert_eq!(simplified(&e).eval(&at), e.eval(&at));
}

#[test]
fn the_first_operand_of_a_derivative_varies_over_the_scores() {
    // In a backward, cuDNN refuses a pointwise operation whose first operand is a scalar or an input tensor.
    let slopes = trained("slopes", [1, 8, 1, 1]);
    let e = alibi_with(softcap(score(), scalar("cap")) * scalar("gain"), slopes).sigmoid() / scalar("temperature");
    let backward = vjp(&built(&e)).expect("a backward");
    let factors = std::iter::once(&backward.d_score).chain(backward.d_tensors.iter().map(|g| &g.factor));
    for factor in factors {
        let applied = factor.applied();
        let mut varies = vec![false; applied.nodes().len()];
        for (at, &node) in applied.nodes().iter().enumerate() {
            let leaf = matches!(node, Node::Score | Node::Upstream | Node::Index(_));
            varies[at] = leaf || node.operands().any(|id| varies[id.at()]);
            let first = match node {
                Node::Unary(_, a) | Node::Binary(_, a, _) => Some(a),
                _ => None,
            };
            assert!(first.is_none_or(|a| varies[a.at()] || !varies[at]), "node {at} of {applied}");
        }
    }
}

#[test]
fn an_own_backward_is_accepted_only_if_it_is_right() {
    let forward = built(&softcap(score(), scalar("cap")));
    let t = (score() / scalar("cap")).tanh();
    let accepted = check_override(&forward, &built(&(1.0 - &t * &t)), Tolerance::default()).expect("right");
    let at = PointContext { score: 3.0, scalars: &[Value::Float(5.0)], ..PointContext::default() };
    let derived = vjp(&forward).expect("a backward").d_score;
    let (own, ours) = (accepted.eval(&at).expect("a value"), derived.eval(&at).expect("a value"));
    assert!((own.float().expect("a float") - ours.float().expect("a float")).abs() < 1e-12);
    for wrong in [constant(1.0), 1.0 + &t * &t, (1.0 - &t * &t) / scalar("cap"), score() * 0.0] {
        let refusal = check_override(&forward, &built(&wrong), Tolerance::default()).expect_err("wrong");
        assert!(matches!(&refusal, OverrideError::Disagrees { operands, .. } if operands[0].0 == "cap"), "{refusal}");
    }
    let foreign = check_override(&forward, &built(&(score() * scalar("other"))), Tolerance::default());
    assert_eq!(foreign, Err(OverrideError::ForeignOperand { name: "other".into() }));
    let foreign = check_override(&forward, &built(&(score() * int_scalar("cap"))), Tolerance::default());
    assert_eq!(foreign, Err(OverrideError::ForeignOperand { name: "cap".into() }));
    let no_float = check_override(&forward, &built(&causal()), Tolerance::default());
    assert_eq!(no_float, Err(OverrideError::NotAFloat { which: "own backward", given: Ty::Bool }));
    let rough = built(&(score() * 1e6).sin());
    let undecided = check_override(&rough, &built(&constant(0.0)), Tolerance::default());
    assert!(matches!(undecided, Err(OverrideError::Undecided { compared: 0, .. })), "{undecided:?}");
}

#[test]
fn an_own_backward_is_matched_by_name_and_keeps_the_ids_of_the_forward() {
    let bias = tensor("bias", TensorSpec::new(DType::F32, [1, 1, 4, 4]).with_grad());
    let forward = built(&(score() * scalar("b") + scalar("a") * bias));
    let own = built(&(scalar("b") * (score() - score() + 1.0)));
    let accepted = check_override(&forward, &own, Tolerance::default()).expect("right");
    assert_eq!(accepted.scalars(), forward.scalars());
    assert!(accepted.contains(Node::Scalar(forward.scalar_named("b").expect("there"))));
    assert!(!accepted.contains(Node::Scalar(forward.scalar_named("a").expect("there"))));
}

#[test]
fn derivatives_that_grow_too_large_are_refused() {
    // Twenty chains of two hundred activations, each with a derivative of about twenty operations.
    let chain = |start: i32| (0..200).fold(score() * start as f32, |e, _| e.gelu_tanh());
    let e = built(&(1..21).map(chain).reduce(|a, b| a + b).expect("some"));
    assert_eq!(vjp(&e), Err(vec![DeriveError::TooLarge { limit: MAX_DERIVED_NODES }]));
    let chain = built(&chain(1));
    assert!(vjp(&chain).is_ok());
}
