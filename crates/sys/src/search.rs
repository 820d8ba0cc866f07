//! Where to look for cuDNN, and in which order.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::places;
use crate::tried::{SearchStep, UnusableReason};
use qkvault_base::{CudnnVersion, LibrarySet};

/// The SONAME of every cuDNN 9.
pub(crate) const SONAME: &str = "libcudnn.so.9";

/// Which cuDNN to load: by default any usable one, or an exact file, version or library set.
///
/// The search uses the first usable cuDNN in this order: the path given here; `QKVAULT_CUDNN_PATH`; `CUDNN_PATH`,
/// `CUDNN_HOME`; the cuDNN that the process has already loaded; the site-packages of `VIRTUAL_ENV`, `CONDA_PREFIX` and
/// of `python3` on the `PATH`; the folder that `cargo xtask fetch` fills; `CUDA_HOME`, `CUDA_PATH`; the dynamic
/// loader's own search. The first two are exact: if one is set and not usable, the search fails.
///
/// A file that others than this user and root can change, or whose folder they can change, is not usable, unless
/// `QKVAULT_LIBRARIES_ALLOW_SHARED` is `1`. What the process has loaded, and what the dynamic loader finds, is not
/// checked.
#[derive(Debug, Clone, Default)]
pub struct Search {
    pub(crate) path: Option<PathBuf>,
    pub(crate) version: Option<CudnnVersion>,
    pub(crate) set: Option<LibrarySet>,
    pub(crate) environment: Environment,
}

impl Search {
    /// Uses only this path: the file `libcudnn.so.9`, the folder it is in, or a prefix with `lib` below it.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: Some(path.into()), ..Self::default() }
    }

    /// Accepts only this version.
    #[must_use]
    pub fn version(mut self, version: CudnnVersion) -> Self {
        self.version = Some(version);
        self
    }

    /// Accepts only this set of libraries.
    #[must_use]
    pub fn set(mut self, set: LibrarySet) -> Self {
        self.set = Some(set);
        self
    }

    /// Reads variables from this list instead of the process's environment.
    pub fn environment(mut self, variables: impl IntoIterator<Item = (String, OsString)>) -> Self {
        self.environment = Environment::Given(variables.into_iter().collect());
        self
    }

    /// Every place of this search, in order; loads nothing.
    pub(crate) fn places(&self) -> Vec<SearchPlace> {
        places::in_order(self)
    }

    /// A description of the requested cuDNN, for errors.
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

/// The source of environment variables.
#[derive(Debug, Clone, Default)]
pub(crate) enum Environment {
    /// The process's environment.
    #[default]
    Process,
    /// Only the variables of this list.
    Given(Vec<(String, OsString)>),
}

impl Environment {
    /// The value of a variable; an empty one counts as unset.
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
pub(crate) struct SearchPlace {
    pub(crate) origin: SearchStep,
    pub(crate) at: At,
}

/// The content of a place.
#[derive(Debug, Clone)]
pub(crate) enum At {
    /// A file to load.
    File(PathBuf),
    /// The library that the process has loaded, if any.
    Process,
    /// A name for the dynamic loader to resolve.
    Name(&'static str),
    /// Nothing to load, with the path searched and the reason.
    Nothing(Option<PathBuf>, UnusableReason),
}

/// Whether a file may satisfy a search, as far as that is known without loading it.
///
/// The version of a path given by the caller, or of the process's library, may be unknown here; `open` checks it after
/// loading.
pub(crate) fn fits(search: &Search, origin: &SearchStep, file: &Path) -> Result<(), UnusableReason> {
    if let Some(found) = places::foreign_major(file) {
        return Err(UnusableReason::WrongMajor { found });
    }
    if let Some(wanted) = search.version {
        match places::version_beside(file) {
            Some(found) if found == wanted => {}
            Some(found) => return Err(UnusableReason::OtherVersion { found, wanted }),
            None if matches!(origin, SearchStep::Path | SearchStep::Process) => {}
            None => return Err(UnusableReason::UnknownVersion { wanted }),
        }
    }
    match (search.set, places::set_beside(file)) {
        (Some(wanted), found) if found != wanted => Err(UnusableReason::OtherSet { found, wanted }),
        _ => Ok(()),
    }
}
