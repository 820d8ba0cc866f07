//! Where to look for cuDNN, in which order, and what was found wrong with each place.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::places;
use crate::version::{LibrarySet, Version};

/// The name under which every cuDNN 9 is loaded.
pub(crate) const SONAME: &str = "libcudnn.so.9";

/// What to load: anything usable by default, or an exact file, version or library set.
///
/// The order, first usable wins: the path given here; `QKVAULT_CUDNN_PATH`; `CUDNN_PATH`, `CUDNN_HOME`; the cuDNN that the process has
/// loaded already; the site-packages of `VIRTUAL_ENV`, `CONDA_PREFIX` and of `python3` on the `PATH`; the folder that `cargo xtask fetch`
/// fills; `CUDA_HOME`, `CUDA_PATH`; the dynamic loader's own search. The first two are exact: when set and not usable, nothing else is tried.
#[derive(Debug, Clone, Default)]
pub struct Search {
    pub(crate) path: Option<PathBuf>,
    pub(crate) version: Option<Version>,
    pub(crate) set: Option<LibrarySet>,
    pub(crate) environment: Environment,
}

impl Search {
    /// Exactly this: the file `libcudnn.so.9`, the folder it is in, or a prefix with `lib` below it.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: Some(path.into()), ..Self::default() }
    }

    /// Only this version.
    pub fn version(mut self, version: Version) -> Self {
        self.version = Some(version);
        self
    }

    /// Only this set of libraries.
    pub fn set(mut self, set: LibrarySet) -> Self {
        self.set = Some(set);
        self
    }

    /// Reads variables from here instead of the process's environment.
    pub fn environment(mut self, variables: impl IntoIterator<Item = (String, OsString)>) -> Self {
        self.environment = Environment::Given(variables.into_iter().collect());
        self
    }

    /// Every place that this search looks at, in order; nothing is loaded.
    pub(crate) fn places(&self) -> Vec<Place> {
        places::of(self)
    }

    /// What is wanted, in words.
    pub(crate) fn wanted(&self) -> String {
        let mut text = match (self.version, self.set) {
            (Some(version), Some(set)) => format!("cuDNN {version} ({set})"),
            (Some(version), None) => format!("cuDNN {version}"),
            (None, Some(set)) => format!("a cuDNN 9 ({set})"),
            (None, None) => "a cuDNN 9".to_owned(),
        };
        if let Some(path) = &self.path {
            text.push_str(&format!(" at {}", path.display()));
        }
        text
    }
}

/// Where variables are read from.
#[derive(Debug, Clone, Default)]
pub(crate) enum Environment {
    /// The process's own.
    #[default]
    Process,
    /// These and no others.
    Given(Vec<(String, OsString)>),
}

impl Environment {
    /// The value of a variable; unset and empty are the same.
    pub(crate) fn get(&self, name: &str) -> Option<OsString> {
        let value = match self {
            Self::Process => std::env::var_os(name),
            Self::Given(variables) => variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()),
        };
        value.filter(|value| !value.is_empty())
    }
}

/// What made a place be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The path given to [`Search::at`].
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

/// One place of a search.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) origin: Origin,
    pub(crate) at: At,
}

/// What is at a place.
#[derive(Debug, Clone)]
pub(crate) enum At {
    /// A file to load.
    File(PathBuf),
    /// The library that the process has, if it has one.
    Process,
    /// A name for the dynamic loader to resolve.
    Name(&'static str),
    /// Nothing to load, because.
    Nothing(Option<PathBuf>, Reason),
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
    #[error("is cuDNN {found}, and only major {} can be used", Version::SUPPORTED_MAJOR)]
    WrongMajor {
        /// What it is, as far as is known.
        found: String,
    },
    /// Another version was asked for.
    #[error("is cuDNN {found}, not {wanted}")]
    OtherVersion {
        /// What it is.
        found: Version,
        /// What was asked for.
        wanted: Version,
    },
    /// A version was asked for and this one's cannot be told.
    #[error("its version cannot be told without loading it, and {wanted} was asked for (give its path to use it)")]
    UnknownVersion {
        /// What was asked for.
        wanted: Version,
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

/// Whether a file may be what a search wants, from what can be known without loading it.
pub(crate) fn fits(search: &Search, file: &Path) -> Result<(), Reason> {
    if let Some(found) = places::foreign_major(file) {
        return Err(Reason::WrongMajor { found });
    }
    if let Some(wanted) = search.version {
        match places::version_beside(file) {
            Some(found) if found == wanted => {}
            Some(found) => return Err(Reason::OtherVersion { found, wanted }),
            // A path given by hand is loaded and asked.
            None if search.path.is_some() => {}
            None => return Err(Reason::UnknownVersion { wanted }),
        }
    }
    match (search.set, places::set_beside(file)) {
        (Some(wanted), found) if found != wanted => Err(Reason::OtherSet { found, wanted }),
        _ => Ok(()),
    }
}
