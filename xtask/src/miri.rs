//! `cargo xtask miri`: runs unit tests in Miri, an interpreter of Rust that reports undefined behaviour.
//!
//! Miri cannot call C, so only packages and modules take part that call none. It is a hundred times slower than the
//! processor: property tests draw few cases, and integration tests are left out.

use std::process::Command;

use anyhow::{Result, bail};

use crate::cargo;

/// Packages whose unit tests run in Miri, each with the tests (parts of their names) to run; all if there are none.
const PACKAGES: [(&str, &[&str]); 7] = [
    ("qkvault-base", &[]),
    ("qkvault-graph", &[]),
    ("qkvault-serving", &[]),
    ("qkvault-models", &[]),
    ("qkvault-probe", &[]),
    // The modules that call no library.
    ("qkvault-sys", &["busy", "log", "names"]),
    ("qkvault-exec", &["host_scalars"]),
];

/// Files may be read. Functions such as `exp` are not made to differ in their last bits, which goldens of slopes have.
const FLAGS: &str = "-Zmiri-disable-isolation -Zmiri-deterministic-floats";

/// Options of `miri`.
#[derive(Debug, clap::Args)]
pub struct MiriArgs {
    /// Run only this package; may be given several times
    #[arg(long, short, value_name = "NAME")]
    package: Vec<String>,
}

/// Runs the tests of each package.
///
/// # Errors
///
/// Miri is not installed, a package is none of those that can run in it, a test fails, or its behaviour is undefined.
pub fn run(args: &MiriArgs) -> Result<()> {
    let installed = Command::new("rustup").args(["run", "nightly", "cargo", "miri", "--version"]).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        bail!("Miri is not installed; `rustup toolchain install nightly --component miri,rust-src` installs it");
    }
    if let Some(unknown) = args.package.iter().find(|name| PACKAGES.iter().all(|(known, _)| known != name)) {
        let known = PACKAGES.map(|(name, _)| name).join(", ");
        bail!("{unknown} does not run in Miri; these do: {known}");
    }
    for (package, tests) in PACKAGES {
        if args.package.is_empty() || args.package.iter().any(|name| name == package) {
            let mut words = vec!["run", "nightly", "cargo", "miri", "test", "--package", package, "--lib", "--"];
            words.extend(tests);
            cargo::run_program("rustup".into(), &words, &[("MIRIFLAGS", FLAGS), ("PROPTEST_CASES", "4")])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_of_the_list_is_there() {
        for (package, _) in PACKAGES {
            let folder = package.strip_prefix("qkvault-").expect("a package of the workspace");
            assert!(cargo::root().join("crates").join(folder).join("Cargo.toml").is_file(), "{package}");
        }
    }

    #[test]
    fn a_package_that_calls_c_is_refused_with_those_that_do_not() {
        let error = run(&MiriArgs { package: vec!["qkvault-sys".to_owned()] }).expect_err("it is C").to_string();
        assert!(error.contains("qkvault-graph") || error.contains("Miri is not installed"), "{error}");
    }
}
