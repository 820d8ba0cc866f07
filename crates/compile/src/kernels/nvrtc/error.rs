//! Errors of NVRTC: a library that is missing or of another version, and sources that do not compile.

use std::ffi::c_int;
use std::path::PathBuf;

use super::NVRTC;

/// A place where NVRTC was looked for, and why it is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvrtcTried {
    /// The library's file, or the name that the loader was asked for.
    pub path: PathBuf,
    /// Why it is not used.
    pub reason: String,
}

/// Why nothing was compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NvrtcError {
    /// There is no NVRTC of the version.
    #[error(
        "no usable NVRTC {}.{} was found, which compiles kernels{}\nRun `cargo xtask fetch --accept-nvidia-license`, or \
         name one by QKVAULT_NVRTC_PATH",
        NVRTC.0, NVRTC.1, list(tried)
    )]
    NotFound {
        /// Every place, in order.
        tried: Vec<NvrtcTried>,
    },
    /// The source has errors.
    #[error("{name} does not compile for sm_{sm}:\n{log}")]
    Source {
        /// The name of the source.
        name: String,
        /// The architecture.
        sm: u32,
        /// What the compiler says, with lines.
        log: String,
    },
    /// An option is none of this project's.
    #[error("the option '{}' is none that kernels of qkvault are compiled with; leave it out", option.escape_debug())]
    Option {
        /// The option.
        option: String,
    },
    /// A variable is set that changes what NVRTC compiles.
    #[error("{name} is set to '{value}', and may change the code that NVRTC compiles, which no key contains; unset it")]
    Variable {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
    },
    /// A text has a 0, which ends it for NVRTC.
    #[error("{what} for NVRTC contains a character 0; remove it")]
    Zero {
        /// Which text.
        what: &'static str,
    },
    /// NVRTC failed for another reason than the source.
    #[error("NVRTC could not {step}: {name} ({status}); there may be too little memory")]
    Call {
        /// What was asked.
        step: &'static str,
        /// Its status.
        status: c_int,
        /// The name of the status.
        name: String,
    },
    /// NVRTC gave something else than machine code.
    #[error("NVRTC gave {bytes} bytes that are no cubin; the options ask for another kind of output")]
    NoCubin {
        /// Length of what it gave.
        bytes: usize,
    },
}

fn list(tried: &[NvrtcTried]) -> String {
    tried.iter().map(|NvrtcTried { path, reason }| format!("\n  {}: {reason}", path.display())).collect()
}
