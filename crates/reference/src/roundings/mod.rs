//! How far a launch may be off: the roundings of kernels, followed through the numbers of one attention.
//!
//! A bound relative to a whole output hides one wrong row among thousands, and is too tight where large terms cancel.
//! So every element has bounds of its own. Kernels round probabilities and gradients of scores to 16 bits between
//! products, keep about 21 bits of sums in tensor cores, and read O and Stats as the forward has rounded them. Errors
//! of different keys are independent and add as variances ([`ErrorPart::variance`]); what a row has in common
//! ([`ErrorPart::common`]) is its log-sum-exp, the sum of `dO ∘ O`, and the bias of running sums.

mod backward;
mod forward;
mod judge;
mod row;

use qkvault_graph::{Attention, DType, Pass, Role, Valid};

pub use self::judge::Judged;
use crate::outputs::ExactOutput;
use crate::setup::Setup;
use crate::{Inputs, ReferenceError};

/// Relative error of a product in a tensor core, whose sums keep fewer bits than f32.
const PRODUCT: f64 = 1.0 / (1 << 21) as f64;
/// Relative error of an operation in f32.
const SINGLE: f64 = 1.0 / (1 << 23) as f64;
/// Relative error of an approximate function, as `tanh.approx` has it.
const APPROXIMATE: f64 = 1.0 / (1 << 11) as f64;
/// Relative error of an exponential: FlashAttention-4 computes some with a polynomial of degree 3.
const EXPONENTIAL: f64 = 1.0 / (1 << 14) as f64;

/// The smallest normal number of f32: kernels flush smaller ones to zero.
const FLUSHED: f64 = f32::MIN_POSITIVE as f64;

/// The half step of a 16-bit type, relative to a number; and its half step near zero.
const fn steps(dtype: DType) -> [f64; 2] {
    match dtype {
        DType::F16 => [1.0 / (1 << 11) as f64, 1.0 / (1 << 25) as f64],
        DType::BF16 => [1.0 / (1 << 8) as f64, FLUSHED],
        _ => [SINGLE, FLUSHED],
    }
}

/// The variance of one rounding, for its largest error.
fn variance(largest: f64) -> f64 {
    largest * largest / 3.0
}

/// What is known of the errors of one output.
struct ErrorPart {
    role: Role,
    /// The sum of the variances of independent errors, for each element.
    variance: ExactOutput,
    /// The largest error that a row has in common, for each element.
    common: ExactOutput,
}

impl ErrorPart {
    fn new(a: &Attention, role: Role, inputs: &Inputs, setup: &Setup<'_>) -> Result<ErrorPart, ReferenceError> {
        let output = || ExactOutput::new(a, role, inputs, &setup.lens);
        Ok(ErrorPart { role, variance: output()?, common: output()? })
    }

    /// Sets the errors of one row.
    fn put(&mut self, (b, h, s): (usize, usize, usize), row: &[RoundingError]) {
        self.variance.put(b, h, s, row.iter().map(|error| error.variance));
        self.common.put(b, h, s, row.iter().map(|error| error.common));
    }

    /// Adds to the errors of a sum at an address.
    fn add(&mut self, at: usize, error: RoundingError) {
        self.variance.add(at, error.variance);
        self.common.add(at, error.common);
    }
}

/// The errors of one number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RoundingError {
    variance: f64,
    common: f64,
}

impl std::ops::AddAssign for RoundingError {
    fn add_assign(&mut self, other: RoundingError) {
        self.variance += other.variance;
        self.common += other.common;
    }
}

/// How far each element of each output of one launch may be off.
pub struct Roundings(Vec<ErrorPart>);

impl Roundings {
    /// Follows the roundings of a 16-bit attention.
    ///
    /// # Errors
    ///
    /// The errors of [`crate::forward`] and [`crate::backward`]; [`ReferenceError::NotModelled`] in 8 bits.
    pub fn for_attention(attention: &Valid, inputs: &Inputs) -> Result<Roundings, ReferenceError> {
        let a = attention.get();
        if a.has_narrow_products() {
            return Err(ReferenceError::NotModelled {
                what: "the roundings of an attention in 8 bits",
                why: "its description has them",
            });
        }
        crate::memory::for_outputs(a)?;
        let setup = Setup::new(a, inputs)?;
        match a.pass {
            Pass::Forward => forward::follow(a, inputs, &setup),
            Pass::Backward(_) => backward::follow(a, inputs, &setup),
        }
        .map(Roundings)
    }

    /// Judges what a launch wrote to an output; `None` for an output whose roundings are not known.
    #[must_use]
    pub fn judge(&self, expected: &ExactOutput, written: &crate::Buffer) -> Option<Judged> {
        let part = self.0.iter().find(|part| part.role == expected.role())?;
        Some(judge::judge(part, expected, written))
    }
}

#[cfg(test)]
mod tests;
