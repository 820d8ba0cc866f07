//! Compiles the stand-in to a small shared library, which the crate embeds.
//!
//! The stand-in (`standin/libcuda.rs`) is a separate crate without the standard library. This script therefore runs
//! `rustc` directly, with the compiler, target and linker that Cargo uses for everything else.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=standin/libcuda.rs");
    let variable =
        |name: &str| env::var(name).unwrap_or_else(|error| panic!("Cargo sets {name} for build scripts: {error}"));
    let out = PathBuf::from(variable("OUT_DIR")).join("libcuda.so.1");
    if variable("CARGO_CFG_TARGET_OS") != "linux" {
        // `ensure` returns `Error::Unsupported` there; NVIDIA publishes no cuDNN 9 for such a target.
        std::fs::write(&out, []).expect("OUT_DIR can be written");
        return;
    }

    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition=2024", "--crate-type=cdylib", "--crate-name=cuda", "--cap-lints=warn"]);
    rustc.args([
        "-Cpanic=abort",
        "-Copt-level=s",
        "-Cdebuginfo=0",
        "-Cstrip=symbols",
        "-Clink-arg=-Wl,-soname,libcuda.so.1",
    ]);
    rustc.args(["--target", &variable("TARGET")]);
    rustc.args(linker_flags(&env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default()));
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    rustc.arg("standin/libcuda.rs").arg("-o").arg(&out);
    let done = rustc.output().unwrap_or_else(|error| panic!("{rustc:?} could not be started: {error}"));
    assert!(
        done.status.success(),
        "the stand-in did not compile with {rustc:?}:\n{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// Picks the linker flags of the surrounding build. Other flags (target features, coverage, sanitizers) affect code
/// that a library of empty functions does not have.
fn linker_flags(encoded: &str) -> Vec<String> {
    const KEPT: &[&str] = &["linker=", "linker-flavor=", "link-arg=", "link-args=", "link-self-contained="];
    let flags = encoded.split('\u{1f}').collect::<Vec<_>>();
    let mut kept = Vec::new();
    for (index, flag) in flags.iter().enumerate() {
        let option = match flag.strip_prefix("-C") {
            Some("") => flags.get(index + 1).copied().unwrap_or_default(),
            Some(option) => option,
            None => continue,
        };
        if KEPT.iter().any(|name| option.starts_with(name)) {
            kept.push(format!("-C{option}"));
        }
    }
    kept
}
