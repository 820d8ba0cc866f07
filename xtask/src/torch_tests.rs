//! `cargo xtask torch-tests`: runs the tests of PyTorch's door, which need PyTorch 2.10 or newer and no GPU.
//!
//! `cargo xtask test` has them too.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::doors::DoorModules;
use crate::programs::Task;
use crate::record_tests::{TESTS, environment, environment_of};
use crate::{capi, cargo, requirements, ui, wheel};

/// The versions of `--matrix`: the oldest that has the interface, and the last patch of every other one.
pub(crate) const MATRIX: [&str; 6] = ["2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"];

/// The list of packages of the usual run.
const PACKAGES: &str = "torch";

/// Options of `torch-tests`.
#[derive(Debug, clap::Args)]
pub struct TorchTestsArgs {
    /// Use this Python, which has the packages, instead of an environment in the cache folder
    #[arg(long, value_name = "FILE", conflicts_with = "matrix")]
    python: Option<PathBuf>,
    /// Run with every version from 2.10 to the newest that was tried, one after another: 5 GB of the cache folder
    #[arg(long)]
    matrix: bool,
    /// Only these versions of the matrix
    #[arg(long, value_name = "VERSION", value_delimiter = ',', requires = "matrix")]
    only: Vec<String>,
}

/// Builds the library, and runs the Python tests with it.
///
/// # Errors
///
/// The library does not build, the environment cannot be made, or a test fails.
pub fn run(args: &TorchTestsArgs) -> Result<()> {
    let built = capi::build(true)?;
    let library = built.to_str().context("the library's name is not UTF-8")?;
    if args.matrix {
        return matrix(library, &args.only);
    }
    let python = match &args.python {
        Some(python) => std::path::absolute(python).context("the folder of this process is gone")?,
        None => environment("torch-tests", PACKAGES)?,
    };
    let folder = tempfile::tempdir().context("no temporary folder could be made")?;
    checked(&python, &built, &wheel::install(&built, folder.path())?)?;
    modules(python, library, JOBS, false)?.run()
}

/// How many modules run at a time.
const JOBS: usize = 2;

/// Makes the environment of the cache folder.
///
/// # Errors
///
/// Packages cannot be installed.
pub(crate) fn install() -> Result<()> {
    environment("torch-tests", PACKAGES).map(drop)
}

/// The modules of tests with a library that is built, in the environment of the cache folder; types and the guide are
/// checked before. `installed` is a folder with the wheel's packages.
///
/// # Errors
///
/// The environment cannot be made, or a test fails.
pub(crate) fn tasks(library: &Path, installed: &str) -> Result<Vec<Task<'static>>> {
    let python = environment("torch-tests", PACKAGES)?;
    checked(&python, library, installed)?;
    modules(python, utf8(library)?, JOBS, false)?.tasks()
}

fn checked(python: &Path, built: &Path, installed: &str) -> Result<()> {
    typed(python, utf8(built)?)?;
    guide(python, installed)
}

fn utf8(library: &Path) -> Result<&str> {
    library.to_str().context("the library's name is not UTF-8")
}

/// Runs the guide's programs with the wheel's packages and nothing else of the project.
fn guide(python: &Path, at: &str) -> Result<()> {
    let (own, path) = (format!("{at}/qkvault/libqkvault.so"), format!("{at}:{}/tests", adapter()?));
    let words = ["-m", "unittest", "test_torch.Guide"];
    cargo::run_program(python.into(), &words, &[("QKVAULT_LIBRARY", own.as_str()), ("PYTHONPATH", path.as_str())])
}

/// Checks the types of a user's program, and runs it.
fn typed(python: &Path, library: &str) -> Result<()> {
    let adapter = adapter()?;
    let program = format!("{TESTS}/typed_torch.py");
    let words = ["-m", "mypy", "--strict", "--follow-imports=silent", &program];
    cargo::run_program(python.into(), &words, &[("MYPYPATH", adapter.as_str())])?;
    let variables = [("QKVAULT_LIBRARY", library), ("PYTHONPATH", adapter.as_str())];
    cargo::run_program(python.into(), &[&program], &variables)
}

/// The folder of the Python package.
fn adapter() -> Result<String> {
    let adapter = cargo::root().join("adapters/python");
    Ok(adapter.to_str().context("the folder's name is not UTF-8")?.to_owned())
}

fn modules(python: PathBuf, library: &str, jobs: usize, may_skip: bool) -> Result<DoorModules> {
    let adapter = adapter()?;
    let path = format!("{adapter}:{adapter}/tests");
    let mut variables = vec![("QKVAULT_LIBRARY", library.to_owned()), ("PYTHONPATH", path)];
    // Tensors are small: threads of one operation would wait for each other, and take the core of another module.
    variables
        .extend([("PYTHONWARNINGS", "ignore"), ("OMP_NUM_THREADS", "1")].map(|(name, value)| (name, value.into())));
    Ok(DoorModules { python, prefix: "test_torch", variables, jobs, may_skip })
}

/// Runs the tests with each version in an environment of its own, which is removed afterwards.
fn matrix(library: &str, only: &[String]) -> Result<()> {
    let wanted = |version: &&str| only.is_empty() || only.iter().any(|own| own == version);
    let mut rows = Vec::new();
    for version in MATRIX.iter().copied().filter(wanted) {
        let name = format!("torch-tests-{version}");
        let made = requirements::list(&format!("torch-{version}"))
            .and_then(|wanted| environment_of(&name, Path::new("python3"), &wanted));
        rows.push((version, made.and_then(|python| modules(python, library, JOBS, true)?.run())));
        let folder = qkvault_base::cache_dir().join(name);
        std::fs::remove_dir_all(&folder).with_context(|| format!("{} could not be removed", folder.display()))?;
    }
    ensure!(!rows.is_empty(), "--only names no version of the matrix: {}", MATRIX.join(", "));
    for (version, done) in &rows {
        let said = done.as_ref().map_or_else(|error| format!("{error:#}"), |()| "right".to_owned());
        ui::say(&format!("PyTorch {version}: {said}"));
    }
    let wrong = rows.iter().filter(|(_, done)| done.is_err()).count();
    ensure!(wrong == 0, "{wrong} of {} versions failed", rows.len());
    Ok(())
}

/// Wishes with another version of PyTorch.
pub(crate) fn of_version(list: &str, version: &str) -> String {
    let line = |line: &str| if line.starts_with("torch==") { format!("torch=={version}") } else { line.to_owned() };
    list.lines().map(|own| line(own) + "\n").collect()
}

#[cfg(test)]
mod tests_of_lists {
    use super::*;

    #[test]
    fn the_matrix_changes_the_version_of_pytorch_alone() {
        let list = "# Packages.\ntorch==2.11.0\ntransformers==5.23.0\n";
        assert_eq!(of_version(list, "2.15.0"), "# Packages.\ntorch==2.15.0\ntransformers==5.23.0\n");
        let own = requirements::list(PACKAGES).expect("the list");
        let pinned = |version: &&&str| own.split_whitespace().any(|word| word == format!("torch=={version}"));
        assert_eq!(MATRIX.iter().filter(pinned).count(), 1, "the pinned version is in the matrix");
    }
}
