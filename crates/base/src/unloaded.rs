//! Why a library is not loaded: there is no such file, a link leads nowhere, or the file is there and does not load.

use std::error::Error;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::with_sources;

/// Folders in which the dynamic loader, and NVIDIA's containers, keep libraries, besides those of `LD_LIBRARY_PATH`.
const USUAL: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/compat",
    "/usr/lib/wsl/lib",
];

/// Why the dynamic loader did not load a library, in words for a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unloaded {
    library: String,
    there: bool,
    why: String,
}

impl Unloaded {
    /// What is at the path of a library, or under a name that the dynamic loader searches, and the loader's own words.
    #[must_use]
    pub fn new(library: &Path, error: &dyn Error) -> Unloaded {
        let shown = library.display().to_string();
        let words = with_sources(error);
        let words = words.strip_prefix("dlopen failed: ").unwrap_or(&words);
        let own = words.strip_prefix(&format!("{shown}: "));
        let by_name = library.parent().is_none_or(|folder| folder.as_os_str().is_empty());
        let (there, why) = if let Some(target) = dangling(library) {
            (false, dangles(&target))
        } else if by_name && own.is_some_and(|own| own.starts_with("cannot open shared object file: No such file")) {
            let links = folders().filter_map(|folder| {
                let link = folder.join(library);
                dangling(&link).map(|target| format!("; {} is {}", link.display(), dangles(&target)))
            });
            (false, std::iter::once(own.unwrap_or(words).to_owned()).chain(links).collect())
        } else if !by_name && !library.exists() {
            (false, "no such file".to_owned())
        } else {
            (true, format!("it is there and does not load: {}", own.unwrap_or(words)))
        };
        Unloaded { library: shown, there, why }
    }

    /// Whether a file was found, which then did not load.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.there
    }

    /// The reason without the library's name, for a text that has it.
    #[must_use]
    pub fn why(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for Unloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.library, self.why)
    }
}

/// Where a symbolic link leads, if there is nothing.
#[must_use]
pub fn dangling(path: &Path) -> Option<PathBuf> {
    let target = path.read_link().ok()?;
    (!path.exists()).then_some(target)
}

fn dangles(target: &Path) -> String {
    format!("a symbolic link to {}, which does not exist", target.display())
}

fn folders() -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let given: Vec<PathBuf> = std::env::split_paths(OsStr::new(&path)).collect();
    given.into_iter().filter(|folder| !folder.as_os_str().is_empty()).chain(USUAL.iter().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("dlopen failed: {0}")]
    struct Dlopen(String);

    fn shown(library: &Path, words: &str) -> (bool, String) {
        let unloaded = Unloaded::new(library, &Dlopen(words.to_owned()));
        (unloaded.is_there(), unloaded.to_string())
    }

    #[cfg(unix)]
    #[test]
    fn a_library_that_is_there_a_link_to_nothing_and_an_absent_one_are_told_apart() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("liba.so"), "no library").expect("it can be written");
        let (there, text) = shown(&path("liba.so"), "liba.so: invalid ELF header");
        assert!(
            there && text.ends_with("liba.so: it is there and does not load: liba.so: invalid ELF header"),
            "{text}"
        );

        std::os::unix::fs::symlink("gone.so", path("libb.so")).expect("a link");
        let (there, text) = shown(&path("libb.so"), "cannot open");
        assert!(!there && text.ends_with("libb.so: a symbolic link to gone.so, which does not exist"), "{text}");
        assert_eq!(dangling(&path("liba.so")), None);

        let (there, text) = shown(&path("libc.so"), "cannot open");
        assert!(!there && text.ends_with("libc.so: no such file"), "{text}");
    }

    /// The loader found the library, and not one that it needs.
    #[test]
    fn a_name_whose_own_needs_are_missing_is_not_absent() {
        let name = Path::new("libqkvault-none.so.1");
        let missing = |name: &str| format!("{name}: cannot open shared object file: No such file or directory");
        let (there, text) = shown(name, &missing("libqkvault-none.so.1"));
        assert_eq!((there, text), (false, missing("libqkvault-none.so.1")));
        let (there, text) = shown(name, &missing("libother.so"));
        assert!(
            there && text.starts_with("libqkvault-none.so.1: it is there and does not load: libother.so"),
            "{text}"
        );
    }
}
