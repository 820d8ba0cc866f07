//! `cargo xtask torch-tests`: runs the tests of PyTorch's door, which need PyTorch 2.10 or newer and no GPU.
//!
//! They are in no run of CI, because they install gigabytes. CI has the tests in `adapters/c/src/torch`.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::record_tests::environment;
use crate::{capi, cargo};

/// The modules of tests.
const MODULES: [&str; 2] = ["test_torch", "test_torch_calls"];

/// Options of `torch-tests`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Use this Python, which has the packages, instead of an environment in the cache folder
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
}

/// Builds the library, and runs the Python tests with it.
///
/// # Errors
///
/// The library does not build, the environment cannot be made, or a test fails.
pub fn run(args: &Args) -> Result<()> {
    let python = match &args.python {
        Some(python) => std::path::absolute(python).context("the folder of this process is gone")?,
        None => environment("torch-tests", "requirements-torch.txt")?,
    };
    let library = capi::build(true)?;
    let library = library.to_str().context("the library's name is not UTF-8")?;
    let adapter = cargo::root().join("adapters/python");
    let adapter = adapter.to_str().context("the folder's name is not UTF-8")?;
    let path = format!("{adapter}:{adapter}/tests");
    let variables = [("QKVAULT_LIBRARY", library), ("PYTHONPATH", path.as_str()), ("PYTHONWARNINGS", "ignore")];
    let words: Vec<&str> = ["-m", "unittest"].into_iter().chain(MODULES).collect();
    cargo::run_program(python.into(), &words, &variables)
}
