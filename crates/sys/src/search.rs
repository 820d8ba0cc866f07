//! Where to look for cuDNN, in which order, and what was found wrong with each place.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::places;
use crate::tried::{Origin, Reason};
use qkvault_base::{CudnnVersion, LibrarySet};

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
    pub(crate) version: Option<CudnnVersion>,
    pub(crate) set: Option<LibrarySet>,
    pub(crate) environment: Environment,
}

impl Search {
    /// Exactly this: the file `libcudnn.so.9`, the folder it is in, or a prefix with `lib` below it.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: Some(path.into()), ..Self::default() }
    }

    /// Only this version.
    #[must_use]
    pub fn version(mut self, version: CudnnVersion) -> Self {
        self.version = Some(version);
        self
    }

    /// Only this set of libraries.
    #[must_use]
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

/// Whether a file may be what a search wants, from what can be known without loading it.
///
/// A path given by hand, and what the process has, need not tell: they are asked once they are open.
pub(crate) fn fits(search: &Search, origin: &Origin, file: &Path) -> Result<(), Reason> {
    if let Some(found) = places::foreign_major(file) {
        return Err(Reason::WrongMajor { found });
    }
    if let Some(wanted) = search.version {
        match places::version_beside(file) {
            Some(found) if found == wanted => {}
            Some(found) => return Err(Reason::OtherVersion { found, wanted }),
            None if matches!(origin, Origin::Path | Origin::Process) => {}
            None => return Err(Reason::UnknownVersion { wanted }),
        }
    }
    match (search.set, places::set_beside(file)) {
        (Some(wanted), found) if found != wanted => Err(Reason::OtherSet { found, wanted }),
        _ => Ok(()),
    }
}
