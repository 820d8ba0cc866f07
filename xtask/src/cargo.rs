//! Runs cargo for a chore: in the workspace's root, with the command line printed first.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::ui;

/// The workspace's root.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// The folder of what is built, for workspaces beside the main one.
///
/// # Errors
///
/// The path is not UTF-8.
pub(crate) fn target() -> Result<String> {
    let usual = || Ok(root().join("target").to_str().context("the path of the project is not UTF-8")?.to_owned());
    std::env::var("CARGO_TARGET_DIR").or_else(|_| usual())
}

/// Variables with which cargo builds the members of a workspace by clippy's compiler, where a lint is an error: as
/// `cargo clippy` sets them, which only checks, so that a build after it compiles everything again.
///
/// # Errors
///
/// rustc does not say where its programs are, or clippy is not among them.
pub(crate) fn lints() -> Result<[(&'static str, String); 2]> {
    let said = Command::new("rustc").args(["--print", "sysroot"]).output().context("rustc does not start")?;
    let root = PathBuf::from(String::from_utf8(said.stdout).context("its folder is no text")?.trim_end());
    let driver = root.join(format!("bin/clippy-driver{}", std::env::consts::EXE_SUFFIX));
    anyhow::ensure!(driver.is_file(), "{} is not there; `rustup component add clippy` brings it", driver.display());
    let driver = driver.to_str().context("the folder of rustc is not UTF-8")?.to_owned();
    Ok([("RUSTC_WORKSPACE_WRAPPER", driver), ("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__".to_owned())])
}

/// Runs cargo with these arguments and variables.
///
/// # Errors
///
/// Cargo cannot be started or fails. The error has the command line.
pub fn run(args: &[&str], variables: &[(&str, &str)]) -> Result<()> {
    run_program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), args, variables)
}

/// Runs cargo with these arguments and returns what it prints.
///
/// # Errors
///
/// Cargo cannot be started or fails. The error has the command line.
pub(crate) fn output(args: &[&str]) -> Result<String> {
    let line = format!("cargo {}", args.join(" "));
    ui::say(&format!("$ {line}"));
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root()).stderr(std::process::Stdio::inherit());
    forget_this_package(&mut command);
    let done = command.output().with_context(|| format!("`{line}` could not be started"))?;
    if !done.status.success() {
        bail!("`{line}` failed");
    }
    String::from_utf8(done.stdout).with_context(|| format!("`{line}` printed what is no text"))
}

/// Cargo's variables about this package would reach build scripts and cause rebuilds.
fn forget_this_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
}

/// Runs cargo, or a program that runs it, with these arguments and variables.
///
/// # Errors
///
/// The program cannot be started or fails. The error has the command line.
pub fn run_program(program: OsString, args: &[&str], variables: &[(&str, &str)]) -> Result<()> {
    let shown: Vec<String> = variables.iter().map(|(k, v)| format!("{k}='{v}' ")).collect();
    let name = Path::new(&program).file_name().unwrap_or(&program).to_string_lossy().into_owned();
    let line = format!("{}{name} {}", shown.concat(), args.join(" "));
    ui::say(&format!("$ {line}"));
    let mut command = Command::new(program);
    command.args(args).envs(variables.iter().copied()).current_dir(root());
    forget_this_package(&mut command);
    let status = command.status().with_context(|| format!("`{line}` could not be started"))?;
    if !status.success() {
        bail!("`{line}` failed");
    }
    Ok(())
}
