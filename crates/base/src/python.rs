//! Where wheels of Python packages are, for libraries that come in them. No Python is run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The prefixes of every `python3` on the `PATH` (that of a virtual environment before that of the Python it is made
/// from), and the prefix of packages installed for this user only.
///
/// A `python3` that is a script (a version manager's shim) is not followed.
pub fn python_prefixes(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let mut prefixes = Vec::new();
    let path = variable("PATH").unwrap_or_default();
    for program in std::env::split_paths(&path).map(|dir| dir.join("python3")) {
        if let Ok(followed) = program.canonicalize() {
            let of_environment = program.parent().and_then(Path::parent).filter(|p| p.join("pyvenv.cfg").exists());
            let own = followed.parent().and_then(Path::parent);
            prefixes.extend(of_environment.into_iter().chain(own).map(Path::to_owned));
        }
    }
    prefixes.extend(variable("HOME").map(|home| PathBuf::from(home).join(".local")));
    let mut seen = Vec::new();
    prefixes.retain(|prefix| {
        prefix.is_dir() && !seen.contains(prefix) && {
            seen.push(prefix.clone());
            true
        }
    });
    prefixes
}

/// The folders of packages below a prefix: `lib/python3.*/site-packages`, and Debian's `dist-packages`.
#[must_use]
pub fn python_packages(prefix: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_python = |dir: &PathBuf| dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"));
    let mut pythons: Vec<PathBuf> = entries.filter(|dir| is_python(dir) && dir.is_dir()).collect();
    pythons.sort();
    pythons.into_iter().flat_map(|dir| [dir.join("site-packages"), dir.join("dist-packages")]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_virtual_environment_on_the_path_is_found_before_its_python() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path().canonicalize().expect("it exists");
        let (base, venv) = (root.join("base"), root.join("venv"));
        for prefix in [&base, &venv] {
            std::fs::create_dir_all(prefix.join("bin")).expect("a folder");
            std::fs::create_dir_all(prefix.join("lib/python3.12/site-packages")).expect("a folder");
        }
        std::fs::write(base.join("bin/python3"), "").expect("is written");
        std::fs::write(venv.join("pyvenv.cfg"), "").expect("is written");
        std::os::unix::fs::symlink(base.join("bin/python3"), venv.join("bin/python3")).expect("a link");
        let path = std::env::join_paths([venv.join("bin"), base.join("bin")]).expect("no colons");
        let variable = |name: &str| (name == "PATH").then(|| path.clone());
        assert_eq!(python_prefixes(variable), [venv.clone(), base]);
        assert_eq!(python_packages(&venv)[0], venv.join("lib/python3.12/site-packages"));
        assert!(python_packages(&root).is_empty());
    }
}
