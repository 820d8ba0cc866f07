//! What can go wrong below the safe layers, as values that carry the facts.

use std::path::PathBuf;

use thiserror::Error;

use crate::bindings::{AttributeName, Kind, Status};
use crate::tried::Tried;
use qkvault_base::CudnnVersion;

/// Any error of this crate.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// cuDNN could not be loaded, or something it needs is not there.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A call into cuDNN was refused.
    #[error(transparent)]
    Call(#[from] CallError),
    /// No handle can be had: there is no GPU that this process may use.
    #[error(
        "cuDNN gives no handle here, which means no usable NVIDIA GPU or driver ({refusal}); to compile without one, use device properties \
         from a profile, which needs no handle; to run, use a machine where `nvidia-smi` lists a GPU"
    )]
    NoDevice {
        /// What `cudnnCreate` answered.
        refusal: CallError,
    },
    /// The loaded library is older than the function that was asked for.
    #[error("cuDNN {version} at {path} has no function {function}; a newer cuDNN is needed", path = path.display())]
    NoFunction {
        /// The C name of the function.
        function: &'static str,
        /// The loaded version.
        version: CudnnVersion,
        /// The loaded file.
        path: PathBuf,
    },
    /// The process is about to end, and cuDNN begins nothing more in it.
    #[error("this process is ending, and nothing is compiled in it any more; ask in another one")]
    Ending,
    /// An attribute that should hold one value holds another number of them.
    #[error("{attribute} of a {kind} holds {found} values where one was expected")]
    Count {
        /// The descriptor's kind.
        kind: Kind,
        /// The attribute read.
        attribute: AttributeName,
        /// How many there are.
        found: usize,
    },
}

/// Why cuDNN could not be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Nothing that was looked at could be used.
    #[error("{}", not_found(tried))]
    NotFound {
        /// Every place, in the order tried, with the reason against it.
        tried: Vec<Tried>,
    },
    /// Another cuDNN is in this process, and two of them cannot share one: their libraries find each other by name.
    #[error(
        "this process has cuDNN {loaded_version} loaded from {loaded}, so {wanted} cannot be used in it; ask for the loaded one, or use a \
         separate process",
        loaded = loaded.display()
    )]
    Clash {
        /// The file that is loaded.
        loaded: PathBuf,
        /// Its version.
        loaded_version: CudnnVersion,
        /// What was asked for, in words.
        wanted: String,
    },
    /// A library that cuDNN opens by itself cannot be found; using cuDNN without it fails late, or ends the process.
    #[error("{needed_by} needs {library}, which is not to be found (looked in: {}); {remedy}", looked_in.join(", "))]
    Missing {
        /// The library that is missing, by its SONAME.
        library: String,
        /// What needs it.
        needed_by: String,
        /// Every place looked at, with the loader's reason where a file was there but could not be opened.
        looked_in: Vec<String>,
        /// What to do.
        remedy: String,
    },
    /// The library does not have a function that every cuDNN 9 has.
    #[error("{} is no cuDNN 9: it lacks {function}", path.display())]
    Foreign {
        /// The loaded file.
        path: PathBuf,
        /// The C name of the function.
        function: &'static str,
    },
}

fn not_found(tried: &[Tried]) -> String {
    let mut text =
        String::from("no usable cuDNN 9 was found; `cargo xtask fetch` gets one, QKVAULT_CUDNN_PATH names one. Tried:");
    for tried in tried {
        text.push_str("\n  ");
        text.push_str(&tried.to_string());
    }
    text
}

/// A call that cuDNN answered with a status other than success.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", self.text())]
pub struct CallError {
    /// The C name of the function called.
    pub call: &'static str,
    /// What it answered.
    pub status: Status,
    /// The kind of the descriptor it was about, if it was about one.
    pub kind: Option<Kind>,
    /// The attribute it was about, if it was about one.
    pub attribute: Option<AttributeName>,
    /// `cudnnGetLastErrorString` right after the call: the library's own words; may be empty.
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
