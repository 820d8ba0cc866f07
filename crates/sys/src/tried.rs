//! What a search tried and did not use, and why: what an error lists.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use crate::search::SONAME;
use qkvault_base::{CudnnVersion, LibrarySet};

/// What made a place be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The path given to [`Search::at`](crate::Search::at).
    Path,
    /// An environment variable.
    Variable(&'static str),
    /// What the process had loaded before.
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

impl fmt::Display for Origin {
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
    /// What made it be looked at.
    pub origin: Origin,
    /// The file or folder, where there is one.
    pub path: Option<PathBuf>,
    /// Why it was not used.
    pub reason: Reason,
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
pub enum Reason {
    /// The variable is not set.
    #[error("not set")]
    NotSet,
    /// Nothing of that name is there.
    #[error("no such file or folder")]
    Absent,
    /// The folder has no cuDNN 9 where one would be.
    #[error("no {SONAME} in it")]
    NoLibrary,
    /// The process has no cuDNN loaded.
    #[error("none")]
    NotLoaded,
    /// A fetch was begun and not finished.
    #[error("not complete: its manifest is missing, fetch it again")]
    Incomplete,
    /// The dynamic loader refused the file.
    #[error("{detail}")]
    NotOpened {
        /// The loader's words.
        detail: String,
    },
    /// It is a cuDNN of another major version.
    #[error("is cuDNN {found}, and only major {} can be used", CudnnVersion::SUPPORTED_MAJOR)]
    WrongMajor {
        /// What it is, as far as is known.
        found: String,
    },
    /// Another version was asked for.
    #[error("is cuDNN {found}, not {wanted}")]
    OtherVersion {
        /// What it is.
        found: CudnnVersion,
        /// What was asked for.
        wanted: CudnnVersion,
    },
    /// A version was asked for and this one's cannot be told.
    #[error("its version cannot be told without loading it, and {wanted} was asked for (give its path to use it)")]
    UnknownVersion {
        /// What was asked for.
        wanted: CudnnVersion,
    },
    /// Another library set was asked for.
    #[error("is the {found} set, not {wanted}")]
    OtherSet {
        /// What it is.
        found: LibrarySet,
        /// What was asked for.
        wanted: LibrarySet,
    },
    /// Another cuDNN is loaded in this process.
    #[error("{} is loaded in this process already", loaded.display())]
    AnotherLoaded {
        /// The loaded file.
        loaded: PathBuf,
    },
    /// It lacks a library or function that it needs.
    #[error("{detail}")]
    Unusable {
        /// What is wrong, and what to do.
        detail: String,
    },
}
