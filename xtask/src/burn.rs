//! `adapters/burn`, a workspace of its own: its part of `cargo xtask test`, on CPUs alone, and `cargo xtask
//! burn-check`, which builds burn's CUDA backend: minutes that a change here seldom needs.

use anyhow::Result;

use crate::cargo;

/// Its manifest, from the root.
pub(crate) const MANIFEST: &str = "adapters/burn/Cargo.toml";

/// Runs the checks and tests of the workspace on the CPU. Lints are those of the build.
///
/// # Errors
///
/// A check or a test fails.
pub fn test(only_tests: bool) -> Result<()> {
    let target = cargo::target()?;
    let target = [("CARGO_TARGET_DIR", target.as_str())];
    let test = ["test", "--manifest-path", MANIFEST, "--workspace", "--features", "burn-qkvault/cpu"];
    if only_tests {
        return cargo::run(&test, &target);
    }
    cargo::run(&["fmt", "--manifest-path", MANIFEST, "--all", "--check"], &target)?;
    let lints = cargo::lints()?;
    let lints = lints.each_ref().map(|(name, value)| (*name, value.as_str()));
    cargo::run(&test, &[&target[..], &lints].concat())
}

/// Checks everything under the feature `cuda`, and the documentation. It needs neither nvcc nor a GPU.
///
/// # Errors
///
/// It does not compile.
pub fn check() -> Result<()> {
    let target = cargo::target()?;
    let target = [("CARGO_TARGET_DIR", target.as_str())];
    let words = ["clippy", "--manifest-path", MANIFEST, "--workspace", "--all-targets", "--features"];
    let features = ["burn-qkvault/cpu,burn-qkvault-examples/cuda", "--", "-D", "warnings"];
    cargo::run(&[&words[..], &features].concat(), &target)?;
    let doc = ["doc", "--manifest-path", MANIFEST, "-p", "burn-qkvault", "--no-deps", "--features", "cpu,cuda"];
    cargo::run(&doc, &[&target[..], &[("RUSTDOCFLAGS", "-D warnings")]].concat())
}
