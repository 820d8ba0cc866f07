//! Score modifications, which apply before the mask.

use super::super::alibi::AlibiSlopes;
use super::super::handle::{Expr, key, tensor};
use super::super::operand::{Grad, TensorSpec};
use super::super::position::position;
use crate::DType;

/// Name of the tensor of slopes that [`alibi`] reads. It is only for display: [`TensorSpec::alibi`] marks a tensor of
/// slopes.
pub const ALIBI_SLOPES: &str = "alibi_slopes";

/// `tanh(score / cap) * cap`: limits scores to the range from `-cap` to `cap`. With a scalar as cap, its value is not
/// part of a key.
#[must_use]
pub fn softcap(score: impl Into<Expr>, cap: impl Into<Expr>) -> Expr {
    let cap = cap.into();
    (score.into() / &cap).tanh() * cap
}

/// ALiBi: `score + slope * (key - position)` with one slope per head, the f32 device tensor `alibi_slopes` with dims
/// (1, heads, 1, 1).
///
/// The slopes are the usual ones of a model with this many heads ([`AlibiSlopes::for_heads`]); for a model with another
/// maximum, or with heads on several GPUs, see [`alibi_of`]. Use it in causal attention, where the distance is never
/// positive.
#[must_use]
pub fn alibi(score: impl Into<Expr>, heads: i64) -> Expr {
    alibi_of(score, heads, AlibiSlopes::for_heads(u32::try_from(heads).unwrap_or(u32::MAX)))
}

/// Like [`alibi`], with the slopes of a model: `heads` is the number of heads of this attention.
///
/// ```
/// use qkvault_graph::expr::{AlibiSlopes, library, score};
///
/// // The second of two GPUs that share 32 heads, of a model whose `alibi_bias_max` is 16.
/// let slopes = AlibiSlopes::for_heads(32).from_head(16).with_bias_max(16.0)?;
/// let modified = library::alibi_of(score(), 16, slopes).build_score_mod()?;
/// assert!(modified.to_string().contains("f32[1, 16, 1, 1] alibi 32 from 16 max 16.0"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn alibi_of(score: impl Into<Expr>, heads: i64, slopes: AlibiSlopes) -> Expr {
    alibi_with(score, tensor(ALIBI_SLOPES, TensorSpec::of_slopes(heads, slopes)))
}

/// Like [`alibi`], with other slopes: the caller's own tensor (with a gradient, for example), a scalar or a constant.
#[must_use]
pub fn alibi_with(score: impl Into<Expr>, slopes: impl Into<Expr>) -> Expr {
    score.into() + slopes.into() * (key() - position())
}

/// `score + bias` with a device tensor that broadcasts over (batch, head, query, key).
#[must_use]
pub fn bias(score: impl Into<Expr>, name: &str, spec: TensorSpec) -> Expr {
    score.into() + tensor(name, spec)
}

/// A learned bias per head and pair of positions, with dims (1, heads, queries, keys), and with its gradient if
/// requested. Its rows are the rows of the launch: for one query or a piece of a prompt, give the rows of these
/// queries.
///
/// A bias that depends on the clipped or bucketed distance (T5) needs a gather, which neither this language nor cuDNN's
/// pointwise operations have. Expand the table over the positions first, and give the result here. The gradient of the
/// table is the gradient of this tensor, summed over the positions of each bucket.
#[must_use]
pub fn relative_bias(
    score: impl Into<Expr>,
    name: &str,
    dtype: DType,
    [heads, queries, keys]: [i64; 3],
    grad: Grad,
) -> Expr {
    bias(score, name, TensorSpec { grad, ..TensorSpec::new(dtype, [1, heads, queries, keys]) })
}

/// A window with a soft border: `score - slope * max(|position - key| - width, 0)`. Keys within `width` are unchanged,
/// and those beyond it fade.
#[must_use]
pub fn soft_window(score: impl Into<Expr>, width: i32, slope: impl Into<Expr>) -> Expr {
    let beyond = ((position() - key()).abs() - width).max(0);
    score.into() - slope.into() * beyond
}
