//! Chores before a release: check the oldest supported Rust, breaking changes of the interface, and the packages. No
//! chore uploads anything. If a tool is missing, the error contains the command that installs it.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{cargo, ui};

/// Packages that are not published.
pub const PRIVATE: [&str; 7] =
    ["qkvault-emulate", "qkvault-fuzz", "qkvault-lab", "qkvault-server", "qkvault-skip", "qkvault-tests", "xtask"];

/// Options of `semver`.
#[derive(Debug, clap::Args)]
pub struct SemverArgs {
    /// The commit or tag to compare with (default: the latest release in the registry)
    #[arg(long, value_name = "REV")]
    baseline: Option<String>,
    /// Check only this package; may be given several times
    #[arg(long, short, value_name = "NAME")]
    package: Vec<String>,
}

/// Options of `publish-dry-run`.
#[derive(Debug, clap::Args)]
pub struct PublishArgs {
    /// Only pack and resolve the packages, and do not build them
    #[arg(long)]
    no_verify: bool,
}

/// Checks the workspace with the Rust of `rust-version`.
///
/// # Errors
///
/// The toolchain is not installed, or something does not build with it.
pub fn msrv() -> Result<()> {
    let toolchain = oldest_toolchain()?;
    let installed = Command::new("rustup").args(["run", &toolchain, "cargo", "--version"]).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        bail!(
            "Rust {toolchain} is not installed; `rustup toolchain install {toolchain} --profile minimal` installs it"
        );
    }
    // A separate folder: two compilers in one folder would rebuild everything each time.
    let target = cargo::root().join("target/msrv").display().to_string();
    let args = ["run", &toolchain, "cargo", "check", "--workspace", "--all-targets", "--locked"];
    cargo::run_program("rustup".into(), &args, &[("CARGO_TARGET_DIR", &target)])
}

/// The rustup name of the toolchain of `rust-version`, which has a patch number.
fn oldest_toolchain() -> Result<String> {
    let text = std::fs::read_to_string(cargo::root().join("Cargo.toml")).context("Cargo.toml cannot be read")?;
    let manifest: toml::Table = text.parse().context("Cargo.toml is not valid TOML")?;
    let package = manifest.get("workspace").and_then(|workspace| workspace.get("package"));
    let version = package.and_then(|package| package.get("rust-version")).and_then(toml::Value::as_str);
    let version = version.context("Cargo.toml has no workspace.package.rust-version")?;
    Ok(if version.matches('.').count() == 1 { format!("{version}.0") } else { version.to_owned() })
}

/// Compares the public interface of the published packages with a release or a commit.
///
/// # Errors
///
/// cargo-semver-checks is not installed, there is no release to compare with, or the interface has more breaking
/// changes than the version allows.
pub fn semver(args: &SemverArgs) -> Result<()> {
    needs("semver-checks", "cargo install cargo-semver-checks --locked")?;
    let mut words: Vec<&str> = vec!["semver-checks", "check-release"];
    if args.package.is_empty() {
        words.push("--workspace");
        words.extend(excluded());
    }
    words.extend(args.package.iter().flat_map(|package| ["--package", package.as_str()]));
    words.extend(args.baseline.iter().flat_map(|rev| ["--baseline-rev", rev.as_str()]));
    cargo::run(&words, &[])
}

/// Packs every published package, resolves each against the others as in a registry, and builds the packed files.
///
/// # Errors
///
/// The registry's index cannot be read, or a package is incomplete or does not build outside the workspace.
pub fn publish_dry_run(args: &PublishArgs) -> Result<()> {
    let mut words = vec!["publish", "--workspace", "--dry-run", "--allow-dirty"];
    words.extend(args.no_verify.then_some("--no-verify"));
    words.extend(excluded());
    cargo::run(&words, &[])?;
    ui::say("nothing was uploaded");
    Ok(())
}

/// Cargo options that leave out the private packages.
pub fn excluded<'a>() -> impl Iterator<Item = &'a str> {
    PRIVATE.iter().flat_map(|package| ["--exclude", *package])
}

fn needs(subcommand: &str, install: &str) -> Result<()> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let found = Command::new(program).args([subcommand, "--version"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    bail!("`cargo {subcommand}` is not installed; `{install}` installs it (a few minutes)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_packages_have_publish_false_and_the_others_do_not() {
        let root = cargo::root();
        let mut manifests = ["tests", "xtask"].map(|name| root.join(name).join("Cargo.toml")).to_vec();
        for entry in ["crates", "dev"].into_iter().flat_map(|f| std::fs::read_dir(root.join(f)).expect("is there")) {
            manifests.push(entry.expect("it reads").path().join("Cargo.toml"));
        }
        for path in manifests.iter().filter(|path| path.is_file()) {
            let text = std::fs::read_to_string(path).expect("it reads");
            let manifest: toml::Table = text.parse().expect("TOML");
            let package = manifest["package"].as_table().expect("a table");
            let name = package["name"].as_str().expect("a name");
            let private = package.get("publish").and_then(toml::Value::as_bool) == Some(false);
            assert_eq!(PRIVATE.contains(&name), private, "{name}: PRIVATE and `publish` differ");
        }
    }

    #[test]
    fn the_oldest_toolchain_has_its_rustup_name() {
        let toolchain = oldest_toolchain().expect("Cargo.toml names one");
        assert_eq!(toolchain.split('.').filter_map(|part| part.parse::<u32>().ok()).count(), 3, "{toolchain}");
    }
}
