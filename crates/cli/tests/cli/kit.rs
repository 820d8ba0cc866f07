//! Running the command in a clean environment, and what must hold of every run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use qkvault_base::{MANIFEST, cudnn_dir};
use qkvault_skip::{Need, skip};
use serde_json::Value;
use tempfile::TempDir;

/// What one run came to.
pub(crate) struct Done {
    /// The exit code.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

/// A folder for a vault and for files, and the command run on it.
pub(crate) struct Place {
    folder: TempDir,
    variables: Vec<(String, String)>,
    cudnn: Vec<String>,
}

impl Place {
    /// A place where nothing was compiled yet.
    pub(crate) fn new() -> Place {
        Place { folder: tempfile::tempdir().unwrap(), variables: Vec::new(), cudnn: Vec::new() }
    }

    /// The same with a fetched slim cuDNN, or `None`, with the reason printed, where there is none.
    ///
    /// A stated requirement: with `QKVAULT_REQUIRE_CUDNN=1` its absence is a failure.
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

    /// The same place without a variable that was set.
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

    /// The entry files of the vault, sorted.
    pub(crate) fn entries(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for shard in self.path("vault/v3/entries").read_dir().into_iter().flatten().flatten() {
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
        let mut command = Command::new(crate::PROGRAM);
        // What the tests' own environment says about vaults and libraries is not what is tested. Where fetched libraries
        // are (QKVAULT_CACHE_DIR) stays.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            let ours = name.starts_with("QKVAULT_") && name != "QKVAULT_CACHE_DIR";
            let compilers = name.starts_with("CUDNN_") || name.starts_with("NVRTC_");
            if ours || compilers || ["VIRTUAL_ENV", "CONDA_PREFIX"].contains(&name.as_str()) {
                command.env_remove(&name);
            }
        }
        command.envs(self.variables.iter().map(|(k, v)| (k, v)));
        command.current_dir(env!("CARGO_MANIFEST_DIR")).arg("--vault").arg(vault).args(words.split_whitespace());
        let compiles = ["warm", "doctor", "--deep"].iter().any(|c| words.split_whitespace().any(|w| w == *c));
        if compiles && !words.contains("--cudnn") {
            command.args(&self.cudnn);
        }
        let Output { status, stdout, stderr } = command.output().unwrap();
        let code = status.code().unwrap_or_else(|| panic!("{words}: ended by a signal: {status}"));
        let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(!err.contains("panicked"), "{words}: {err}");
        assert!(!(out.contains('\u{1b}') || err.contains('\u{1b}')), "{words}: colours, and no terminal:\n{out}{err}");
        Done { code, out, err }
    }

    /// Runs the command with `--json`; what it prints must be one JSON object.
    pub(crate) fn json(&self, words: &str) -> (i32, Value) {
        let done = self.run(&format!("--json {words}"));
        let value: Value = serde_json::from_str(&done.out)
            .unwrap_or_else(|e| panic!("{words}: {e}\nout: {}\nerr: {}", done.out, done.err));
        assert!(value.is_object(), "{words}: {value}");
        (done.code, value)
    }
}

impl Done {
    /// The run failed with this code and told so in one paragraph on standard error, with these words in it.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32, words: &[&str]) {
        let Done { code: found, out, err } = self;
        assert_eq!(*found, code, "out: {out}\nerr: {err}");
        let paragraphs: Vec<&str> = err.split("error: ").skip(1).collect();
        assert_eq!(paragraphs.len(), 1, "one error is told once: {err}");
        // Where the command line itself is wrong, what reads it adds the usage and how to get help.
        let help = ["\n\nUsage:", "\n\nFor more information", "\n\n  tip:"];
        let end = help.iter().filter_map(|h| paragraphs[0].find(h)).min().filter(|_| code == 2);
        let told = paragraphs[0][..end.unwrap_or(paragraphs[0].len())].trim_end();
        assert!(!told.contains("\n\n"), "more than one paragraph: {err}");
        for word in words {
            assert!(told.contains(word), "'{word}' is not in: {told}");
        }
    }

    /// The run was good.
    #[track_caller]
    pub(crate) fn good(&self) -> &str {
        assert_eq!(self.code, 0, "out: {}\nerr: {}", self.out, self.err);
        &self.out
    }
}

/// Whether a value is an object with exactly these fields.
#[track_caller]
pub(crate) fn fields(value: &Value, names: &[&str]) {
    let mut found: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    let mut names = names.to_vec();
    found.sort_unstable();
    names.sort_unstable();
    assert_eq!(found, names, "{value:#}");
}

/// A line for who reads the output of a test.
#[expect(clippy::print_stdout, reason = "a test that measures says what")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}

impl Done {
    /// The command was called without saying what to do: the help on standard error, and the code of wrong usage.
    #[track_caller]
    pub(crate) fn failed_with_help(&self) {
        assert_eq!(self.code, 2, "{}", self.err);
        assert!(self.err.contains("Usage:") && self.err.contains("warm"), "{}", self.err);
    }
}

/// Numbers of a report, by name.
#[track_caller]
pub(crate) fn numbers<const N: usize>(report: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| report[name].as_u64().unwrap_or_else(|| panic!("{name} is no number: {report:#}")))
}
