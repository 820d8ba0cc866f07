//! The Python that runs FlashAttention-4's compiler: found by trying, because distributions name it differently.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The variable that names the one Python to use.
pub const PYTHON_VARIABLE: &str = "QKVAULT_PYTHON";

/// Names under which Python may be installed, in the order in which they are tried.
const NAMES: [&str; 6] = ["python3", "python", "python3.11", "python3.12", "python3.13", "python3.14"];

/// What a Python is asked for: its kind and version, and its program, which may be behind a script that chooses one.
const QUESTION: &str = "import sys; print(sys.implementation.name, *sys.version_info[:2]); print(sys.executable)";

/// A Python that can be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Python {
    /// Its program, by an absolute path.
    pub program: OsString,
    /// Major and minor version.
    numbers: (u32, u32),
}

/// There is no Python that an engine's packages are for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "FlashAttention-4's kernels are compiled by Python {}, and there is none here ({}); install one of these, or set \
     QKVAULT_PYTHON to it",
    wanted.join(", "),
    tried.join("; ")
)]
pub struct NoPython {
    /// The versions that the packages are for.
    pub wanted: Vec<String>,
    /// Every program tried, with what it answered.
    pub tried: Vec<String>,
}

impl Python {
    /// The first Python of one of these versions: the one that `QKVAULT_PYTHON` names, which is exact, else the first
    /// of `python3`, `python`, `python3.11` to `python3.14` in `PATH`.
    ///
    /// # Errors
    ///
    /// [`NoPython`] with every program tried.
    pub fn first(wanted: &[String]) -> Result<Python, NoPython> {
        Python::all(std::env::var_os(PYTHON_VARIABLE), wanted, |python| Some(python.clone()))
    }

    /// The first Python of one of these versions that `choose` takes.
    pub(crate) fn all<T>(
        exact: Option<OsString>,
        wanted: &[String],
        mut choose: impl FnMut(&Python) -> Option<T>,
    ) -> Result<T, NoPython> {
        let exact = exact.filter(|program| !program.is_empty());
        let programs = exact.map_or_else(|| NAMES.map(OsString::from).to_vec(), |program| vec![program]);
        let mut tried = Vec::new();
        for program in programs {
            let answer = match Python::ask(&located(&program)) {
                Ok(python) if wanted.contains(&python.version()) => match choose(&python) {
                    Some(chosen) => return Ok(chosen),
                    None => format!("is Python {}", python.version()),
                },
                Ok(python) => format!("is Python {}", python.version()),
                Err(reason) => reason,
            };
            tried.push(format!("{} {answer}", program.to_string_lossy()));
        }
        Err(NoPython { wanted: wanted.to_vec(), tried })
    }

    /// Its version, as `3.12`.
    #[must_use]
    pub fn version(&self) -> String {
        let (major, minor) = self.numbers;
        format!("{major}.{minor}")
    }

    fn ask(program: &OsString) -> Result<Python, String> {
        // Isolated: nothing of the caller's environment or folder is imported.
        let mut command = Command::new(program);
        command.args(["-I", "-S", "-B", "-c", QUESTION]).env_clear().current_dir("/").stdin(Stdio::null());
        let done = command.output();
        let done = done.map_err(|error| format!("does not start ({error})"))?;
        let text = String::from_utf8_lossy(&done.stdout);
        let (numbers, behind) = text.split_once('\n').unwrap_or((&text, ""));
        let itself = Some(OsString::from(behind.trim())).filter(|path| Path::new(path).is_absolute());
        let mut words = numbers.split_whitespace();
        let kind = words.next();
        let mut number = || words.next().and_then(|word| word.parse().ok());
        match (done.status.success(), kind, number(), number()) {
            (true, Some("cpython"), Some(major), Some(minor)) => {
                Ok(Python { program: itself.unwrap_or_else(|| program.clone()), numbers: (major, minor) })
            }
            (true, Some(kind), ..) if kind != "cpython" => Err(format!("is {kind}")),
            _ => Err("does not tell its version".to_owned()),
        }
    }
}

/// The program of a name: the first in the absolute folders of `PATH`. A child has no `PATH` of the caller's. A path
/// stays as it is, and so does a name that is nowhere.
fn located(program: &OsString) -> OsString {
    let name = Path::new(program);
    if name.components().count() != 1 || name.is_absolute() {
        return std::path::absolute(name).map_or_else(|_| program.clone(), PathBuf::into_os_string);
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&folders).filter(|folder| folder.is_absolute()).collect();
    let files = folders.into_iter().map(|folder| folder.join(name));
    files.into_iter().find(|path| path.is_file()).map_or_else(|| program.clone(), PathBuf::into_os_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(folder: &Path, answer: &str) -> OsString {
        use std::os::unix::fs::PermissionsExt as _;
        let path = folder.join("python");
        std::fs::write(&path, format!("#!/bin/sh\n{answer}\n")).expect("is written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("is set");
        path.into_os_string()
    }

    fn answer(text: &str) -> Result<String, String> {
        let folder = tempfile::tempdir().expect("is made");
        let program = program(folder.path(), text);
        let wanted = ["3.11".to_owned(), "3.12".to_owned()];
        let found = Python::all(Some(program), &wanted, |python| Some(python.version()));
        found.map_err(|error| error.to_string())
    }

    #[test]
    fn a_python_of_another_version_or_kind_is_named_with_what_is_needed() {
        assert_eq!(answer("echo cpython 3 12"), Ok("3.12".to_owned()));
        for (text, words) in [
            ("echo cpython 3 9", "is Python 3.9"),
            ("echo pypy 3 11", "is pypy"),
            ("echo nothing", "is nothing"),
            ("exit 127", "does not tell its version"),
        ] {
            let error = answer(text).expect_err("refused");
            for words in [words, "3.11, 3.12", "QKVAULT_PYTHON"] {
                assert!(error.contains(words), "'{words}' is not in: {error}");
            }
        }
        let missing = Python::all(Some("/no/such/python".into()), &[], |_| Some(())).expect_err("none");
        assert!(missing.to_string().contains("does not start"), "{missing}");
    }
}
