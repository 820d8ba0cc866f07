//! `cargo xtask deny`: licences, sources, duplicates and advisories of everything that the workspaces use, by
//! cargo-deny with the rules of deny.toml. `cargo xtask test` runs it.
//!
//! The program is built once from its authors' package, with the versions that they locked, and kept in the cache
//! folder: a minute or two. Nobody else's program is run. Advisories need a database from a git host. Where that host
//! cannot be reached, their check is left out and named, unless it was asked for by name.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::release::OUTSIDE;
use crate::{cargo, ui};

/// The manifests of all workspaces that have checked-in locks, from the root.
fn workspaces() -> impl Iterator<Item = &'static str> {
    OUTSIDE.into_iter().chain(["Cargo.toml", "xtask/bindgen/Cargo.toml"])
}

/// The version of cargo-deny.
const VERSION: &str = "0.20.2";

/// Checks that need no network but the registry's.
const OFFLINE: [&str; 3] = ["licenses", "bans", "sources"];

/// The check that needs a database.
const ADVISORIES: &str = "advisories";

/// Options of `deny`.
#[derive(Debug, Default, clap::Args)]
pub struct DenyArgs {
    /// Checks to run: advisories (downloads its database from a git host), bans, licenses, sources (default: all)
    #[arg(value_parser = [ADVISORIES, "bans", "licenses", "sources"])]
    checks: Vec<String>,
}

/// Runs the checks.
///
/// # Errors
///
/// cargo-deny cannot be built, a check fails, or advisories are asked for by name and their
/// database cannot be fetched.
pub fn run(args: &DenyArgs) -> Result<()> {
    let program = program()?;
    let checks = chosen(&args.checks, || database(&program))?;
    for manifest in workspaces() {
        let words = ["--config", "deny.toml", "--manifest-path", manifest, "check", "--hide-inclusion-graph"];
        let checks = checks.iter().map(String::as_str);
        cargo::run_program(program.clone().into(), &words.into_iter().chain(checks).collect::<Vec<_>>(), &[])?;
    }
    Ok(())
}

/// The pinned cargo-deny, which is built if it is not there.
fn program() -> Result<PathBuf> {
    let root = qkvault_base::libraries_dir().join("tools").join(format!("cargo-deny-{VERSION}-built"));
    let program = root.join("bin").join("cargo-deny");
    if program.is_file() {
        return Ok(program);
    }
    ui::say(&format!("building cargo-deny {VERSION}, once"));
    let folder = tempfile::tempdir()?;
    let target = folder.path().display().to_string();
    let (version, root) = (format!("={VERSION}"), root.display().to_string());
    // Without optimization it is built in a third of the time, and takes three seconds instead of one.
    let words = ["install", "--quiet", "--locked", "--debug", "--version", &version, "--root", &root, "cargo-deny"];
    cargo::run(&words, &[("CARGO_TARGET_DIR", &target), ("CARGO_PROFILE_DEV_DEBUG", "0")]).context("cargo-deny")?;
    Ok(program)
}

/// The checks to run; `database` says why there is none.
fn chosen(asked: &[String], database: impl FnOnce() -> Result<(), String>) -> Result<Vec<String>> {
    let wants = asked.is_empty() || asked.iter().any(|check| check == ADVISORIES);
    match wants.then(database) {
        Some(Err(reason)) if asked.is_empty() => {
            ui::say(&format!(
                "skipped: advisories of dependencies are not checked, their database is out of reach: {reason}"
            ));
            Ok(OFFLINE.map(str::to_owned).to_vec())
        }
        Some(Err(reason)) => bail!("the database of advisories could not be fetched: {reason}"),
        _ if asked.is_empty() => Ok([ADVISORIES].iter().chain(&OFFLINE).map(|check| (*check).to_owned()).collect()),
        _ => Ok(asked.to_vec()),
    }
}

/// Fetches the database of advisories.
fn database(program: &PathBuf) -> Result<(), String> {
    let done = Command::new(program).args(["fetch", "db"]).current_dir(cargo::root()).output();
    let done = done.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it gave no reason");
    if done.status.success() { Ok(()) } else { Err(last.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(checks: &[&str]) -> Vec<String> {
        checks.iter().map(|check| (*check).to_owned()).collect()
    }

    #[test]
    fn advisories_are_left_out_only_where_nobody_asked_for_them_by_name() {
        let out = || Err("no such host".to_owned());
        assert_eq!(chosen(&[], out).expect("the others"), names(&OFFLINE));
        assert_eq!(chosen(&[], || Ok(())).expect("all").len(), 4);
        let error = chosen(&names(&["advisories", "bans"]), out).expect_err("asked for").to_string();
        assert!(error.contains("no such host"), "{error}");
        let never = || -> Result<(), String> { panic!("no database is needed") };
        assert_eq!(chosen(&names(&["bans"]), never).expect("one"), names(&["bans"]));
    }

    #[test]
    fn every_workspace_with_a_lock_is_checked() {
        let done = Command::new("git").args(["ls-files", "*Cargo.lock"]).current_dir(cargo::root()).output();
        let found = String::from_utf8(done.expect("git").stdout).expect("text");
        let locks: Vec<String> = found.lines().map(|lock| lock.replace(".lock", ".toml")).collect();
        for lock in &locks {
            assert!(workspaces().any(|one| one == lock), "{lock} is not among the workspaces that deny checks");
        }
        assert_eq!(locks.len(), workspaces().count());
    }
}
