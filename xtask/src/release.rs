//! Chores before a release: check the oldest supported Rust, breaking changes of the interface, and the packages.
//! `release --dry-run` asks all of them. No chore uploads anything. A missing tool is an error with the command that
//! installs it.

mod checklist;
mod manifests;
mod published;

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

pub use checklist::{ReleaseArgs, run};
pub(crate) use published::Published;

use crate::{cargo, ui};

/// Workspaces beside the main one whose root package is published, by their manifests.
pub(crate) const OUTSIDE: [&str; 2] = ["adapters/candle/Cargo.toml", "adapters/burn/Cargo.toml"];

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

/// Checks each workspace with the Rust of its `rust-version`.
///
/// # Errors
///
/// A toolchain is not installed, or something does not build with it.
pub fn msrv() -> Result<()> {
    // A separate folder: two compilers in one folder would rebuild everything each time.
    let target = cargo::root().join("target/msrv").display().to_string();
    let check = |manifest: &str, more: &[&str]| {
        let toolchain = oldest_toolchain(manifest)?;
        let installed = Command::new("rustup").args(["run", &toolchain, "cargo", "--version"]).output();
        if !installed.is_ok_and(|output| output.status.success()) {
            let fix = format!("rustup toolchain install {toolchain} --profile minimal");
            bail!("Rust {toolchain} is not installed; `{fix}` installs it");
        }
        let words = ["run", &toolchain, "cargo", "check", "--locked", "--manifest-path", manifest];
        cargo::run_program("rustup".into(), &[&words, more].concat(), &[("CARGO_TARGET_DIR", &target)])
    };
    check("Cargo.toml", &["--workspace", "--all-targets"])?;
    // Their tests use whole frameworks, which name an oldest Rust of their own.
    OUTSIDE.iter().try_for_each(|manifest| check(manifest, &[]))
}

/// The rustup name of the toolchain of a manifest's `rust-version`, which has a patch number.
fn oldest_toolchain(manifest: &str) -> Result<String> {
    let text =
        std::fs::read_to_string(cargo::root().join(manifest)).with_context(|| format!("{manifest} is not there"))?;
    let table: toml::Table = text.parse().with_context(|| format!("{manifest} is not valid TOML"))?;
    let packages = [table.get("workspace").and_then(|workspace| workspace.get("package")), table.get("package")];
    let version = packages.into_iter().flatten().find_map(|package| package.get("rust-version")?.as_str());
    let version = version.with_context(|| format!("{manifest} has no rust-version"))?;
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
    let compare = |more: &[&str]| {
        let baseline = args.baseline.iter().flat_map(|rev| ["--baseline-rev", rev.as_str()]);
        cargo::run(
            &["semver-checks", "check-release"].iter().chain(more).copied().chain(baseline).collect::<Vec<_>>(),
            &[],
        )
    };
    let all = args.package.is_empty();
    let wanted = |name: &str| all || args.package.iter().any(|package| package == name);
    let (outside, inside): (Vec<_>, Vec<_>) =
        Published::all(&cargo::root())?.into_iter().filter(|one| wanted(&one.name)).partition(|one| one.outside);
    if let Some(unknown) = args.package.iter().find(|name| !inside.iter().chain(&outside).any(|p| p.name == **name)) {
        bail!("{unknown} is no published package");
    }
    if !inside.is_empty() {
        compare(&inside.iter().flat_map(|one| ["--package", one.name.as_str()]).collect::<Vec<_>>())?;
    }
    outside.iter().try_for_each(|one| compare(&["--manifest-path", &one.manifest, "--package", &one.name]))
}

/// Packs every published package, resolves each against the others as in a registry, and builds the packed files.
///
/// # Errors
///
/// The registry's index cannot be read, or a package is incomplete or does not build outside the workspace.
pub fn publish_dry_run(args: &PublishArgs) -> Result<()> {
    packed(&["publish", "--dry-run"], args.no_verify)?;
    ui::say("nothing was uploaded");
    Ok(())
}

/// Checks that every published package can be packed: its dependencies have versions, and it needs no file outside it.
///
/// # Errors
///
/// A package cannot be packed.
pub(crate) fn package() -> Result<()> {
    packed(&["package"], true)
}

fn packed(command: &[&str], no_verify: bool) -> Result<()> {
    let words = [command, &["--allow-dirty"], if no_verify { &["--no-verify"] } else { &[] }].concat();
    cargo::run(&words.iter().copied().chain(["--workspace"]).chain(excluded()).collect::<Vec<_>>(), &[])?;
    // They depend on a version of `qkvault` that is published before them: here it is this one.
    let this = ["--config", "patch.crates-io.qkvault.path=\"crates/qkvault\""];
    let target = cargo::target()?;
    // By name: their workspaces have members that are not published.
    Published::all(&cargo::root())?.iter().filter(|one| one.outside).try_for_each(|one| {
        let words = [&words[..], &this, &["--manifest-path", &one.manifest, "--package", &one.name]].concat();
        cargo::run(&words, &[("CARGO_TARGET_DIR", &target)])
    })
}

/// Cargo options that leave out the private packages.
fn excluded<'a>() -> impl Iterator<Item = &'a str> {
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
        for manifest in ["Cargo.toml"].into_iter().chain(OUTSIDE) {
            let toolchain = oldest_toolchain(manifest).expect("it names one");
            assert_eq!(toolchain.split('.').filter_map(|part| part.parse::<u32>().ok()).count(), 3, "{toolchain}");
        }
    }
}
