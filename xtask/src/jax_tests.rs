//! `cargo xtask jax-tests`: runs the tests of `qkvault.jax` on the CPU, where the oracle computes, and checks the types
//! of a user's program. With `--matrix`, the tests run under every version of JAX that the package is for.
//!
//! `cargo xtask test` has the first.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::doors::DoorModules;
use crate::programs::Task;
use crate::record_tests::{TESTS, environment, environment_of};
use crate::{capi, cargo, requirements, ui, wheel};

/// Versions of JAX, the last patch release of each minor version, with the Pythons that each is for.
pub(crate) const MATRIX: [(&str, u32, u32); 7] = [
    ("0.6.2", 10, 13),
    ("0.7.2", 11, 13),
    ("0.8.3", 11, 14),
    ("0.9.2", 11, 14),
    ("0.10.2", 11, 14),
    ("0.11.2", 12, 14),
    ("0.12.0.1", 12, 14),
];

/// Options of `jax-tests`.
#[derive(Debug, clap::Args)]
pub struct JaxTestsArgs {
    /// Use this Python, which has JAX, NumPy, flatbuffers and mypy, instead of an environment in the cache folder
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Run the tests under every version of JAX from 0.6 on, each in an environment of its own
    #[arg(long, conflicts_with = "python")]
    matrix: bool,
    /// With --matrix: Pythons beside those on the path, of other versions
    #[arg(long, value_name = "FILES", value_delimiter = ',', requires = "matrix")]
    pythons: Vec<PathBuf>,
    /// Build the library quickly and without optimisation
    #[arg(long)]
    debug: bool,
}

/// Builds the library and runs the tests. Plans are compiled with the cuDNN that `QKVAULT_TEST_CUDNN` names, else with
/// the newest that is fetched; without one, the tests that compile are skipped.
///
/// # Errors
///
/// The library does not build, an environment cannot be made, a test fails, or a version of the matrix has no Python.
pub fn run(args: &JaxTestsArgs) -> Result<()> {
    let library = capi::build(args.debug)?;
    if args.matrix {
        return matrix(&args.pythons, &library);
    }
    let python = match &args.python {
        Some(python) => std::path::absolute(python).context("the folder of this process is gone")?,
        None => environment("jax-tests", "jax")?,
    };
    let folder = tempfile::tempdir().context("no temporary folder could be made")?;
    checked(&python, &library, &wheel::install(&library, folder.path())?)?;
    modules(python, &library, 2, false)?.run()
}

/// Makes the environment of the cache folder.
///
/// # Errors
///
/// Packages cannot be installed.
pub(crate) fn install() -> Result<()> {
    environment("jax-tests", "jax").map(drop)
}

/// The modules of tests with a library that is built, in the environment of the cache folder; types and the guide are
/// checked before. `installed` is a folder with the wheel's packages.
///
/// # Errors
///
/// The environment cannot be made, or a test fails.
pub(crate) fn tasks(library: &Path, installed: &str) -> Result<Vec<Task<'static>>> {
    let python = environment("jax-tests", "jax")?;
    checked(&python, library, installed)?;
    modules(python, library, 2, false)?.tasks()
}

fn checked(python: &Path, library: &Path, installed: &str) -> Result<()> {
    let program = format!("{TESTS}/typed_program.py");
    let words = ["-m", "mypy", "--strict", "--follow-imports=silent", &program];
    cargo::run_program(python.into(), &words, &[("MYPYPATH", package()?.as_str())])?;
    with(python, library, &[&program])?;
    guide(python, installed)
}

/// Runs the guide's page with the wheel's packages and nothing else of the project.
fn guide(python: &Path, at: &str) -> Result<()> {
    let tests = cargo::root().join(TESTS);
    let path = format!("{at}:{}", tests.to_str().context("the path of the project is not UTF-8")?);
    let words = ["-m", "unittest", "test_jax.Package.test_the_guide_runs"];
    cargo::run_program(python.into(), &words, &[("PYTHONPATH", path.as_str()), ("JAX_PLATFORMS", "cpu")])
}

/// The folder of the Python package.
fn package() -> Result<String> {
    let package = cargo::root().join(TESTS).join("..");
    Ok(package.to_str().context("the path of the project is not UTF-8")?.to_owned())
}

/// Runs a Python with the library and the package.
fn with(python: &Path, library: &Path, words: &[&str]) -> Result<()> {
    let variables = variables(library)?;
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    cargo::run_program(python.into(), words, &variables)
}

/// The library, the package, and the cuDNN of the tests that compile plans.
fn variables(library: &Path) -> Result<Vec<(&'static str, String)>> {
    let library = library.to_str().context("the path of the project is not UTF-8")?.to_owned();
    let package = package()?;
    let path = format!("{package}:{package}/tests");
    let mut variables = vec![("QKVAULT_LIBRARY", library), ("PYTHONPATH", path), ("JAX_PLATFORMS", "cpu".to_owned())];
    variables.push(("XLA_FLAGS", XLA.to_owned()));
    let cudnn = cudnn().filter(|_| std::env::var_os(CUDNN).is_none());
    variables.extend(cudnn.map(|folder| (CUDNN, folder)));
    Ok(variables)
}

/// XLA takes longer to compile a test's program than that takes to run: 34 s of flax's tests become 20 by these. The
/// oldest and the newest JAX of the matrix know them.
const XLA: &str = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true \
                   --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1";

/// Names the cuDNN with which tests compile plans.
const CUDNN: &str = "QKVAULT_TEST_CUDNN";

/// The newest cuDNN that is fetched, if it is new enough for the tests.
fn cudnn() -> Option<String> {
    let folders = qkvault_base::cudnn_dir().read_dir().into_iter().flatten().flatten();
    let fetched = folders.filter(|folder| folder.path().join(qkvault_base::MANIFEST).exists());
    let newest = fetched.filter_map(|folder| folder.path().to_str().map(str::to_owned)).max()?;
    let least = qkvault_base::cudnn_dir().join("9.19");
    (newest.as_str() >= least.to_str()?).then_some(newest)
}

fn modules(python: PathBuf, library: &Path, jobs: usize, may_skip: bool) -> Result<DoorModules> {
    Ok(DoorModules { python, prefix: "test_jax", variables: variables(library)?, jobs, may_skip })
}

/// Runs the tests under every version, and says at the end how each went.
fn matrix(given: &[PathBuf], library: &Path) -> Result<()> {
    let named = ["python3".into()].into_iter().chain((10..=14).map(|minor| format!("python3.{minor}")));
    let all: Vec<PathBuf> = given.iter().cloned().chain(named.map(PathBuf::from)).collect();
    let known: Vec<(u32, PathBuf)> = all.into_iter().filter_map(|python| Some((minor(&python)?, python))).collect();
    let mut rows = Vec::new();
    for (version, least, most) in MATRIX {
        let row = match chosen(&known, least, most) {
            None => Err(format!("no Python of 3.{least} to 3.{most} starts; name one with --pythons")),
            Some((minor, python)) => {
                let wanted = requirements::list(&format!("jax-{version}"));
                let made = wanted.and_then(|wanted| environment_of(&format!("jax-tests-{version}"), python, &wanted));
                let done = made.and_then(|python| modules(python, library, 2, true)?.run());
                done.map(|()| format!("passed under Python 3.{minor}")).map_err(|error| format!("{error:#}"))
            }
        };
        rows.push((version, row));
    }
    for (version, row) in &rows {
        let (Ok(said) | Err(said)) = row;
        ui::say(&format!("JAX {version}: {said}"));
    }
    let failed: Vec<&str> = rows.iter().filter(|(_, row)| row.is_err()).map(|(version, _)| *version).collect();
    if failed.is_empty() { Ok(()) } else { bail!("JAX {} did not pass", failed.join(", ")) }
}

/// The newest Python that a version is for.
fn chosen(known: &[(u32, PathBuf)], least: u32, most: u32) -> Option<(u32, &Path)> {
    let fitting = known.iter().filter(|(minor, _)| (least..=most).contains(minor));
    fitting.max_by_key(|(minor, _)| *minor).map(|(minor, python)| (*minor, python.as_path()))
}

/// The minor version of a Python 3; none if it does not start.
fn minor(python: &Path) -> Option<u32> {
    let program = "import sys; print(sys.version_info[1])";
    let said = Command::new(python).args(["-c", program]).stderr(Stdio::null()).output().ok()?;
    said.status.success().then(|| String::from_utf8_lossy(&said.stdout).trim().parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_gets_the_newest_python_that_it_is_for() {
        let known: Vec<(u32, PathBuf)> = [11, 13, 12].map(|minor| (minor, format!("python3.{minor}").into())).into();
        let of = |least, most| chosen(&known, least, most).map(|(minor, _)| minor);
        assert_eq!((of(10, 13), of(11, 12), of(14, 15)), (Some(13), Some(12), None));
    }

    #[test]
    fn versions_rise_and_those_of_the_usual_run_are_among_them() {
        let number =
            |version: &str| version.split('.').map(|part| part.parse().expect("a number")).collect::<Vec<u32>>();
        assert!(MATRIX.windows(2).all(|pair| number(pair[0].0) < number(pair[1].0)));
        let usual = requirements::list("jax").expect("a list");
        let pinned = usual.split_whitespace().find_map(|word| word.strip_prefix("jax==")).expect("it names JAX");
        assert!(MATRIX.iter().any(|(version, ..)| *version == pinned), "{pinned}");
    }
}
