//! The error of this crate.

use std::fmt;

use qkvault::exec::LaunchError;
use qkvault::graph::Refusal;

/// Why an attention was not computed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A tensor has another type, device or shape than is needed.
    Tensor(String),
    /// The attention contradicts itself, or cannot run here; with the reasons.
    Refused(Box<Refusal>),
    /// There is no plan, no cuDNN, or no GPU.
    Runtime(Box<qkvault::Error>),
    /// cuDNN or the driver refused the launch.
    Launch(Box<LaunchError>),
    /// burn's backend or the driver could not do what a launch needs: memory, addresses, waiting.
    Device(String),
    /// The oracle refused its inputs.
    #[cfg(feature = "cpu")]
    Oracle(Box<qkvault::reference::ReferenceError>),
}

impl Error {
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
            Error::Tensor(text) | Error::Device(text) => f.write_str(text),
            Error::Refused(refusal) => refusal.fmt(f),
            Error::Runtime(error) => error.fmt(f),
            Error::Launch(error) => error.fmt(f),
            #[cfg(feature = "cpu")]
            Error::Oracle(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

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

#[cfg(feature = "cpu")]
impl From<qkvault::reference::ReferenceError> for Error {
    fn from(error: qkvault::reference::ReferenceError) -> Error {
        Error::Oracle(Box::new(error))
    }
}
