//! `adapters/burn`, a workspace of its own: `cargo xtask burn-check`, which a release asks for too. CI leaves it out:
//! building burn takes two minutes of two cores for the CPU's tests alone, more with its CUDA backend.

use anyhow::Result;

use crate::cargo;

/// Its manifest, from the root.
pub(crate) const MANIFEST: &str = "adapters/burn/Cargo.toml";

/// Runs the tests on the CPU, and checks everything under the feature `cuda`, and the documentation. It needs neither
/// nvcc nor a GPU.
///
/// # Errors
///
/// A check or a test fails.
pub fn check() -> Result<()> {
    let target = cargo::target()?;
    let target = [("CARGO_TARGET_DIR", target.as_str())];
    cargo::run(&["fmt", "--manifest-path", MANIFEST, "--all", "--check"], &target)?;
    let tests = ["test", "--manifest-path", MANIFEST, "--workspace", "--features", "burn-qkvault/cpu"];
    cargo::run(&tests, &target)?;
    let words = ["clippy", "--manifest-path", MANIFEST, "--workspace", "--all-targets", "--features"];
    let features = ["burn-qkvault/cpu,burn-qkvault-examples/cuda", "--", "-D", "warnings"];
    cargo::run(&[&words[..], &features].concat(), &target)?;
    let doc = ["doc", "--manifest-path", MANIFEST, "-p", "burn-qkvault", "--no-deps", "--features", "cpu,cuda"];
    cargo::run(&doc, &[&target[..], &[("RUSTDOCFLAGS", "-D warnings")]].concat())
}
