//! Score modifications: what is done to a score before it is masked.

use super::super::handle::{Expr, key, query, tensor};
use super::super::operand::{Grad, TensorSpec};
use crate::DType;

/// Name of the tensor of slopes that [`alibi`] reads.
pub const ALIBI_SLOPES: &str = "alibi_slopes";

/// `tanh(score / cap) * cap`: scores are held between `-cap` and `cap`. The cap is best a slot, so that its value is no part of a key.
#[must_use]
pub fn softcap(score: impl Into<Expr>, cap: impl Into<Expr>) -> Expr {
    let cap = cap.into();
    (score.into() / &cap).tanh() * cap
}

/// ALiBi: `score + slope * (key - query)` with one slope per head, the device tensor `alibi_slopes` of f32 with dims (1, heads, 1, 1).
///
/// The usual slopes are [`alibi_slopes`]. Meant for causal attention, where the distance is never positive.
#[must_use]
pub fn alibi(score: impl Into<Expr>, heads: u64) -> Expr {
    alibi_with(score, tensor(ALIBI_SLOPES, TensorSpec::new(DType::F32, [1, heads, 1, 1])))
}

/// As [`alibi`], with slopes of another form: a tensor of one's own (with a gradient, say), a slot, a constant.
#[must_use]
pub fn alibi_with(score: impl Into<Expr>, slopes: impl Into<Expr>) -> Expr {
    score.into() + slopes.into() * (key() - query())
}

/// The slopes of ALiBi for so many heads.
///
/// With n the largest power of two not above `heads`, the first n slopes are `2^(-8 i / n)` for i from 1, and the others are every other
/// slope of 2n heads: `2^(-4 (2 j + 1) / n)` for j from 0 (facts of the cuDNN frontend, `cudnn_frontend_utils.h`).
#[must_use]
pub fn alibi_slopes(heads: usize) -> Vec<f32> {
    if heads == 0 {
        return Vec::new();
    }
    let n = 1_usize << heads.ilog2();
    let slope = |exponent: f64| (-exponent / n as f64).exp2() as f32;
    let first = (1..=n).map(|i| slope(8.0 * i as f64));
    let others = (0..heads - n).map(|j| slope(4.0 * (2 * j + 1) as f64));
    first.chain(others).collect()
}

/// `score + bias` with a device tensor of any dims that broadcast over (batch, head, query, key).
#[must_use]
pub fn bias(score: impl Into<Expr>, name: &str, spec: TensorSpec) -> Expr {
    score.into() + tensor(name, spec)
}

/// A learned bias per head and pair of positions, of dims (1, heads, queries, keys), with its gradient if asked for.
///
/// Biases that are looked up by clipped or bucketed distance (T5) need a gather, which neither this language nor cuDNN's pointwise
/// operations have: spread the table over the positions first and give the result here; its gradient, summed over the
/// positions of each bucket, is that of the table.
#[must_use]
pub fn relative_bias(
    score: impl Into<Expr>,
    name: &str,
    dtype: DType,
    [heads, queries, keys]: [u64; 3],
    grad: Grad,
) -> Expr {
    bias(score, name, TensorSpec { dims: [1, heads, queries, keys], dtype, grad })
}

/// A window with a soft border: `score - slope * max(|query - key| - width, 0)`. Keys within `width` are untouched, those beyond it fade.
#[must_use]
pub fn soft_window(score: impl Into<Expr>, width: i32, slope: impl Into<Expr>) -> Expr {
    let beyond = ((query() - key()).abs() - width).max(0);
    score.into() - slope.into() * beyond
}
