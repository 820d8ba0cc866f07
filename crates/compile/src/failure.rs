//! Why there is no plan: what the library refuses is one thing, and what does not work here and now is another.

use std::fmt;

use qkvault_graph::{CompilerEnv, CudnnVersion, LibrarySet, NvrtcVersion, Refusal, Target, Toolchain};
use qkvault_sys::{CallError, Error, Status};

use crate::toolchain::is;
use crate::{pressure, status};

/// Why there is no plan.
///
/// All but the first say nothing about the attention: they are never kept in a vault, and never a reason to take another engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The library says no to this op graph for this target; asking again gives the same answer.
    #[error("{0}")]
    Refused(Refusal),
    /// The target is for another cuDNN than the one that is loaded.
    #[error(
        "the target wants cuDNN {wanted} ({wanted_set} set; {wanted_toolchain}), but {found} ({found_set} set; {found_toolchain}) is loaded; \
         use a target for that one (Compiler::target), or QKVAULT_CUDNN_PATH to load the other"
    )]
    OtherLibrary {
        /// Version that the target wants.
        wanted: CudnnVersion,
        /// Set that the target wants.
        wanted_set: LibrarySet,
        /// Version that is loaded.
        found: CudnnVersion,
        /// Set that is loaded.
        found_set: LibrarySet,
        /// Toolchain that the target wants.
        wanted_toolchain: Box<Toolchain>,
        /// Toolchain that is here.
        found_toolchain: Box<Toolchain>,
    },
    /// A variable that changes code has changed since cuDNN was opened.
    #[error(
        "{name} {} when cuDNN was opened and {} now; cuDNN reads such variables at various times, so what it would compile is not known. \
         Set {name} before the program starts, or not at all",
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
    /// A variable is set under which cuDNN compiles with something that no key names.
    #[error("{name} is set ({seen}), so what would compile is named by no plan's key: unset it")]
    RefusedVariable {
        /// The variable.
        name: &'static str,
        /// What it does.
        seen: &'static str,
    },
    /// NVRTC is of a newer CUDA than the driver that the target names.
    #[error(
        "NVRTC {nvrtc} compiles here, and the target names the driver of CUDA {driver}, which need not load what the compiler of a newer \
         major version makes; use a cuDNN of CUDA {} with its NVRTC, or a target with a driver of CUDA {}",
        driver.major, nvrtc.major
    )]
    NewerNvrtc {
        /// The NVRTC that compiles.
        nvrtc: NvrtcVersion,
        /// The CUDA version of the target's driver.
        driver: NvrtcVersion,
    },
    /// Compiling cannot work here, whatever is asked: something is missing or broken.
    #[error("{}", broken(.0))]
    Broken(#[from] Error),
    /// cuDNN answered with a status that speaks of this machine or this moment.
    #[error("{0}")]
    Here(Box<Here>),
    /// What the library refuses or passes over so near a limit on memory is not believed.
    #[error(
        "cuDNN refused what it was asked while memory was short ({limit}), so nothing says that it would with enough; \
         raise the limit and ask again. It said: {said}"
    )]
    Doubtful {
        /// The limit, and how much is used.
        limit: String,
        /// What it said.
        said: String,
    },
    /// With a driver in the process, cuDNN asks it for what it has compiled; a GPU's driver has no kernel for another GPU.
    #[error(
        "cuDNN compiled this for sm_{sm} and asked the driver of this machine's GPU for the kernel, which has none for another GPU ({words}); \
         compile for other GPUs in a process that loads no driver: `qkvault warm` and `qkvault probe --library`, or Compiler::open_compile_only"
    )]
    OtherGpu {
        /// The target's SM version, such as 90.
        sm: u32,
        /// cuDNN's words.
        words: String,
    },
    /// No stand-in for the driver could be loaded.
    #[error("there is no NVIDIA driver, and its stand-in could not be loaded: {0}")]
    StandIn(#[from] qkvault_headless::Error),
}

/// A call that cuDNN answered with a status that speaks of this machine or this moment.
#[derive(Debug)]
pub struct Here {
    what: String,
    call: CallError,
    limit: Option<String>,
    variables: Vec<String>,
}

impl Here {
    /// What was being made: the op graph, a list of engines, the plan of one.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The call, with its status and cuDNN's words.
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
        write!(f, "cuDNN could not make {what} here and now: {} ({call})", row.meaning)?;
        if let Some(limit) = limit {
            write!(f, "; {limit}")?;
        }
        if !variables.is_empty() {
            write!(f, "; the environment has {}", variables.join(", "))?;
        }
        write!(f, ". Nothing is kept, and no other engine is taken instead. {}", sentence(row.fix))
    }
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

impl Failure {
    /// What an error of cuDNN's means that is no refusal.
    pub(crate) fn of(error: Error, what: impl Into<String>, target: &Target) -> Failure {
        match error {
            // CUDA_ERROR_NO_BINARY_FOR_GPU, seen with 9.14 and 9.19 on an H200 for sm_89 and sm_100.
            Error::Call(call) if call.detail.contains("(209)") && !qkvault_headless::is_stand_in_loaded() => {
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

    /// The status of cuDNN's that this is, where it is one.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            Failure::Here(here) => Some(here.call.status),
            Failure::Broken(Error::Call(call)) => Some(call.status),
            _ => None,
        }
    }

    /// Whether NVIDIA's compiler gave no kernel (status 4001): for want of memory, for flags, or because cuDNN wrote source that does
    /// not compile, which it does for some attentions and does not tell apart.
    #[must_use]
    pub fn is_uncompiled(&self) -> bool {
        matches!(self, Failure::Here(here) if here.is_uncompiled())
    }
}

/// The set variables that change what compiles, as `NAME=value`, for who looks for the cause.
fn variables() -> Vec<String> {
    CompilerEnv::of(std::env::vars_os()).pairs().map(|(name, value)| format!("{name}={value}")).collect()
}

/// A cuDNN that is not there has said all itself.
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
    fn b1_a_failure_of_the_moment_says_what_failed_in_whose_words_and_how_to_fix_it() {
        let text = here(Status::INTERNAL_ERROR_COMPILATION_FAILED).to_string();
        for part in ["plan of engine 5", "(4001)", "why", "little memory", "CUDNN_JIT_FLAGS_DBG=1", "Free memory"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(here(Status::INTERNAL_ERROR_COMPILATION_FAILED).is_uncompiled());
        let text = here(Status::NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING).to_string();
        assert!(text.contains("(3008)") && text.contains("NVRTC"), "{text}");
    }
}
