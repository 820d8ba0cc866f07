//! Every function of the library against its plain definition, at every point of small score matrices.

use qkvault_graph::DType;
use qkvault_graph::expr::library::*;
use qkvault_graph::expr::*;

/// One point: batch, head, query, key, and the lengths of that sequence.
#[derive(Clone, Copy)]
struct At {
    b: i32,
    h: i32,
    q: i32,
    k: i32,
    q_len: i32,
    k_len: i32,
}

impl At {
    /// The position of the query among the keys of its sequence.
    fn own(self) -> i32 {
        self.q + self.k_len - self.q_len
    }
}

const SCORE: f64 = 0.75;

/// Every point of two sequences of up to 9 queries and 12 keys, with several pairs of lengths.
fn points() -> Vec<At> {
    let mut points = Vec::new();
    for (q_len, k_len) in [(9, 12), (12, 9), (7, 7), (1, 12), (0, 3)] {
        for b in 0..2 {
            for h in 0..3 {
                for q in 0..12 {
                    for k in 0..12 {
                        points.push(At { b, h, q, k, q_len, k_len });
                    }
                }
            }
        }
    }
    points
}

fn value(expr: &ScoreExpr, at: At, scalars: &[Value], tensors: &[Value]) -> Value {
    let At { b, h, q, k, q_len, k_len } = at;
    let context =
        PointContext { score: SCORE, upstream: 0.0, at: [b, h, q, k], lengths: [q_len, k_len], scalars, tensors };
    expr.eval(&context).expect("operands have values")
}

/// Compares a predicate with its definition at every point.
fn keeps(predicate: &Expr, tensors: impl Fn(At) -> Vec<Value>, definition: impl Fn(At) -> bool) {
    let expr = predicate.build_mask_mod().expect("a predicate");
    for at in points() {
        let At { b, h, q, k, q_len, k_len } = at;
        let found = value(&expr, at, &[], &tensors(at));
        assert_eq!(found, Value::Bool(definition(at)), "{expr} at {:?}", [b, h, q, k, q_len, k_len]);
    }
}

/// Compares a score modification with its definition at every point.
fn gives(modification: &Expr, scalars: &[Value], tensors: impl Fn(At) -> Vec<Value>, definition: impl Fn(At) -> f64) {
    let expr = modification.build_score_mod().expect("a score");
    for at in points() {
        let found = value(&expr, at, scalars, &tensors(at)).float().expect("a float");
        let expected = definition(at);
        assert!((found - expected).abs() <= 1e-12 * (1.0 + expected.abs()), "{expr}: {found}, not {expected}");
    }
}

fn none(_: At) -> Vec<Value> {
    Vec::new()
}

#[test]
fn causal_masks_follow_their_definition() {
    keeps(&top_left_causal(), none, |p| p.k <= p.q);
    keeps(&causal(), none, |p| p.k <= p.own());
}

#[test]
fn windows_follow_their_definition() {
    for length in 1..5 {
        keeps(&top_left_window(length), none, |p| p.k <= p.q && p.k > p.q - length);
        keeps(&sliding_window(length), none, |p| p.k <= p.own() && p.k > p.own() - length);
        for dilation in 1..4 {
            let seen = |p: At| (0..length).any(|step| p.k == p.own() - step * dilation);
            keeps(&dilated_window(length, dilation), none, seen);
        }
    }
}

#[test]
fn padding_follows_its_definition() {
    keeps(&padding(), none, |p| p.q < p.q_len && p.k < p.k_len);
}

#[test]
fn prefix_lm_follows_its_definition() {
    let prefix = |b: i32| 3 + 4 * b;
    keeps(&prefix_lm("prefix", 2), |p| vec![Value::Int(prefix(p.b))], |p| p.k < prefix(p.b) || p.k <= p.own());
}

#[test]
fn document_mask_follows_its_definition() {
    let document = |b: i32, position: i32| (position + b) / 4;
    let mask = document_mask("query_ids", "key_ids", 2, 12, 12);
    let tensors = |p: At| {
        // In the order of the tables, which the canonical form decides.
        let expr = mask.build().expect("a predicate");
        let of = |name: &String| if name == "key_ids" { document(p.b, p.k) } else { document(p.b, p.q) };
        expr.tensor_names().iter().map(|name| Value::Int(of(name))).collect()
    };
    keeps(&mask, tensors, |p| document(p.b, p.q) == document(p.b, p.k));
}

#[test]
fn predicates_compose() {
    keeps(&(causal() & padding()), none, |p| p.k <= p.own() && p.q < p.q_len && p.k < p.k_len);
    keeps(&(!causal() | sliding_window(2)), none, |p| p.k > p.own() || p.k > p.own() - 2);
}

#[test]
fn softcap_follows_its_definition() {
    gives(&softcap(score(), scalar("cap")), &[Value::Float(1.5)], none, |_| 1.5 * (SCORE / 1.5).tanh());
    gives(&softcap(score(), 1.5), &[], none, |_| 1.5 * (SCORE / 1.5).tanh());
}

#[test]
fn alibi_follows_its_definition() {
    let slopes = AlibiSlopes::for_heads(3).values(3);
    let slope = |h: i32| f64::from(slopes[h as usize]);
    gives(
        &alibi(score(), 3),
        &[],
        |p| vec![Value::Float(slope(p.h))],
        |p| SCORE - slope(p.h) * f64::from(p.own() - p.k),
    );
    gives(&alibi_with(score(), 0.25), &[], none, |p| SCORE - 0.25 * f64::from(p.own() - p.k));
    // The second of two halves of 6 heads.
    let half = AlibiSlopes::for_heads(6).from_head(3);
    let values = AlibiSlopes::for_heads(6).values(6);
    let slope = |h: i32| f64::from(values[3 + h as usize]);
    let distance = |p: At| f64::from(p.own() - p.k);
    gives(&alibi_of(score(), 3, half), &[], |p| vec![Value::Float(slope(p.h))], |p| SCORE - slope(p.h) * distance(p));
}

#[test]
fn alibi_slopes_equal_the_papers() {
    let alibi_slopes = |heads: usize| AlibiSlopes::for_heads(heads as u32).values(heads as i64);
    assert_eq!(alibi_slopes(8), [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]);
    // Heads beyond a power of two take every other slope of twice that number of heads.
    for heads in 1..70_usize {
        let slopes = alibi_slopes(heads);
        assert_eq!(slopes.len(), heads);
        let n = (1..=heads).rev().find(|n| n.is_power_of_two()).expect("1 is one");
        let whole: Vec<f32> = alibi_slopes(2 * n);
        let expected: Vec<f32> = alibi_slopes(n).into_iter().chain(whole.into_iter().step_by(2)).take(heads).collect();
        assert_eq!(slopes, expected, "{heads} heads");
    }
    assert!(alibi_slopes(0).is_empty());
}

#[test]
fn biases_follow_their_definition() {
    let bias_of = |p: At| f64::from(p.h * 100 + p.q * 10 + p.k);
    let relative = relative_bias(score(), "bias", DType::BF16, [3, 12, 12], Grad::Needed);
    gives(&relative, &[], |p| vec![Value::Float(bias_of(p))], |p| SCORE + bias_of(p));
    assert_eq!(relative.build().expect("a score").tensors()[0].dims, [1, 3, 12, 12]);
    let per_batch = TensorSpec::new(DType::F32, [2, 1, 1, 12]);
    gives(
        &bias(score(), "bias", per_batch),
        &[],
        |p| vec![Value::Float(f64::from(p.b - p.k))],
        |p| SCORE + f64::from(p.b - p.k),
    );
}

#[test]
fn soft_window_follows_its_definition() {
    gives(&soft_window(score(), 2, scalar("slope")), &[Value::Float(0.5)], none, |p| {
        SCORE - 0.5 * f64::from(((p.own() - p.k).abs() - 2).max(0))
    });
}

/// This file calls each function in a test of its definition, and once more in the list of backwards if it is a score
/// modification.
#[test]
fn every_function_of_the_library_is_compared_with_its_definition() {
    let tests = include_str!("expr_library.rs").split("fn every_function").next().unwrap_or_default();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_called =
        |name: &str| tests.match_indices(&format!("{name}(")).any(|(at, _)| !tests[..at].ends_with(is_word));
    let forgotten = SCORE_MODS.iter().chain(MASK_MODS).filter(|name| !is_called(name));
    assert_eq!(forgotten.collect::<Vec<_>>(), [&""; 0]);
}

#[test]
fn every_modification_of_the_library_has_a_backward() {
    let gradient = |dims| TensorSpec::new(DType::F32, dims).with_grad();
    let modifications = [
        ("softcap", softcap(score(), scalar("cap"))),
        ("alibi", alibi(score(), 3)),
        ("alibi_of", alibi_of(score(), 3, AlibiSlopes::for_heads(6))),
        ("alibi_with", alibi_with(score(), tensor("slopes", gradient([1, 3, 1, 1])))),
        ("bias", bias(score(), "bias", gradient([2, 1, 12, 12]))),
        ("relative_bias", relative_bias(score(), "bias", DType::BF16, [3, 12, 12], Grad::Needed)),
        ("soft_window", soft_window(score(), 2, tensor("slope", gradient([1, 3, 1, 1])))),
        (
            "alibi_with of a softcap",
            alibi_with(softcap(score(), scalar("cap")), tensor("slopes", gradient([1, 3, 1, 1]))),
        ),
    ];
    let forgotten = SCORE_MODS.iter().filter(|name| modifications.iter().all(|(listed, _)| listed != *name));
    assert_eq!(forgotten.collect::<Vec<_>>(), [&""; 0]);
    for (_, modification) in modifications {
        let expr = modification.build_score_mod().expect("a score");
        let backward = vjp(&expr).expect("every gradient exists");
        let wanted = expr.tensors().iter().filter(|t| t.grad == Grad::Needed).count();
        assert_eq!(backward.d_tensors.len(), wanted, "{expr}");
    }
}
