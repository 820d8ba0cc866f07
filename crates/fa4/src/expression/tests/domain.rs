//! Every operation over its whole domain, its value and its derivative.

use qkvault_graph::arbitrary::domain;
use qkvault_graph::expr::parse_expr;

use super::*;

/// Where words are documented to differ: 1 to a power that is not finite, minus infinity to a fractional one.
fn is_documented(text: &str, score: f64) -> bool {
    let Some((base, exponent)) = text.strip_prefix("pow(").and_then(|pair| pair.strip_suffix(')')?.split_once(", "))
    else {
        return false;
    };
    let number = |operand: &str| match operand {
        "score" => score,
        "exp(1000.0)" => f64::INFINITY,
        "(-exp(1000.0))" => f64::NEG_INFINITY,
        "sqrt(-1.0)" => f64::NAN,
        other => other.parse().expect("a number"),
    };
    let (base, exponent) = (number(base), number(exponent));
    base.abs() == 1.0 && !exponent.is_finite() || base == f64::NEG_INFINITY && exponent.fract() != 0.0
}

/// What differs of all cases at all scores, with the upstream gradient 1.
fn apart(texts: &[String], case: impl Fn(&ScoreExpr) -> Option<PythonCase>) -> Vec<String> {
    let read = |text: &String| parse_expr(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let (texts, cases): (Vec<&String>, Vec<PythonCase>) =
        texts.iter().filter_map(|text| Some((text, case(&read(text))?))).unzip();
    let places = domain::NUMBERS.map(|score| ([0; 4], [7, 9], f64::from(score), 1.0));
    let mut apart = Vec::new();
    for (text, values) in texts.into_iter().zip(run_at(&cases, &places, |case| given(case, &places))) {
        for ((found, expected), (.., score, _)) in values.into_iter().zip(places) {
            // Beyond the largest float32 are infinities.
            if !near(found, f64::from(expected as f32)) && !is_documented(text, score) && !overflows(text, score) {
                apart.push(format!("{text} at {score}: {found}, {expected} expected"));
            }
        }
    }
    apart
}

#[test]
fn every_operation_computes_what_it_means_over_its_whole_domain() {
    let apart = apart(&domain::of_every_operation(), |e| Some(PythonCase::modification(e, 1)));
    assert!(apart.is_empty(), "{} differ: {:#?}", apart.len(), &apart[..apart.len().min(40)]);
}

/// A slope that takes the reciprocal of a number of which float32 does not hold it.
fn overflows(text: &str, score: f64) -> bool {
    text == "pow(score, 1e-20)" && score.abs() < 1e-38
}

#[test]
fn derivatives_compute_what_they_mean_over_the_whole_domain() {
    let texts: Vec<String> = domain::of_every_operation().into_iter().filter(|text| !text.contains("select")).collect();
    let apart = apart(&texts, |e| PythonCase::gradient(e, 1));
    assert!(apart.is_empty(), "{} differ: {:#?}", apart.len(), &apart[..apart.len().min(40)]);
}

#[test]
fn a_sigmoid_far_below_zero_is_no_constant() {
    let text = ["log(sigmoid(score))".to_owned()];
    let cases: Vec<PythonCase> =
        text.iter().map(|t| PythonCase::modification(&parse_expr(t).expect("reads"), 1)).collect();
    let places = [-20.0, -40.0, -80.0].map(|score| ([0; 4], [7, 9], score, 1.0));
    for (found, expected) in run_at(&cases, &places, |case| given(case, &places)).concat() {
        assert!(near(found, expected), "{found}, {expected} expected");
    }
}
