//! `adapters/candle`, a workspace of its own: its part of `cargo xtask test`, and `cargo xtask candle-check`.
//!
//! candle's feature `cuda` compiles CUDA sources, for which it needs nvcc. What this repository has under that feature
//! is checked with a program in nvcc's place that writes empty files, so that types are checked and nothing is linked.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::cargo;

/// Its manifest, from the root.
pub(crate) const MANIFEST: &str = "adapters/candle/Cargo.toml";

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

/// Runs the checks and tests of the workspace, on the CPU, and the check of types for GPUs. Lints without the feature
/// `cuda` are those of the build: candle and what it uses are compiled once less.
///
/// # Errors
///
/// A check or a test fails.
pub fn test(only_tests: bool) -> Result<()> {
    let target = cargo::target()?;
    let target = [("CARGO_TARGET_DIR", target.as_str())];
    // The default members: the others have candle's feature `cuda`.
    let test = ["test", "--manifest-path", MANIFEST];
    if only_tests {
        return cargo::run(&test, &target);
    }
    cargo::run(&["fmt", "--manifest-path", MANIFEST, "--all", "--check"], &target)?;
    let lints = cargo::lints()?;
    let lints = lints.each_ref().map(|(name, value)| (*name, value.as_str()));
    cargo::run(&test, &[&target[..], &lints].concat())?;
    check()
}

/// Fails unless a program of candle-transformers that names no package of this repository gets candle-qkvault for GPUs:
/// its features must come with `[patch.crates-io]` alone. (The stand-in once enabled none, and every call on a GPU was
/// an error.)
fn user() -> Result<()> {
    let tree = |package: &str, features: &str| {
        let words = ["tree", "--locked", "--manifest-path", MANIFEST, "--edges", "normal", "--prefix", "none"];
        let of = ["--format", "{p} [{f}]", "--package", package, "--features", features];
        cargo::output(&[&words[..], &of].concat())
    };
    let (user, stand_in) = (tree("candle-user", "")?, tree("candle-flash-attn", "cudnn")?);
    for (tree, package, feature) in
        [(&user, "candle-qkvault", "cuda"), (&user, "candle-core", "cuda"), (&stand_in, "candle-core", "cudnn")]
    {
        ensure!(gives(tree, package, feature), "{package} has no feature {feature} in the tree of a user:\n{tree}");
    }
    Ok(())
}

/// Whether a package has a feature in what `cargo tree` prints.
fn gives(tree: &str, package: &str, feature: &str) -> bool {
    let own = |line: &str| line.split(' ').next() == Some(package);
    let features =
        |line: &str| line.rsplit_once('[').map(|(_, rest)| rest.trim_end_matches([' ', '(', '*', ')', ']']).to_owned());
    tree.lines().filter(|line| own(line)).filter_map(features).any(|list| list.split(',').any(|name| name == feature))
}

/// Checks the types of everything under the feature `cuda`, and its documentation, without nvcc and without a GPU.
///
/// # Errors
///
/// It does not compile, or a user of candle-flash-attn does not get the feature `cuda`.
pub fn check() -> Result<()> {
    user()?;
    let folder = tempfile::tempdir()?;
    let nvcc = folder.path().join("nvcc");
    std::fs::write(&nvcc, NVCC)?;
    executable(&nvcc)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", folder.path().display());
    let target = cargo::target()?;
    let nvcc = nvcc.display().to_string();
    let variables = [("NVCC", &*nvcc), ("PATH", &*path), ("CUDA_COMPUTE_CAP", "90"), ("CARGO_TARGET_DIR", &*target)];
    // All at once, the user too: candle-transformers uses the stand-in, so another kind of check checks it again.
    let words = ["clippy", "--manifest-path", MANIFEST, "--workspace", "--all-targets", "--features"];
    let features = ["candle-qkvault/cuda,candle-qkvault-examples/cuda", "--", "-D", "warnings"];
    cargo::run(&[&words[..], &features].concat(), &variables)?;
    let doc = ["doc", "--manifest-path", MANIFEST, "-p", "candle-qkvault", "--no-deps", "--features", "cuda"];
    cargo::run(&doc, &[&variables[..], &[("RUSTDOCFLAGS", "-D warnings")]].concat())
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

#[cfg(test)]
mod tests {
    use super::gives;

    #[test]
    fn the_tree_of_a_stand_in_without_features_gives_a_user_no_gpu() {
        let before =
            "candle-user v0.1.0 (/a) []\ncandle-core v0.11.1 [cuda,cudarc,default]\ncandle-qkvault v0.1.0 (/b) []";
        assert!(gives(before, "candle-core", "cuda") && !gives(before, "candle-qkvault", "cuda"));
        assert!(gives("candle-qkvault v0.1.0 (/b) [cuda] (*)", "candle-qkvault", "cuda"));
        assert!(!gives("candle-qkvault-examples v0.1.0 (/b) [cuda]", "candle-qkvault", "cuda"));
    }
}
