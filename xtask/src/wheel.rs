//! `cargo xtask wheel`: builds the wheel of the Python package.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::{capi, cargo, ui};

/// Options of `wheel`.
#[derive(Debug, clap::Args)]
pub struct WheelArgs {
    /// The folder to write the wheel to
    #[arg(long, value_name = "FOLDER", default_value = "target/wheel")]
    out: PathBuf,
    /// Build quickly and without optimisation
    #[arg(long)]
    debug: bool,
}

/// Builds the library and packs it with the Python files.
///
/// # Errors
///
/// The library does not build, Python does not start, or the wheel cannot be written.
pub fn run(args: &WheelArgs) -> Result<()> {
    let library = capi::build(args.debug)?;
    let wheel = pack(&library, &cargo::root().join(&args.out))?;
    ui::say(&format!("written: {wheel}\ninstall it with: pip install {wheel}"));
    Ok(())
}

/// Packs a library with the Python files, and returns the path of the wheel.
///
/// # Errors
///
/// Python does not start, or the wheel cannot be written.
pub(crate) fn pack(library: &Path, out: &Path) -> Result<String> {
    let done = Command::new("python3")
        .arg(cargo::root().join("adapters/python/wheel.py"))
        .arg("--library")
        .arg(library)
        .args(["--version", env!("CARGO_PKG_VERSION"), "--out"])
        .arg(out)
        .output()
        .context("python3 does not start; it packs the wheel")?;
    ensure!(done.status.success(), "the wheel was not packed: {}", String::from_utf8_lossy(&done.stderr));
    Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

/// Packs a library, installs the wheel into a folder with pip, and returns the folder: a place for `PYTHONPATH` that
/// has the package and nothing else of the project.
///
/// # Errors
///
/// The wheel is not packed, or pip does not install it.
pub(crate) fn install(python: &Path, library: &Path, folder: &Path) -> Result<String> {
    let wheel = pack(library, folder)?;
    let at = folder.join("installed");
    let at = at.to_str().context("the temporary folder's name is not UTF-8")?;
    let words = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", at, &wheel];
    cargo::run_program(python.into(), &words, &[])?;
    Ok(at.to_owned())
}
