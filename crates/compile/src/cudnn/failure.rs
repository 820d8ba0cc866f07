//! Failures to make a plan: refusals of cuDNN, and errors of this machine or this moment.

use std::fmt;

use qkvault_cudnn::{CompilerEnv, NvrtcVersion, Target, Toolchain};
use qkvault_graph::{CudnnVersion, LibrarySet, Refusal};
use qkvault_sys::{CallError, Error, Status};

use crate::cudnn::toolchain::is;
use crate::cudnn::{pressure, status};

/// Why there is no plan.
///
/// All except the first are independent of the attention: they are never stored in a vault, and another engine is not
/// tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// cuDNN refuses this op graph for this target; the answer is always the same.
    #[error("{0}")]
    Refused(Refusal),
    /// The target is for another cuDNN than the loaded one.
    #[error(
        "the target is for cuDNN {wanted} ({wanted_set} set; {wanted_toolchain}), but {found} ({found_set} set; \
         {found_toolchain}) is loaded; use a target for the loaded one (Compiler::target), or load the other one with \
         QKVAULT_CUDNN_PATH"
    )]
    OtherLibrary {
        /// Version of the target.
        wanted: CudnnVersion,
        /// Library set of the target.
        wanted_set: LibrarySet,
        /// Version that is loaded.
        found: CudnnVersion,
        /// Set that is loaded.
        found_set: LibrarySet,
        /// Toolchain of the target.
        wanted_toolchain: Box<Toolchain>,
        /// Toolchain of this process.
        found_toolchain: Box<Toolchain>,
    },
    /// A variable that changes code has changed since cuDNN was opened.
    #[error(
        "{name} {} when cuDNN was opened and {} now; cuDNN reads such variables at various times, so the result is \
         unknown. Set {name} before the program starts, or not at all",
        is(opened),
        is(now)
    )]
    Environment {
        /// The variable.
        name: String,
        /// Its value when cuDNN was opened.
        opened: Option<String>,
        /// Its value now.
        now: Option<String>,
    },
    /// With this variable, cuDNN compiles with something that no key contains.
    #[error("{name} is set ({seen}), so the result would be in no plan's key: unset it")]
    RefusedVariable {
        /// The variable.
        name: &'static str,
        /// Its effect.
        seen: &'static str,
    },
    /// NVRTC belongs to a newer CUDA than the driver of the target.
    #[error(
        "NVRTC {nvrtc} compiles here, and the driver of the target is of CUDA {driver}; it may not load code from a \
         compiler of a newer major version; use a cuDNN of CUDA {} with its NVRTC, or a target with a driver of CUDA {}",
        driver.major, nvrtc.major
    )]
    NewerNvrtc {
        /// The NVRTC that compiles.
        nvrtc: NvrtcVersion,
        /// The CUDA version of the target's driver.
        driver: NvrtcVersion,
    },
    /// Nothing can be compiled here: something is missing or broken.
    #[error("{}", broken(.0))]
    Broken(#[from] Error),
    /// cuDNN answered with a status of this machine or this moment.
    #[error("{0}")]
    Here(Box<Here>),
    /// An engine lacked a library of this machine, so the refusal of all does not speak of the request.
    #[error(
        "cuDNN could not use a library that an engine needs ({said}), so that no engine takes this attention says \
         nothing of it: install the CUDA libraries of this cuDNN, and leave stubs of libcuda.so out of LD_LIBRARY_PATH"
    )]
    Lacking {
        /// What cuDNN says.
        said: String,
    },
    /// A refusal near a limit on memory may be caused by the limit.
    #[error(
        "cuDNN refused while memory was short ({limit}), and may accept with enough memory; raise the limit and ask \
         again. Its message: {said}"
    )]
    Doubtful {
        /// The limit, and the memory that is used.
        limit: String,
        /// The message of cuDNN.
        said: String,
    },
    /// If a driver is loaded, cuDNN asks it for the compiled kernel, and a GPU's driver has no kernels for another GPU.
    #[error(
        "cuDNN compiled this for sm_{sm} and asked the driver of this machine's GPU for the kernel; the driver has none \
         for another GPU ({words}); compile for other GPUs in a process without a driver: `qkvault warm`, \
         `qkvault probe --library`, or Compiler::open_compile_only"
    )]
    OtherGpu {
        /// The target's SM version, such as 90.
        sm: u32,
        /// The message of cuDNN.
        words: String,
    },
    /// The stand-in for the driver could not be loaded.
    #[error("there is no NVIDIA driver, and its stand-in could not be loaded: {0}")]
    StandIn(#[from] qkvault_sys::headless::StandInError),
}

/// A call to cuDNN that returned a status of this machine or this moment.
#[derive(Debug)]
pub struct Here {
    what: String,
    call: CallError,
    limit: Option<String>,
    variables: Vec<String>,
}

impl Here {
    /// The object that was being made: the op graph, a list of engines, the plan of one.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The call, with its status and cuDNN's message.
    #[must_use]
    pub fn call(&self) -> &CallError {
        &self.call
    }

    /// Whether NVIDIA's compiler gave no kernel (status 4001).
    #[must_use]
    pub fn is_uncompiled(&self) -> bool {
        self.call.status == status::COMPILATION_FAILED
    }
}

impl fmt::Display for Here {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Here { what, call, limit, variables } = self;
        let row = status::row(call.status);
        write!(f, "cuDNN could not make {what}: {} ({call})", row.meaning)?;
        if let Some(limit) = limit {
            write!(f, "; {limit}")?;
        }
        if !variables.is_empty() {
            write!(f, "; the environment has {}", variables.join(", "))?;
        }
        write!(f, ". Nothing is stored, and no other engine is tried. {}", sentence(row.fix))
    }
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

impl Failure {
    /// The meaning of a cuDNN error that is not a refusal.
    pub(crate) fn from_error(error: Error, what: impl Into<String>, target: &Target) -> Failure {
        match error {
            // CUDA_ERROR_NO_BINARY_FOR_GPU, with 9.14 and 9.19 on an H200 for sm_89 and sm_100.
            Error::Call(call) if call.detail.contains("(209)") && !qkvault_sys::headless::is_stand_in_loaded() => {
                Failure::OtherGpu { sm: target.sm(), words: call.detail }
            }
            Error::Call(call) => Failure::Here(Box::new(Here {
                what: what.into(),
                call,
                limit: pressure::near_limit(),
                variables: variables(),
            })),
            other => Failure::Broken(other),
        }
    }

    /// The cuDNN status of the failure, if it has one.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            Failure::Here(here) => Some(here.call.status),
            Failure::Broken(Error::Call(call)) => Some(call.status),
            _ => None,
        }
    }

    /// Whether NVIDIA's compiler gave no kernel (status 4001): because of memory, of flags, or because cuDNN generated
    /// source that does not compile. cuDNN does this for some attentions, and reports all three alike.
    #[must_use]
    pub fn is_uncompiled(&self) -> bool {
        matches!(self, Failure::Here(here) if here.is_uncompiled())
    }
}

/// The set variables that affect compilation, as `NAME=value`, to find the cause.
fn variables() -> Vec<String> {
    CompilerEnv::from_variables(std::env::vars_os()).pairs().map(|(name, value)| format!("{name}={value}")).collect()
}

/// The message of a missing cuDNN is complete.
fn broken(error: &Error) -> String {
    match error {
        Error::Load(load) => load.to_string(),
        other => format!("cuDNN could not compile here: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(status: Status) -> Here {
        let call =
            CallError { call: "cudnnBackendFinalize", status, kind: None, attribute: None, detail: "why".into() };
        let (limit, variables) = (Some("little memory".to_owned()), vec!["CUDNN_JIT_FLAGS_DBG=1".to_owned()]);
        Here { what: "the plan of engine 5".to_owned(), call, limit, variables }
    }

    #[test]
    fn b1_a_failure_of_the_moment_has_what_failed_the_message_and_the_fix() {
        let text = here(Status::INTERNAL_ERROR_COMPILATION_FAILED).to_string();
        for part in ["plan of engine 5", "(4001)", "why", "little memory", "CUDNN_JIT_FLAGS_DBG=1", "Free memory"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(here(Status::INTERNAL_ERROR_COMPILATION_FAILED).is_uncompiled());
        let text = here(Status::NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING).to_string();
        assert!(text.contains("(3008)") && text.contains("NVRTC"), "{text}");
    }
}
