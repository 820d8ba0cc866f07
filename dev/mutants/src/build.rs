//! Builds the copy once, without the mutants that do not compile.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::mutant::Mutant;
use super::scratch::{AREAS, WorkspaceCopy};
use xtask::{cargo, ui};

/// Packages whose tests judge mutants.
pub(super) const JUDGES: [&str; 7] = [
    "qkvault-graph",
    "qkvault-reference",
    "qkvault-probe",
    "qkvault-exec",
    "qkvault-kernels",
    "qkvault-fa4",
    "qkvault-compile",
];

/// Most rounds of removing mutants that do not compile. Each round may reveal errors of a later compiler stage.
const MOST_ROUNDS: usize = 12;

/// A program of tests.
#[derive(Clone, Debug)]
pub(super) struct TestBinary {
    /// The package and the name of the program.
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// The folder of the package, in which cargo runs the program.
    pub(super) folder: PathBuf,
}

/// Writes all mutants that compile, and builds the tests. `left_out` has the keys of mutants that do not compile; this
/// function adds those that it finds.
pub(super) fn build(
    scratch: &WorkspaceCopy,
    left_out: &mut BTreeSet<String>,
) -> Result<(Vec<Mutant>, Vec<TestBinary>)> {
    let workspace = cargo::root();
    for _ in 0..MOST_ROUNDS {
        let mutants = scratch.mutate(&workspace, left_out)?;
        ui::say(&format!("{} mutants, {} more do not compile", mutants.len(), left_out.len()));
        let wrong = check(scratch)?;
        if wrong.is_empty() {
            return Ok((mutants, programs(scratch)?));
        }
        let mut ids = BTreeSet::new();
        for fault in &wrong {
            ids.extend(fault.numbers(scratch)?);
        }
        left_out.extend(mutants.iter().filter(|m| ids.contains(&m.id)).map(|m| m.key.clone()));
    }
    bail!("some mutants still do not compile after {MOST_ROUNDS} rounds of removing them")
}

/// A compiler error.
struct BuildFault {
    file: String,
    lines: (usize, usize),
    message: String,
}

impl BuildFault {
    /// The numbers of the mutants at the place of the error. An error without a mutant is a bug of this program.
    fn numbers(&self, scratch: &WorkspaceCopy) -> Result<Vec<u32>> {
        let text = std::fs::read_to_string(scratch.root.join(&self.file)).unwrap_or_default();
        let lines = text.lines().skip(self.lines.0 - 1).take(self.lines.1 + 1 - self.lines.0);
        let mut found = Vec::new();
        for line in lines {
            let numbers = line.split("mutant_switch::on(").skip(1);
            found.extend(numbers.filter_map(|rest| rest.split(')').next()?.parse::<u32>().ok()));
        }
        if found.is_empty() {
            bail!("{}: the error is not in a mutant:\n{}", self.file, self.message);
        }
        Ok(found)
    }
}

fn cargo(scratch: &WorkspaceCopy, args: &[&str]) -> Result<Vec<Value>> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // A separate folder: in the workspace's target folder cargo would not rebuild the original packages, which have the
    // same names.
    let folder = cargo::root().join("target/mutants/build");
    command.args(args).args(["--message-format", "json", "--quiet", "--target-dir"]).arg(folder);
    command.env("CARGO_INCREMENTAL", "0").env("CARGO_PROFILE_DEV_DEBUG", "0").current_dir(&scratch.root);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    let output = command.stderr(Stdio::piped()).output().context("cargo could not be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if !output.status.success() && lines.iter().all(|l| l["message"]["level"] != "error") {
        bail!("`cargo {}` failed:\n{}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(lines)
}

fn packages(names: &[&'static str]) -> Vec<&'static str> {
    names.iter().flat_map(|name| ["--package", name]).collect()
}

fn check(scratch: &WorkspaceCopy) -> Result<Vec<BuildFault>> {
    let mutated: BTreeSet<&str> = AREAS.iter().map(|area| area.package).collect();
    let mutated: Vec<&str> = mutated.into_iter().collect();
    let lines = cargo(scratch, &[&["check", "--lib", "--keep-going"][..], &packages(&mutated)].concat())?;
    let mut faults = Vec::new();
    for message in lines.iter().map(|l| &l["message"]).filter(|m| m["level"] == "error") {
        let rendered = message["rendered"].as_str().unwrap_or_default().to_owned();
        for span in message["spans"].as_array().into_iter().flatten().filter(|s| s["is_primary"] == true) {
            let line = |name: &str| span[name].as_u64().unwrap_or(1) as usize;
            let file = span["file_name"].as_str().unwrap_or_default().to_owned();
            faults.push(BuildFault { file, lines: (line("line_start"), line("line_end")), message: rendered.clone() });
        }
    }
    Ok(faults)
}

fn programs(scratch: &WorkspaceCopy) -> Result<Vec<TestBinary>> {
    ui::say("building the tests, once");
    let lines = cargo(scratch, &[&["test", "--no-run", "--lib", "--tests"][..], &packages(&JUDGES)].concat())?;
    if let Some(error) = lines.iter().find(|l| l["message"]["level"] == "error") {
        bail!("the tests do not build:\n{}", error["message"]["rendered"].as_str().unwrap_or_default());
    }
    let mut programs = Vec::new();
    for artifact in lines.iter().filter(|l| l["reason"] == "compiler-artifact" && l["profile"]["test"] == true) {
        let (Some(path), Some(manifest)) = (artifact["executable"].as_str(), artifact["manifest_path"].as_str()) else {
            continue;
        };
        let folder = Path::new(manifest).parent().unwrap_or(Path::new(".")).to_path_buf();
        let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let target = artifact["target"]["name"].as_str().unwrap_or_default();
        programs.push(TestBinary { name: format!("{package}/{target}"), path: path.into(), folder });
    }
    Ok(programs)
}
