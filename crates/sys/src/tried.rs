//! The places that a search tried and did not use, with the reasons, as errors list them.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use crate::search::SONAME;
use qkvault_base::{CudnnVersion, LibrarySet};

/// The step of the search that named a place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SearchStep {
    /// The path given to [`Search::at`](crate::Search::at).
    Path,
    /// An environment variable.
    Variable(&'static str),
    /// The library that the process had already loaded.
    Process,
    /// The site-packages of the Python environment that this variable names.
    Environment(&'static str),
    /// The site-packages of the `python3` on the `PATH`.
    Python,
    /// The folder that `cargo xtask fetch` fills.
    Fetched,
    /// The dynamic loader's own search: its cache, `LD_LIBRARY_PATH`, system folders.
    Loader,
}

impl fmt::Display for SearchStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path => f.write_str("path given"),
            Self::Variable(name) => f.write_str(name),
            Self::Process => f.write_str("loaded in this process"),
            Self::Environment(name) => write!(f, "site-packages of {name}"),
            Self::Python => f.write_str("site-packages of python3"),
            Self::Fetched => f.write_str("fetched"),
            Self::Loader => f.write_str("dynamic loader"),
        }
    }
}

/// A place that was tried and not used.
#[derive(Debug, Clone)]
pub struct Tried {
    /// The step of the search that named it.
    pub origin: SearchStep,
    /// The file or folder, if there is one.
    pub path: Option<PathBuf>,
    /// Why it was not used.
    pub reason: UnusableReason,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}: {}: {}", self.origin, path.display(), self.reason),
            None => write!(f, "{}: {}", self.origin, self.reason),
        }
    }
}

/// Why a place was not used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UnusableReason {
    /// The variable is not set.
    #[error("not set")]
    NotSet,
    /// The path does not exist.
    #[error("no such file or folder")]
    Absent,
    /// The path is a symbolic link to a file that does not exist.
    #[error("a symbolic link to {}, which does not exist", target.display())]
    Dangling {
        /// Where the link leads.
        target: PathBuf,
    },
    /// The folder has no cuDNN 9 in any of the usual places.
    #[error("no {SONAME} in it")]
    NoLibrary,
    /// The process has no cuDNN loaded.
    #[error("none")]
    NotLoaded,
    /// A fetch into this folder was started but not finished.
    #[error("not complete: its manifest is missing, fetch it again")]
    Incomplete,
    /// The dynamic loader could not open the file.
    #[error("{detail}")]
    NotOpened {
        /// The loader's message.
        detail: String,
    },
    /// The library is a cuDNN of another major version.
    #[error("is cuDNN {found}, and only major {} can be used", CudnnVersion::SUPPORTED_MAJOR)]
    WrongMajor {
        /// Its version, as far as it is known.
        found: String,
    },
    /// The search requests another version.
    #[error("is cuDNN {found}, not {wanted}")]
    OtherVersion {
        /// The version of the library.
        found: CudnnVersion,
        /// The version requested.
        wanted: CudnnVersion,
    },
    /// The search requests a version, and the version of this library is not known before it is loaded.
    #[error("its version is unknown before it is loaded, and {wanted} is required (give its path to use it)")]
    UnknownVersion {
        /// The version requested.
        wanted: CudnnVersion,
    },
    /// The search requests another library set.
    #[error("is the {found} set, not {wanted}")]
    OtherSet {
        /// The set of the library.
        found: LibrarySet,
        /// The set requested.
        wanted: LibrarySet,
    },
    /// Another cuDNN is loaded in this process.
    #[error("{} is loaded in this process already", loaded.display())]
    AnotherLoaded {
        /// The loaded file.
        loaded: PathBuf,
    },
    /// Others can change the library, or where it lies, and that is not allowed.
    #[error("{why}")]
    Untrusted {
        /// Who can, where, and how to fix it.
        why: String,
    },
    /// A library or function that it needs is missing.
    #[error("{detail}")]
    Unusable {
        /// What is missing, and how to fix it.
        detail: String,
    },
}
