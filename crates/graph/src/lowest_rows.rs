//! Rows whose scores a constant of the expression makes so low that their log-sum-exp does not tell how many keys there
//! are.
//!
//! A backward computes the probabilities again, as `exp(score - log_sum_exp)`, from a log-sum-exp in float32. Of a row
//! of n equal scores `s` it is `s + ln n`, rounded to a step of float32. From `|s| = 2^17` on half a step is 2^-7, as
//! much as bf16 rounds; at -1e9 it is 32 and more than any `ln n`, so that every probability is 1 instead of 1/n.

use crate::expr::{Node, PointContext, Program, ScalarTy, Value};
use crate::{Attention, Mask};

/// Where scores are so low that half a step of float32 is a rounding of bf16.
const LOW: f64 = -131_072.0;

/// The largest number of rows, and of keys spread over a row, that are looked at.
const LOOKS: i64 = 16;

/// A row of a backward whose scores are all low whatever the operands are, because a constant of the expression is
/// selected or added there.
///
/// It looks at some rows, among them the first and the last, and at some of their keys, among them the diagonal. Where
/// a scalar or a tensor decides, no row is found.
#[must_use]
pub fn row_of_a_constant(a: &Attention) -> Option<String> {
    let expression = a.score_mod.as_ref().filter(|_| a.is_backward())?;
    let large = |node: &Node| matches!(node, Node::Float(x) if f64::from(x.value().abs()) >= -LOW);
    if !expression.nodes().iter().any(large) {
        return None;
    }
    let ((s_q, s_kv), [b, h]) = (a.seq(), [a.batch(), a.q.heads()]);
    let places = [0, b - 1].into_iter().flat_map(|b| [0, h - 1].into_iter().map(move |h| (b, h)));
    let mut rows = places.flat_map(|(b, h)| spread(s_q).map(move |row| [b, h, row]));
    rows.find_map(|[b, h, row]| {
        let near = [row + s_kv - s_q, row, row - 1, row + 1].into_iter().filter(|key| (0..s_kv).contains(key));
        let mut low = None;
        for key in near.chain(spread(s_kv)) {
            match score(a, expression, [b, h, row, key]) {
                None => {}
                Some(score) if score <= LOW => low = Some(score),
                Some(_) => return None,
            }
        }
        low.map(|score| format!("row {row}, whose scores are all near {:e} by a constant", score as f32))
    })
}

/// The first and the last index of an extent, and some between them.
fn spread(extent: i64) -> impl Iterator<Item = i64> {
    let looks = extent.min(LOOKS);
    (0..looks).map(move |n| if looks == 1 { 0 } else { n * (extent - 1) / (looks - 1) })
}

/// The modified score of a score of 0, where no mask hides it: the highest one over some values of scalars and tensors.
fn score(a: &Attention, expression: &Program, at: [i64; 4]) -> Option<f64> {
    let Mask { band, lengths: _, mask_mod } = &a.mask;
    let (s_q, s_kv) = a.seq();
    let hidden = band.is_some_and(|band| !band.keeps(at[2], at[3], s_q, s_kv))
        || mask_mod.as_ref().is_some_and(|keep| values(a, keep, at).all(|seen| seen == Value::Bool(false)));
    let number = |value: Value| value.float().unwrap_or(f64::NAN);
    let highest = |a: f64, b: f64| if a.is_nan() || a > b { a } else { b };
    if hidden { None } else { values(a, expression, at).map(number).reduce(highest) }
}

/// A program at a point for a score of 0, with some values for what a launch gives.
fn values(a: &Attention, program: &Program, at: [i64; 4]) -> impl Iterator<Item = Value> {
    let alone = program.scalars().is_empty() && program.tensors().is_empty();
    let given: &[f32] = if alone { &[0.0] } else { &[0.0, 1.0, -1.0, 1e6, -1e6] };
    let (s_q, s_kv) = a.seq();
    given.iter().filter_map(move |&x| {
        let of = |int: bool| if int { Value::Int(x as i32) } else { Value::Float(x.into()) };
        let scalars: Vec<Value> = program.scalars().iter().map(|spec| of(spec.ty == ScalarTy::Int)).collect();
        let tensors: Vec<Value> = program.tensors().iter().map(|spec| of(!spec.dtype.is_float())).collect();
        let (at, lengths) = (at.map(|i| i as i32), [s_q as i32, s_kv as i32]);
        program
            .eval(&PointContext { at, lengths, scalars: &scalars, tensors: &tensors, ..PointContext::default() })
            .ok()
    })
}

#[cfg(test)]
mod tests {
    use crate::text;

    use super::*;

    fn row(text: &str) -> Option<String> {
        row_of_a_constant(&text::parse(text).unwrap_or_else(|e| panic!("{text}: {e}")))
    }

    #[test]
    fn rows_of_a_constant_are_found_and_rows_that_see_a_key_are_not() {
        let square = |more: &str| format!("pass: backward\nq: bf16 [2,4,49,64]\n{more}");
        for (more, found) in [
            ("score_mod: select(query >= 16, score, -3.0e38)", true),
            ("score_mod: select(query >= 16, score, -1.0e9)", true),
            ("score_mod: score + select(query >= 16, 0.0, -1.0e9)", true),
            ("score_mod: select(query >= 16, score, -1.0e5)", false),
            // A causal mask as a constant: every row sees its own key.
            ("score_mod: select(key <= query, score, -1.0e9)", false),
            // With a band that hides the keys that the constant leaves, the first rows have none.
            ("mask: causal\nscore_mod: select(key >= 8, score, -1.0e9)", true),
            ("mask: causal\nscore_mod: select(key <= 8, score, -1.0e9)", false),
            ("mask_mod: key < 8\nscore_mod: select(key >= 8, score, -1.0e9)", true),
            // The last head of the last sequence alone.
            ("score_mod: select((head < 3) | (batch < 1), score, -1.0e9)", true),
            // Data decide.
            ("score_mod: tensor @keep: i32[1, 1, 49, 49]; select(@keep > 0, score, -1.0e9)", false),
            ("score_mod: tensor @bias: f32[1, 1, 49, 49]; score + @bias", false),
            ("score_mod: scalar $from: int; select(query >= $from, score, -1.0e9)", false),
            // Whatever the data are.
            ("score_mod: tensor @bias: f32[1, 1, 49, 49]; select(query >= 16, score + @bias, -1.0e9)", true),
            ("score_mod: score * 1.0e9", false),
        ] {
            assert_eq!(row(&square(more)).is_some(), found, "{more}: {:?}", row(&square(more)));
        }
        assert_eq!(row("q: bf16 [2,4,49,64]\nscore_mod: select(query >= 16, score, -3.0e38)"), None, "a forward");
        let long = "pass: backward\nq: bf16 [1,1,5000,64]\nscore_mod: select(query < 4999, score, -1.0e9)";
        assert_eq!(row(long).as_deref(), Some("row 4999, whose scores are all near -1e9 by a constant"));
    }
}
