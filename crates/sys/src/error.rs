//! The errors of this crate, as values with the facts that a caller can act on.

use std::path::PathBuf;

use thiserror::Error;

use crate::bindings::{AttributeName, Kind, Status};
use crate::tried::{Tried, UnusableReason};
use qkvault_base::CudnnVersion;

/// Any error of this crate.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// cuDNN could not be loaded, or a library that it needs is missing.
    #[error(transparent)]
    Load(#[from] CudnnLoadError),
    /// cuDNN returned an error from a call.
    #[error(transparent)]
    Call(#[from] CallError),
    /// cuDNN creates no handle, because this process can use no GPU.
    #[error(
        "cuDNN cannot create a handle, which means no usable NVIDIA GPU or driver ({refusal}); to compile without one, use device properties \
         from a profile, which needs no handle; to run, use a machine where `nvidia-smi` lists a GPU"
    )]
    NoDevice {
        /// The error that `cudnnCreate` returned.
        refusal: CallError,
    },
    /// The loaded cuDNN is older than this function.
    #[error("cuDNN {version} at {path} has no function {function}; a newer cuDNN is needed", path = path.display())]
    NoFunction {
        /// The C name of the function.
        function: &'static str,
        /// The loaded version.
        version: CudnnVersion,
        /// The loaded file.
        path: PathBuf,
    },
    /// The process is ending, and cuDNN must not begin more work in it.
    #[error("this process is ending and cannot begin a compile; compile in another process")]
    Ending,
    /// An attribute that should hold one value holds another number of values.
    #[error("{attribute} of a {kind} holds {found} values where one was expected")]
    Count {
        /// The descriptor's kind.
        kind: Kind,
        /// The attribute read.
        attribute: AttributeName,
        /// Number of values.
        found: usize,
    },
}

/// Why cuDNN could not be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CudnnLoadError {
    /// No place of the search had a usable cuDNN.
    #[error("{}", not_found(tried))]
    NotFound {
        /// Every place in the order tried, with the reason why it was not used.
        tried: Vec<Tried>,
    },
    /// Another cuDNN is loaded in this process. Two cannot share a process, because their libraries find each other by
    /// name.
    #[error(
        "this process has cuDNN {loaded_version} loaded from {loaded}, so {wanted} cannot be used in it; ask for the loaded one, or use a \
         separate process",
        loaded = loaded.display()
    )]
    Clash {
        /// The loaded file.
        loaded: PathBuf,
        /// Its version.
        loaded_version: CudnnVersion,
        /// What was requested, in words.
        wanted: String,
    },
    /// A library that cuDNN opens by itself is missing. Without it cuDNN fails late, or ends the process.
    #[error("{needed_by} needs {library}, which was not found (looked in: {}); {remedy}", looked_in.join(", "))]
    Missing {
        /// The SONAME of the missing library.
        library: String,
        /// The library that needs it.
        needed_by: String,
        /// Every place searched, and why what lies there is not used.
        looked_in: Vec<String>,
        /// How to fix it.
        remedy: String,
    },
    /// A library that cuDNN opens by itself is there and does not load.
    #[error("{needed_by} needs {library}, which does not load ({tried})")]
    NotLoaded {
        /// The SONAME of the library.
        library: String,
        /// The library that needs it.
        needed_by: String,
        /// Every place searched, with the file and the loader's message where a file is there, how versions differ, and
        /// how to fix it.
        tried: String,
    },
    /// The libraries of cuDNN in one folder are of several versions. Each may load, and they do not fit each other.
    #[error("{} is not whole: {versions}; install one version of that package again", folder.display())]
    Mixed {
        /// The folder.
        folder: PathBuf,
        /// Each library with its version.
        versions: String,
    },
    /// The library lacks a function that every cuDNN 9 has.
    #[error("{} is not a cuDNN 9: it lacks {function}", path.display())]
    Foreign {
        /// The loaded file.
        path: PathBuf,
        /// The C name of the function.
        function: &'static str,
    },
}

fn not_found(tried: &[Tried]) -> String {
    let wanted = tried.iter().find_map(|tried| match tried.reason {
        UnusableReason::OtherVersion { wanted, .. } | UnusableReason::UnknownVersion { wanted } => Some(wanted),
        _ => None,
    });
    let (version, option) = match wanted {
        Some(version) => (version.to_string(), format!(" --cudnn {version}")),
        None => ("9".to_owned(), String::new()),
    };
    let mut text = format!(
        "no usable cuDNN {version} was found; `cargo xtask fetch{option}` gets one, QKVAULT_CUDNN_PATH names one. Tried:"
    );
    for tried in tried {
        text.push_str("\n  ");
        text.push_str(&qkvault_base::on_one_line(&tried.to_string()));
    }
    text
}

/// A call to which cuDNN returned a status other than success.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", self.text())]
pub struct CallError {
    /// The C name of the function.
    pub call: &'static str,
    /// The status that it returned.
    pub status: Status,
    /// The kind of the descriptor, for calls on a descriptor.
    pub kind: Option<Kind>,
    /// The attribute, for calls on an attribute.
    pub attribute: Option<AttributeName>,
    /// cuDNN's message: `cudnnGetLastErrorString` right after the call. May be empty.
    pub detail: String,
}

impl CallError {
    fn text(&self) -> String {
        let mut text = format!("{} answered {}", self.call, self.status);
        match (self.kind, self.attribute) {
            (Some(kind), Some(attribute)) => text.push_str(&format!(" for {attribute} of a {kind}")),
            (Some(kind), None) => text.push_str(&format!(" for a {kind}")),
            (None, _) => {}
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}
