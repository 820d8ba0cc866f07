//! The number type of the computation: float64 for the oracle, float32 to run attention without a GPU.

use std::ops::{Add, AddAssign, Div, Mul, Sub};

/// A floating-point type for the computation.
pub trait Real:
    Copy
    + Send
    + Sync
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + std::fmt::Debug
{
    /// Zero.
    const ZERO: Self;
    /// Minus infinity, the score of a masked key.
    const MASKED: Self;

    /// The nearest number of this type.
    fn from_f64(x: f64) -> Self;
    /// The number as float64, exactly.
    fn f64(self) -> f64;
    /// `e` to this power.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Whether it is NaN.
    fn is_nan(self) -> bool;
}

macro_rules! real {
    ($t:ty) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const MASKED: Self = <$t>::NEG_INFINITY;

            #[inline]
            fn from_f64(x: f64) -> Self {
                x as $t
            }

            #[inline]
            fn f64(self) -> f64 {
                f64::from(self)
            }

            #[inline]
            fn exp(self) -> Self {
                <$t>::exp(self)
            }

            #[inline]
            fn ln(self) -> Self {
                <$t>::ln(self)
            }

            #[inline]
            fn is_nan(self) -> bool {
                <$t>::is_nan(self)
            }
        }
    };
}

real!(f64);
real!(f32);
