//! Runs the command in a clean environment, and checks what must hold for every run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use qkvault_base::{MANIFEST, cudnn_dir};
use qkvault_cache::STORE_FORMAT;
use qkvault_skip::{Need, skip};
use serde_json::Value;
use tempfile::TempDir;

/// The result of one run.
pub(crate) struct Done {
    /// The exit code.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

/// A folder for a vault and files, and the options of commands that run on it.
pub(crate) struct Place {
    folder: TempDir,
    variables: Vec<(String, String)>,
    cudnn: Vec<String>,
}

impl Place {
    /// A place with an empty vault.
    pub(crate) fn new() -> Place {
        Place { folder: tempfile::tempdir().unwrap(), variables: Vec::new(), cudnn: Vec::new() }
    }

    /// A place that uses a fetched slim cuDNN, or `None` if there is none; the test is then skipped.
    ///
    /// With `QKVAULT_REQUIRE=cudnn` a missing cuDNN is a failure.
    pub(crate) fn with_cudnn(version: &str) -> Option<Place> {
        let root = cudnn_dir();
        let is_it = |dir: &PathBuf| {
            let name = dir.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(version) && name.ends_with("-slim") && dir.join(MANIFEST).exists()
        };
        let Some(dir) = root.read_dir().into_iter().flatten().flatten().map(|e| e.path()).find(is_it) else {
            let get = format!("`cargo xtask fetch --cudnn {version}` gets it");
            skip(Need::Cudnn, &format!("no cuDNN {version} (slim) in {}; {get}", root.display()));
            return None;
        };
        let cudnn = vec!["--cudnn-path".to_owned(), dir.display().to_string()];
        Some(Place { cudnn, ..Place::new() })
    }

    /// Sets a variable for all runs.
    pub(crate) fn set(mut self, name: &str, value: impl Into<String>) -> Place {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Removes a variable that was set.
    pub(crate) fn unset(mut self, name: &str) -> Place {
        self.variables.retain(|(set, _)| set != name);
        self
    }

    /// A path in the place's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file in the place's folder and gives its path as text.
    pub(crate) fn file(&self, name: &str, content: &str) -> String {
        std::fs::write(self.path(name), content).unwrap();
        self.path(name).display().to_string()
    }

    /// Writes a file that only this user can read, as the secret of a seal must be.
    pub(crate) fn secret(&self, name: &str, content: &str) -> String {
        let file = self.file(name, content);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        file
    }

    /// The entry files of the vault, sorted.
    pub(crate) fn entries(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for shard in self.path(&format!("vault/v{STORE_FORMAT}/entries")).read_dir().into_iter().flatten().flatten() {
            files.extend(shard.path().read_dir().unwrap().flatten().map(|e| e.path()));
        }
        files.retain(|f| f.extension().is_some_and(|e| e == "qkv"));
        files.sort();
        files
    }

    /// Runs the command on this place's vault; words are separated by blanks.
    pub(crate) fn run(&self, words: &str) -> Done {
        self.run_in(self.folder.path(), words)
    }

    /// Runs the command on another vault.
    pub(crate) fn run_in(&self, vault: &Path, words: &str) -> Done {
        let Output { status, stdout, stderr } = self.command(vault, words).output().unwrap();
        let code = status.code().unwrap_or_else(|| panic!("{words}: ended by a signal: {status}"));
        let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(!err.contains("panicked"), "{words}: {err}");
        assert!(!(out.contains('\u{1b}') || err.contains('\u{1b}')), "{words}: colours, and no terminal:\n{out}{err}");
        Done { code, out, err }
    }

    /// The command on a vault, in a clean environment, not yet started.
    pub(crate) fn command(&self, vault: &Path, words: &str) -> Command {
        let mut command = Command::new(crate::PROGRAM);
        // Removes variables about vaults and libraries, except the folder of fetched libraries (QKVAULT_CACHE_DIR).
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            let ours = name.starts_with("QKVAULT_") && name != "QKVAULT_CACHE_DIR";
            let compilers = name.starts_with("CUDNN_") || name.starts_with("NVRTC_");
            if ours || compilers || ["VIRTUAL_ENV", "CONDA_PREFIX"].contains(&name.as_str()) {
                command.env_remove(&name);
            }
        }
        // Whose plans are compiled does not depend on what is fetched here: FlashAttention-4's need a Python.
        command.env("QKVAULT_PYTHON", "none");
        command.envs(self.variables.iter().map(|(k, v)| (k, v)));
        command.current_dir(env!("CARGO_MANIFEST_DIR")).arg("--vault").arg(vault).args(words.split_whitespace());
        let compiles = ["warm", "doctor", "--deep"].iter().any(|c| words.split_whitespace().any(|w| w == *c));
        if compiles && !words.contains("--cudnn") {
            command.args(&self.cudnn);
        }
        command
    }

    /// Runs the command with `--json`. Its output must be one JSON object.
    pub(crate) fn json(&self, words: &str) -> (i32, Value) {
        let done = self.run(&format!("--json {words}"));
        let value: Value = serde_json::from_str(&done.out)
            .unwrap_or_else(|e| panic!("{words}: {e}\nout: {}\nerr: {}", done.out, done.err));
        assert!(value.is_object(), "{words}: {value}");
        (done.code, value)
    }
}

impl Done {
    /// Checks that the run failed with this code, and printed one error paragraph with these words on standard error.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32, words: &[&str]) {
        let Done { code: found, out, err } = self;
        assert_eq!(*found, code, "out: {out}\nerr: {err}");
        let paragraphs: Vec<&str> = err.split("error: ").skip(1).collect();
        assert_eq!(paragraphs.len(), 1, "there must be one error: {err}");
        // For a wrong command line, clap adds the usage and how to get help.
        let help = ["\n\nUsage:", "\n\nFor more information", "\n\n  tip:"];
        let end = help.iter().filter_map(|h| paragraphs[0].find(h)).min().filter(|_| code == 2);
        let text = paragraphs[0][..end.unwrap_or(paragraphs[0].len())].trim_end();
        assert!(!text.contains("\n\n"), "more than one paragraph: {err}");
        for word in words {
            assert!(text.contains(word), "'{word}' is not in: {text}");
        }
    }

    /// Checks that the run succeeded, and returns its output.
    #[track_caller]
    pub(crate) fn good(&self) -> &str {
        assert_eq!(self.code, 0, "out: {}\nerr: {}", self.out, self.err);
        &self.out
    }
}

/// Checks that a value is an object with exactly these fields.
#[track_caller]
pub(crate) fn fields(value: &Value, names: &[&str]) {
    let mut found: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    let mut names = names.to_vec();
    found.sort_unstable();
    names.sort_unstable();
    assert_eq!(found, names, "{value:#}");
}

/// Prints a line of a test's output.
#[expect(clippy::print_stdout, reason = "a test prints its measurements")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}

impl Done {
    /// Checks that the run printed the help on standard error, with the exit code of wrong usage.
    #[track_caller]
    pub(crate) fn failed_with_help(&self) {
        assert_eq!(self.code, 2, "{}", self.err);
        assert!(self.err.contains("Usage:") && self.err.contains("warm"), "{}", self.err);
    }
}

/// Numbers of a report, by name.
#[track_caller]
pub(crate) fn numbers<const N: usize>(report: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| report[name].as_u64().unwrap_or_else(|| panic!("{name} is not a number: {report:#}")))
}
