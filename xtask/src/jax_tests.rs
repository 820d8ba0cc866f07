//! `cargo xtask jax-tests`: runs the tests of `qkvault.jax` on the CPU, where the oracle computes.
//!
//! They are in no run of CI, because they install JAX and take minutes. CI calls the handlers (`adapters/c/src/xla`) as
//! XLA does.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::record_tests::{TESTS, environment};
use crate::{capi, cargo};

/// Options of `jax-tests`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Use this Python, which has JAX, NumPy and flatbuffers, instead of an environment in the cache folder
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Build the library quickly and without optimisation
    #[arg(long)]
    debug: bool,
}

/// Builds the library and runs the tests. `QKVAULT_TEST_CUDNN` names a cuDNN, with which plans are compiled too.
///
/// # Errors
///
/// The library does not build, the environment cannot be made, or a test fails.
pub fn run(args: &Args) -> Result<()> {
    let library = capi::build(args.debug)?;
    let python = match &args.python {
        Some(python) => std::path::absolute(python).context("the folder of this process is gone")?,
        None => environment("jax-tests", "requirements-jax.txt")?,
    };
    let package = cargo::root().join(TESTS).join("..");
    let (library, package) = (library.to_str(), package.to_str());
    let (library, package) = library.zip(package).context("the path of the project is not UTF-8")?;
    let variables = [("QKVAULT_LIBRARY", library), ("PYTHONPATH", package)];
    let tests = ["-m", "unittest", "discover", "--start-directory", TESTS, "--pattern", "test_jax*.py"];
    cargo::run_program(python.into(), &tests, &variables)
}
