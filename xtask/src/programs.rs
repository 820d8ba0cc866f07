//! The test programs of the workspace, side by side: cargo runs one after the other, and most use one core and a bit.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use crate::{cargo, ui};

/// Programs that measure time, count threads or use up memory, which others would disturb: they run at the end, one
/// after the other.
const ALONE: [&str; 7] = ["connections", "limits", "moments", "nccl", "rules", "stores", "throughput"];

/// Programs that mostly wait for a deadline to pass, which is late if both cores are busy, and behind them one that
/// uses one core for as long: they run [`WAITERS`] at a time, before those.
const WAITING: [&str; 4] = ["qkvault_parallel", "strangers", "faults", "root"];

/// Programs that take longest, which begin first so that none is left over at the end.
pub(crate) const LONG: [&str; 12] = [
    "compile_9_27",
    "compile_9_19",
    "cli",
    "lab",
    "attention",
    "compile_9_14",
    "all",
    "combination",
    "altered",
    "launches",
    "environment",
    "fa4",
];

/// A program that tests something.
#[derive(Debug)]
pub(crate) struct TestProgram {
    /// The name of its package, which tests ask for.
    package: String,
    name: String,
    file: PathBuf,
    /// The folder of its package, where it runs.
    folder: PathBuf,
}

/// What cargo says of something that it built.
#[derive(Deserialize)]
struct Built {
    executable: Option<PathBuf>,
    manifest_path: PathBuf,
    target: CargoTarget,
    profile: CargoProfile,
}

#[derive(Deserialize)]
struct CargoTarget {
    name: String,
}

#[derive(Deserialize)]
struct CargoProfile {
    test: bool,
}

/// The programs that `cargo test` with these words would run, built.
///
/// # Errors
///
/// Something does not build.
pub(crate) fn build(words: &[&str]) -> Result<Vec<TestProgram>> {
    let said = cargo::output(&[&["test", "--no-run", "--message-format=json-render-diagnostics"], words].concat())?;
    let built = said.lines().filter_map(|line| serde_json::from_str::<Built>(line).ok());
    let program = |built: Built| {
        let (package, folder) = (package(&built.manifest_path)?, built.manifest_path.parent()?.to_owned());
        Some(TestProgram { package, name: built.target.name, file: built.executable?, folder })
    };
    let all: Vec<TestProgram> = built.filter(|built| built.profile.test).filter_map(program).collect();
    ensure!(!all.is_empty(), "cargo built no program that tests");
    Ok(all)
}

/// What runs beside others: it says how it went, or what failed with all that it printed.
pub(crate) type Task<'a> = Box<dyn FnOnce() -> Result<String> + Send + 'a>;

/// Tasks by what may run beside them.
pub(crate) struct Tasks<'a> {
    /// One for each core.
    pub(crate) side_by_side: Vec<Task<'a>>,
    /// [`WAITERS`] of them, which need no core between them but for one.
    pub(crate) waiting: Vec<Task<'a>>,
    alone: Vec<Task<'a>>,
}

/// How many programs that wait run at a time, with what runs beside them.
const WAITERS: usize = 3;

impl<'a> Tasks<'a> {
    /// A task for each program.
    pub(crate) fn new(all: Vec<TestProgram>, passed: &'a AtomicUsize, variables: &'a [(&'a str, &'a str)]) -> Self {
        let at = |program: &TestProgram, list: &[&str]| list.iter().position(|one| *one == program.name);
        let (mut waiting, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| at(one, &WAITING).is_some());
        let (alone, mut others): (Vec<_>, Vec<_>) = others.into_iter().partition(|one| at(one, &ALONE).is_some());
        waiting.sort_by_key(|one| at(one, &WAITING));
        others.sort_by_key(|one| at(one, &LONG).unwrap_or(LONG.len()));
        let task = |program: TestProgram| -> Task<'a> { Box::new(move || program.run(passed, variables)) };
        let [side_by_side, waiting, alone] = [others, waiting, alone].map(|list| list.into_iter().map(task).collect());
        Tasks { side_by_side, waiting, alone }
    }

    /// Runs all of them, even if some fail, as many as there are cores at a time.
    ///
    /// # Errors
    ///
    /// What failed.
    pub(crate) fn run(self, jobs: usize) -> Result<()> {
        let parts = [(self.side_by_side, jobs), (self.waiting, WAITERS), (self.alone, 1)];
        let failed: Vec<String> = parts
            .into_iter()
            .filter_map(|(tasks, jobs)| side_by_side(tasks, jobs).err().map(|e| format!("{e:#}")))
            .collect();
        ensure!(failed.is_empty(), "{}", failed.join("\n"));
        Ok(())
    }
}

/// Runs tasks, `jobs` at a time, and all of them even if some fail.
///
/// # Errors
///
/// What failed.
pub(crate) fn side_by_side(tasks: Vec<Task<'_>>, jobs: usize) -> Result<()> {
    let (count, waiting, failed) = (tasks.len(), Mutex::new(VecDeque::from(tasks)), Mutex::new(Vec::new()));
    let next = || waiting.lock().expect("no thread panics").pop_front();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(task) = next() {
                    match task() {
                        Ok(said) => ui::say(&said),
                        Err(error) => failed.lock().expect("no thread panics").push(format!("{error:#}")),
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no thread panics");
    ensure!(failed.is_empty(), "{}\n{} of {count} failed", failed.join("\n"), failed.len());
    Ok(())
}

impl TestProgram {
    /// Runs it as cargo does: in the folder of its package, whose manifest it may ask for.
    fn run(&self, count: &AtomicUsize, variables: &[(&str, &str)]) -> Result<String> {
        let begun = Instant::now();
        let done = Command::new(&self.file)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("CARGO_PKG_NAME", &self.package)
            .env("CARGO", std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .envs(variables.iter().copied())
            .output()
            .with_context(|| format!("{} does not start", self.file.display()))?;
        let said = String::from_utf8_lossy(&done.stdout);
        let package = &self.package;
        if !done.status.success() {
            bail!("{package}, {} ({}):\n{said}{}", self.name, done.status, String::from_utf8_lossy(&done.stderr));
        }
        let passed = passed(&said);
        count.fetch_add(passed, Ordering::Relaxed);
        Ok(format!("{package}, {}: {passed} passed, {:.0} s", self.name, begun.elapsed().as_secs_f64()))
    }
}

/// The name in a package's manifest.
fn package(manifest: &Path) -> Option<String> {
    let manifest: toml::Table = std::fs::read_to_string(manifest).ok()?.parse().ok()?;
    Some(manifest.get("package")?.get("name")?.as_str()?.to_owned())
}

/// How many tests passed, by what a program printed; a program without the usual harness is one test.
fn passed(said: &str) -> usize {
    let results = said.lines().filter(|line| line.starts_with("test result: "));
    let count =
        |line: &str| line.split(' ').zip(line.split(' ').skip(1)).find(|(_, word)| *word == "passed;")?.0.parse().ok();
    let counts: Vec<usize> = results.filter_map(count).collect();
    if counts.is_empty() { 1 } else { counts.iter().sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that skip themselves are recorded by the name of their package.
    #[test]
    fn a_package_has_the_name_of_its_manifest() {
        assert_eq!(package(&cargo::root().join("xtask/Cargo.toml")).as_deref(), Some("xtask"));
        assert_eq!(package(&cargo::root().join("crates/exec/Cargo.toml")).as_deref(), Some("qkvault-exec"));
    }

    #[test]
    fn results_are_counted() {
        let said = "running 3 tests\ntest a ... ok\n\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out\n";
        assert_eq!((passed(said), passed("fine\n")), (3, 1));
    }
}
