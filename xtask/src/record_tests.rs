//! `cargo xtask record-tests`: runs the tests of the recorder of PyTorch programs (`qkvault_record.py`), which need
//! PyTorch, transformers and diffusers.
//!
//! They are in no run of CI, because they install gigabytes. CI reads what they wrote (`crates/models/tests/recorded`),
//! and this chore compares it with what the recorder writes now.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::{cargo, requirements, ui};

/// The folder of the tests, from the root.
pub(crate) const TESTS: &str = "adapters/python/tests";

/// The modules of tests; those of the Python package beside them have a chore of their own.
const MODULES: [&str; 4] = ["test_trace", "test_record", "test_models", "test_gpu"];

/// Options of `record-tests`.
#[derive(Debug, clap::Args)]
pub struct RecordTestsArgs {
    /// Use this Python, which has the packages, instead of an environment in the cache folder
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Write the files in crates/models/tests/recorded anew instead of comparing them
    #[arg(long)]
    update: bool,
}

/// Runs the Python tests, then the Rust test of what they wrote, with many more points for each modification.
///
/// # Errors
///
/// The environment cannot be made, or a test fails.
pub fn run(args: &RecordTestsArgs) -> Result<()> {
    let python = match &args.python {
        Some(python) => std::path::absolute(python).context("the folder of this process is gone")?,
        None => environment("record-tests", "record")?,
    };
    let folder = tempfile::tempdir().context("no temporary folder could be made")?;
    let points = folder.path().join("points.json");
    let points = points.to_str().context("the temporary folder's name is not UTF-8")?;
    let tests = cargo::root().join(TESTS);
    let tests = tests.to_str().context("the workspace's folder is not UTF-8")?;
    let mut variables = vec![("QKVAULT_RECORDED_POINTS", points), ("PYTHONWARNINGS", "ignore"), ("PYTHONPATH", tests)];
    if args.update {
        variables.push(("UPDATE_GOLDENS", "1"));
    }
    let words: Vec<&str> = ["-m", "unittest"].into_iter().chain(MODULES).collect();
    cargo::run_program(python.into(), &words, &variables)?;
    cargo::run(&["test", "--package", "qkvault-models", "--test", "recorded"], &variables[..1])
}

/// The Python of an environment in the cache folder with the pinned packages of a list beside the tests; made on the
/// first run and when the pins change.
///
/// # Errors
///
/// The list cannot be read, or the environment cannot be made.
pub(crate) fn environment(name: &str, list: &str) -> Result<PathBuf> {
    environment_of(name, Path::new("python3"), &requirements::list(list)?)
}

/// The same with a list of packages as text, and the Python that it is made of.
///
/// # Errors
///
/// The environment cannot be made.
pub(crate) fn environment_of(name: &str, of: &Path, wanted: &str) -> Result<PathBuf> {
    let folder = qkvault_base::cache_dir().join(name);
    let python = folder.join("bin/python");
    let made = folder.join("installed.txt");
    if std::fs::read_to_string(&made).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    ui::say(&format!("packages of {name} are installed once; pip's own settings say from where"));
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("{} could not be removed", folder.display()))?;
    }
    let list = folder.join("wanted.txt");
    let (Some(at), Some(file)) = (folder.to_str(), list.to_str()) else {
        bail!("the cache folder's name is not UTF-8")
    };
    cargo::run_program(of.into(), &["-m", "venv", at], &[])?;
    std::fs::write(&list, wanted).with_context(|| format!("{} could not be written", list.display()))?;
    let words = ["-m", "pip", "install", "--require-hashes", "--only-binary=:all:", "--requirement", file];
    cargo::run_program(python.clone().into(), &words, &[])?;
    std::fs::write(&made, wanted).with_context(|| format!("{} could not be written", made.display()))?;
    Ok(python)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CI has no PyTorch, and still notices a file that Python cannot read.
    #[test]
    fn every_python_file_of_the_adapters_parses() {
        let folder = cargo::root().join("adapters/python");
        let mut files = Vec::new();
        for part in ["", "tests", "qkvault", "qkvault/jax", "qkvault/torch"] {
            let folder = folder.join(part);
            let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
            files.extend(entries.filter(|path| path.extension().is_some_and(|end| end == "py")));
        }
        assert!(files.len() >= 6, "{files:?}");
        let program = "import ast, sys\nfor path in sys.argv[1:]: ast.parse(open(path, encoding='utf-8').read(), path)";
        let done = std::process::Command::new("python3").args(["-c", program]).args(&files).output().expect("Python");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    #[test]
    fn no_line_of_python_is_longer_than_rust_s() {
        for name in ["qkvault_record.py", "tests/test_record.py", "tests/test_trace.py", "tests/modifications.py"] {
            let text = std::fs::read_to_string(cargo::root().join("adapters/python").join(name)).expect("a file");
            let long: Vec<usize> =
                (1..).zip(text.lines()).filter(|(_, l)| l.chars().count() > 120).map(|(n, _)| n).collect();
            assert_eq!(long, [0; 0], "{name}: lines with more than 120 columns");
        }
    }
}
