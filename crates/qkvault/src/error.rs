//! One error for the whole of the runtime: its kind for programs, its text for people, and the reasons inside.

use std::fmt;

use qkvault_compile::PlanError;
use qkvault_exec::cudarc::driver;
use qkvault_exec::raw::TableError;
use qkvault_exec::serving::BatchInputErrors;
use qkvault_exec::{
    BatchError, BindFailure, DeviceError, LaunchError, LoadError, NoDriver, PrepareError, PropertiesError,
    SessionError, TrainStepError, TrainingError, UpdateError, WorkspaceError,
};
use qkvault_graph::Refusal;

/// What kind of error it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no driver or no such GPU, or it cannot be used.
    Device,
    /// There is no cuDNN that can be used.
    Library,
    /// The vault cannot be opened or read.
    Vault,
    /// The attention cannot run here, or its description contradicts itself: [`Error::refusal`] has the reasons.
    Refused,
    /// The plan is not in the vault, and building it is not allowed. `qkvault warm` makes it.
    Missing,
    /// The plan could not be built.
    Build,
    /// A stored plan does not load on this machine.
    Load,
    /// The arguments of a launch, or the sizes of a step, are wrong.
    Arguments,
    /// There is too little memory on the GPU.
    Memory,
    /// cuDNN or the driver refused a launch.
    Launch,
    /// The plan is not loaded, and the stream is being captured, during which none can be loaded.
    Captured,
    /// An expression or a text form that does not parse, or whose types do not fit.
    Expression,
}

/// An error of a [`Runtime`](crate::Runtime), of its plans or of their launches.
///
/// Programs ask its [kind](Error::kind); people read its text, which says what came, what was expected and how to fix
/// it. What it was made of is [`Error::get_ref`]. Errors of descriptions, expressions and cudarc become one with `?`.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    inner: Box<dyn std::error::Error + Send + Sync>,
    refusal: Option<Box<Refusal>>,
}

impl Error {
    fn new(kind: ErrorKind, inner: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error { kind, inner: inner.into(), refusal: None }
    }

    /// The error of a compiler that could not be opened.
    pub(crate) fn build(error: String) -> Error {
        Error::new(ErrorKind::Build, error)
    }

    /// The error of a launch with a runtime for a GPU that is not here.
    pub(crate) fn elsewhere(gpu: &str) -> Error {
        let why = format!(
            "the runtime is for {gpu}, which is not here: it checks, explains and compiles; open one with \
             Runtime::open() on a host that has the GPU to launch"
        );
        Error::new(ErrorKind::Device, why)
    }

    /// The error of a pack that could not be unpacked.
    pub(crate) fn pack(file: &std::path::Path, error: &dyn fmt::Display) -> Error {
        Error::new(ErrorKind::Vault, format!("the pack {}: {error}", file.display()))
    }

    /// The error that a plan is missing, with what older versions left in the vault.
    pub(crate) fn missing_beside(error: &Error, older: &[qkvault_cache::Older]) -> Error {
        let older: Vec<String> = older.iter().map(ToString::to_string).collect();
        Error::new(ErrorKind::Missing, format!("{error}; {}", older.join("; ")))
    }

    /// The refusal, of an attention that is refused.
    pub(crate) fn into_refusal(self) -> Result<Refusal, Error> {
        match self.refusal {
            Some(refusal) => Ok(*refusal),
            None => Err(self),
        }
    }

    /// What kind of error it is.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The reasons, each with a code, of an attention that is refused.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_deref()
    }

    /// The error that it was made of.
    #[must_use]
    pub fn get_ref(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        &*self.inner
    }

    /// Whether the plan is missing and may not be built here.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.kind == ErrorKind::Missing
    }

    /// Whether the attention is refused, and so every later question about it.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.kind == ErrorKind::Refused
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

impl std::error::Error for Error {
    /// What is behind the error that the text is of, which [`Error::get_ref`] gives: the text does not come twice.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source()
    }
}

macro_rules! kinds {
    ($($error:ty => $kind:ident),+ $(,)?) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Error {
                Error::new(ErrorKind::$kind, error)
            }
        }
    )+};
}

kinds! {
    DeviceError => Device,
    NoDriver => Device,
    PropertiesError => Device,
    qkvault_sys::CudnnLoadError => Library,
    qkvault_cache::OpenError => Vault,
    LoadError => Load,
    BatchInputErrors => Arguments,
    TrainingError => Arguments,
    WorkspaceError => Memory,
    qkvault_graph::expr::ExprErrors => Expression,
    qkvault_graph::expr::ParseError => Expression,
    qkvault_graph::text::ParseError => Expression,
}

/// Allocations, copies and streams of the caller's own.
impl From<driver::DriverError> for Error {
    fn from(error: driver::DriverError) -> Error {
        let kind = match error.0 {
            driver::sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY => ErrorKind::Memory,
            _ => ErrorKind::Device,
        };
        Error::new(kind, error)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        let refused = Error::new(ErrorKind::Refused, refusal.to_string());
        Error { refusal: Some(Box::new(refusal)), ..refused }
    }
}

impl From<SessionError> for Error {
    fn from(error: SessionError) -> Error {
        let kind = if matches!(error, SessionError::NoCudnn(_)) { ErrorKind::Library } else { ErrorKind::Device };
        Error::new(kind, error)
    }
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Error {
        let kind = match &error {
            PlanError::Missing { .. } => ErrorKind::Missing,
            PlanError::NoCompiler { why, .. } if why.is_empty() => ErrorKind::Missing,
            _ => ErrorKind::Build,
        };
        Error::new(kind, error)
    }
}

impl From<PrepareError> for Error {
    fn from(error: PrepareError) -> Error {
        match error {
            PrepareError::Refused(refusal) => refusal.into(),
            PrepareError::Plan(error) => error.into(),
            PrepareError::Session(error) => error.into(),
            PrepareError::Load(error) => error.into(),
            unusable @ PrepareError::Unusable(_) => Error::new(ErrorKind::Load, unusable),
            other => Error::new(ErrorKind::Memory, other),
        }
    }
}

impl From<TableError<PrepareError>> for Error {
    fn from(error: TableError<PrepareError>) -> Error {
        match error {
            TableError::Load(error) => error.into(),
            TableError::Captured => Error::new(ErrorKind::Captured, error),
            TableError::Full { .. } => Error::new(ErrorKind::Memory, error),
            other => Error::new(ErrorKind::Device, other),
        }
    }
}

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Error {
        let kind = match error {
            LaunchError::Arguments(_) | LaunchError::Count { .. } | LaunchError::OtherContext { .. } => {
                ErrorKind::Arguments
            }
            LaunchError::Captured | LaunchError::PerThreadStream | LaunchError::NoWorkspace { .. } => {
                ErrorKind::Arguments
            }
            LaunchError::Workspace { .. } => ErrorKind::Memory,
            _ => ErrorKind::Launch,
        };
        Error::new(kind, error)
    }
}

impl From<BindFailure> for Error {
    fn from(error: BindFailure) -> Error {
        let kind = match error {
            BindFailure::Wrong(_) => ErrorKind::Arguments,
            BindFailure::Workspace(_) => ErrorKind::Memory,
            _ => ErrorKind::Launch,
        };
        Error::new(kind, error)
    }
}

impl From<UpdateError> for Error {
    fn from(error: UpdateError) -> Error {
        match error {
            UpdateError::Bind(error) => error.into(),
            UpdateError::Launch(error) => error.into(),
            other => Error::new(ErrorKind::Launch, other),
        }
    }
}

impl From<BatchError> for Error {
    fn from(error: BatchError) -> Error {
        let kind = if matches!(error, BatchError::Driver { .. }) { ErrorKind::Launch } else { ErrorKind::Arguments };
        Error::new(kind, error)
    }
}

impl From<TrainStepError> for Error {
    fn from(error: TrainStepError) -> Error {
        match error {
            TrainStepError::Training(error) => error.into(),
            TrainStepError::Launch(error) => error.into(),
            other => Error::new(ErrorKind::Arguments, other),
        }
    }
}

#[cfg(test)]
mod tests {
    use qkvault_cudnn::registry::codes;
    use qkvault_graph::{Attention, DType, validate};

    use super::*;

    #[test]
    fn a_refusal_keeps_its_reasons_and_a_kind() {
        let refusal = validate(Attention::bshd(1, (32, 5), (64, 64), 128, DType::BF16)).expect_err("five of 32");
        let text = refusal.to_string();
        let error: Error = PrepareError::Refused(refusal).into();
        assert!(error.is_refused() && !error.is_missing());
        assert!(error.refusal().is_some_and(|refusal| refusal.has(&codes::HEADS_GROUP)));
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn errors_of_expressions_and_of_cudarc_become_one_and_no_text_comes_twice() {
        fn expression() -> Result<(), Error> {
            qkvault_graph::expr::parse_expr("tanh(score").map(drop)?;
            Ok(())
        }
        fn text() -> Result<(), Error> {
            qkvault_graph::text::parse("q: bf16").map(drop)?;
            Ok(())
        }
        fn of_driver() -> Result<(), Error> {
            Err(driver::DriverError(driver::sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY))?;
            Ok(())
        }
        let library = qkvault_sys::Library::open(&qkvault_sys::Search::at("/nonexistent")).expect_err("no folder");
        let all = [
            (expression().expect_err("cut off"), ErrorKind::Expression),
            (text().expect_err("no dims"), ErrorKind::Expression),
            (Error::from(library), ErrorKind::Library),
            (Error::elsewhere("h200"), ErrorKind::Device),
        ];
        // Its text is the driver's, which is not here.
        assert!(of_driver().is_err_and(|error| error.kind() == ErrorKind::Memory));
        for (error, kind) in all {
            assert_eq!(error.kind(), kind, "{error}");
            let first = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(next) = source {
                assert!(!first.contains(&next.to_string()), "{first}: again {next}");
                source = next.source();
            }
        }
    }
}
