//! Float constants: finite float32 numbers that are equal if their bits are equal.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A float32 constant that is finite and not minus zero, so that equal values have equal bits.
///
/// NaN is refused because it equals nothing. Infinities are refused because expressions should not compute with masked
/// scores (infinity times a derivative of 0 is NaN): to hide a key, use the mask of the attention; a strong penalty is
/// a large finite number such as `-1e9`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct FloatConst(u32);

/// The error for a float that cannot be a constant: NaN or an infinity.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "{given} cannot be a constant of a score expression: a finite number is needed (to hide scores, use the mask of the attention)"
)]
pub struct NotFinite {
    /// The number.
    pub given: f32,
}

impl FloatConst {
    /// 0.
    pub const ZERO: FloatConst = FloatConst(0);
    /// 1.
    pub const ONE: FloatConst = FloatConst(0x3f80_0000);

    /// The constant of a finite number; minus zero becomes zero.
    ///
    /// # Errors
    /// [`NotFinite`] for NaN and infinities.
    pub fn new(value: f32) -> Result<Self, NotFinite> {
        if value.is_finite() {
            // Adding zero turns -0.0 into 0.0 and keeps every other number.
            Ok(FloatConst((value + 0.0).to_bits()))
        } else {
            Err(NotFinite { given: value })
        }
    }

    /// The number.
    #[must_use]
    pub const fn value(self) -> f32 {
        f32::from_bits(self.0)
    }

    /// Its IEEE 754 bits, which represent it in canonical bytes and in serde forms.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for FloatConst {
    type Error = NotFinite;

    fn try_from(bits: u32) -> Result<Self, NotFinite> {
        FloatConst::new(f32::from_bits(bits))
    }
}

impl From<FloatConst> for u32 {
    fn from(value: FloatConst) -> u32 {
        value.0
    }
}

impl fmt::Debug for FloatConst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.value())
    }
}

impl PartialOrd for FloatConst {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FloatConst {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.value().total_cmp(&other.value())
    }
}
