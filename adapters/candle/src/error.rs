//! The error of this crate, and how it travels inside candle's.

use std::fmt;

use qkvault::exec::LaunchError;
use qkvault::graph::Refusal;
use qkvault::reference::ReferenceError;

/// Why an attention was not computed.
///
/// Functions of this crate return candle's error, in whose text the reasons stand. [`Error::of`] finds this one in it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A tensor has another type, device, rank, shape or place in memory than is needed.
    Tensor(String),
    /// The attention contradicts itself, or cannot run here; with the reasons.
    Refused(Box<Refusal>),
    /// A gradient was asked for that cannot be computed.
    Gradient(String),
    /// There is no plan, no cuDNN, or no GPU.
    Runtime(Box<qkvault::Error>),
    /// cuDNN or the driver refused the launch.
    Launch(Box<LaunchError>),
    /// The oracle refused its inputs.
    Oracle(Box<ReferenceError>),
    /// What a launch wrote is not what the oracle computes ([`Options::judge_launches`](crate::Options)).
    Judged(String),
}

impl Error {
    /// The error of this crate that candle's error has inside.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_qkvault::{Error, Options, attention};
    ///
    /// let q = Tensor::zeros((1, 4, 3, 8), DType::BF16, &Device::Cpu)?;
    /// let k = Tensor::zeros((1, 4, 2, 8), DType::BF16, &Device::Cpu)?; // 3 query heads over 2 key heads
    /// let error = attention(&q, &k, &k, &Options::new().cpu_oracle(true)).expect_err("heads do not divide");
    /// let refusal = Error::of(&error).and_then(Error::refusal).expect("it has reasons");
    /// println!("{}", refusal.reasons()[0].code);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    #[must_use]
    pub fn of(error: &candle_core::Error) -> Option<&Error> {
        match error {
            candle_core::Error::Cuda(inner) => inner.downcast_ref(),
            candle_core::Error::Context { inner, .. }
            | candle_core::Error::WithBacktrace { inner, .. }
            | candle_core::Error::WithPath { inner, .. } => Error::of(inner),
            _ => None,
        }
    }

    /// The reasons, each with a code, of an attention that is refused.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Error::Refused(refusal) => Some(refusal),
            Error::Runtime(error) => error.refusal(),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Tensor(text) | Error::Gradient(text) | Error::Judged(text) => f.write_str(text),
            Error::Refused(refusal) => refusal.fmt(f),
            Error::Runtime(error) => error.fmt(f),
            Error::Launch(error) => error.fmt(f),
            Error::Oracle(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Tensor(_) | Error::Gradient(_) | Error::Judged(_) => None,
            Error::Refused(refusal) => Some(&**refusal),
            Error::Runtime(error) => Some(&**error),
            Error::Launch(error) => Some(&**error),
            Error::Oracle(error) => Some(&**error),
        }
    }
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> candle_core::Error {
        // The variant of candle's that keeps an error as it is.
        candle_core::Error::Cuda(Box::new(error))
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::Refused(Box::new(refusal))
    }
}

impl From<qkvault::Error> for Error {
    fn from(error: qkvault::Error) -> Error {
        Error::Runtime(Box::new(error))
    }
}

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Error {
        Error::Launch(Box::new(error))
    }
}

impl From<ReferenceError> for Error {
    fn from(error: ReferenceError) -> Error {
        Error::Oracle(Box::new(error))
    }
}
