//! ALiBi's slopes as part of the description: the heads of the model that they belong to, and their steepness.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::constant::{FloatConst, NotFinite};
use super::limits::{MAX_EXTENT, MAX_SLOPES};

/// The largest exponent in the paper and in most models.
const USUAL_MAX: u32 = 0x4100_0000;

/// The slopes that an ALiBi tensor holds. They are part of an attention's key, so attentions with different slopes have
/// different keys; they share their plans. The code that prepares a plan puts the numbers on the GPU.
///
/// With n the largest power of two not above the model's heads, the first n slopes are `2^(-max i / n)` for i from 1,
/// and the others are every other slope of 2n heads: `2^(-max (2 j + 1) / (2 n))` for j from 0 (facts of the cuDNN
/// frontend, `cudnn_frontend_utils.h`, where the maximum is 8, and of MPT's published model, which calls it
/// `alibi_bias_max`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AlibiSlopes {
    /// Query heads of the whole model, on all its GPUs.
    pub model_heads: u32,
    /// The model's index of the attention's first head: more than 0 if several GPUs share the heads.
    pub first_head: u32,
    /// Largest exponent: the flattest of n slopes, n a power of two, is `2^-bias_max`.
    pub bias_max: FloatConst,
}

impl fmt::Display for AlibiSlopes {
    /// The form that [`parse_expr`](super::parse_expr) reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AlibiSlopes { model_heads, first_head, bias_max } = *self;
        write!(f, "alibi {model_heads}")?;
        if first_head > 0 {
            write!(f, " from {first_head}")?;
        }
        if bias_max == AlibiSlopes::for_heads(model_heads).bias_max { Ok(()) } else { write!(f, " max {bias_max:?}") }
    }
}

impl AlibiSlopes {
    /// The usual slopes of a model with this many query heads: a maximum of 8, from the first head on.
    #[must_use]
    pub fn for_heads(model_heads: u32) -> AlibiSlopes {
        let bias_max = FloatConst::try_from(USUAL_MAX).unwrap_or(FloatConst::ONE);
        AlibiSlopes { model_heads, first_head: 0, bias_max }
    }

    /// Slopes with another maximum, such as `alibi_bias_max` of MPT.
    ///
    /// # Errors
    ///
    /// [`NotFinite`]. [`Expr::build`](super::Expr::build) refuses a maximum that is not above 0.
    pub fn with_bias_max(self, bias_max: f32) -> Result<AlibiSlopes, NotFinite> {
        Ok(AlibiSlopes { bias_max: FloatConst::new(bias_max)?, ..self })
    }

    /// The slopes from this head of the model on: for the second of two GPUs that share 32 heads, 16.
    #[must_use]
    pub const fn from_head(self, first_head: u32) -> AlibiSlopes {
        AlibiSlopes { first_head, ..self }
    }

    /// Whether the model has enough heads for a tensor of `heads` heads, and these are not too many.
    pub(super) fn covers(self, heads: i64) -> bool {
        let known = i64::from(self.model_heads) <= MAX_EXTENT && self.bias_max.value() > 0.0 && heads <= MAX_SLOPES;
        known && i64::from(self.first_head) + heads <= i64::from(self.model_heads)
    }

    /// The slopes of this many heads, beginning with [`first_head`](AlibiSlopes::first_head).
    #[must_use]
    pub fn values(&self, heads: i64) -> Vec<f32> {
        if self.model_heads == 0 {
            return Vec::new();
        }
        let n = 1_u32 << self.model_heads.ilog2();
        let max = f64::from(self.bias_max.value());
        let exponent = |head: u32| match head.checked_sub(n) {
            None => max * f64::from(head + 1) / f64::from(n),
            Some(j) => max * (2.0 * f64::from(j) + 1.0) / (2.0 * f64::from(n)),
        };
        (self.first_head..self.model_heads)
            .take(usize::try_from(heads).unwrap_or(0))
            .map(|head| (-exponent(head)).exp2() as f32)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b5_slopes_follow_the_maximum_of_the_model() {
        let slopes = |max| AlibiSlopes::for_heads(32).with_bias_max(max).expect("finite").values(32);
        assert_eq!((slopes(8.0)[0], slopes(8.0)[31]), (0.840_896_4, 0.003_906_25));
        // mpt-7b-storywriter: 32 heads, a maximum of 16.
        assert_eq!((slopes(16.0)[0], slopes(16.0)[31]), (std::f32::consts::FRAC_1_SQRT_2, 2_f32.powi(-16)));
        assert!(AlibiSlopes::for_heads(4).with_bias_max(f32::NAN).is_err());
    }

    #[test]
    fn b5_heads_shared_among_gpus_have_their_part_of_the_models_slopes() {
        for heads in [32, 20] {
            let whole = AlibiSlopes::for_heads(heads).values(i64::from(heads));
            let half = heads / 2;
            let parts = [0, half].map(|first| AlibiSlopes::for_heads(heads).from_head(first).values(i64::from(half)));
            assert_eq!(parts.concat(), whole);
            assert_ne!(
                parts[0],
                AlibiSlopes::for_heads(half).values(i64::from(half)),
                "the slopes of a model of {half} heads"
            );
        }
        assert!(
            AlibiSlopes::for_heads(32).from_head(16).covers(16) && !AlibiSlopes::for_heads(32).from_head(17).covers(16)
        );
        assert!(!AlibiSlopes::for_heads(4).with_bias_max(0.0).expect("finite").covers(4));
        let most = AlibiSlopes::for_heads(i32::MAX.unsigned_abs());
        assert!(most.covers(MAX_SLOPES) && !most.covers(MAX_SLOPES + 1));
    }
}
