//! `adapters/candle`, a workspace of its own: its part of `cargo xtask test`, and `cargo xtask candle-check`.
//!
//! candle's feature `cuda` compiles CUDA sources, for which it needs nvcc. What this repository has under that feature
//! is checked with a program in nvcc's place that writes empty files, so that types are checked and nothing is linked.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::cargo;

const MANIFEST: &str = "adapters/candle/Cargo.toml";

/// Answers as nvcc does to questions about versions, and writes an empty file wherever one is asked for.
const NVCC: &str = r#"#!/bin/sh
out='' folder='' source='' kind=''
while [ $# -gt 0 ]; do
  case "$1" in
    --version) printf '\n\n\nCuda compilation tools, release 13.0, V13.0.88\n'; exit 0 ;;
    --list-gpu-code|--list-gpu-arch) printf 'sm_80\nsm_90\nsm_100\n'; exit 0 ;;
    -o|--output-file) shift; out=$1 ;;
    --output-directory) shift; folder=$1 ;;
    --output-directory=*) folder=${1#*=} ;;
    -lib|--lib) kind=archive ;;
    *.cu) source=$1 ;;
  esac
  shift
done
[ -n "$out" ] || out=$folder/$(basename "${source%.cu}").ptx
case "$kind" in
  archive) rm -f "$out"; ar crs "$out" ;;
  *) : > "$out" ;;
esac
"#;

/// Runs the checks and tests of the workspace, on the CPU, and the check of types for GPUs.
///
/// # Errors
///
/// A check or a test fails.
pub fn test(only_tests: bool) -> Result<()> {
    let target = cargo::target()?;
    let target = [("CARGO_TARGET_DIR", target.as_str())];
    let run = |words: &[&str]| {
        let (command, rest) = words.split_first().context("a command")?;
        cargo::run(&[&[*command, "--manifest-path", MANIFEST], rest].concat(), &target)
    };
    if !only_tests {
        run(&["fmt", "--all", "--check"])?;
        run(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    }
    run(&["test", "--workspace"])?;
    if !only_tests {
        check()?;
        let target = [target[0], ("RUSTDOCFLAGS", "-D warnings")];
        cargo::run(&["doc", "--manifest-path", MANIFEST, "-p", "candle-qkvault", "--no-deps"], &target)?;
    }
    Ok(())
}

/// Checks the types of everything under the feature `cuda`, without nvcc and without a GPU.
///
/// # Errors
///
/// It does not compile.
pub fn check() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let nvcc = folder.path().join("nvcc");
    std::fs::write(&nvcc, NVCC)?;
    executable(&nvcc)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", folder.path().display());
    let target = cargo::target()?;
    let nvcc = nvcc.display().to_string();
    let variables = [("NVCC", &*nvcc), ("PATH", &*path), ("CUDA_COMPUTE_CAP", "90"), ("CARGO_TARGET_DIR", &*target)];
    let words = ["clippy", "--manifest-path", MANIFEST, "--workspace", "--all-targets", "--features"];
    let features = ["candle-qkvault/cuda,candle-qkvault-examples/cuda", "--", "-D", "warnings"];
    cargo::run(&[&words[..], &features].concat(), &variables)
}

#[cfg(unix)]
fn executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755))?)
}

#[cfg(not(unix))]
fn executable(_: &Path) -> Result<()> {
    anyhow::bail!("candle-check needs a shell")
}
