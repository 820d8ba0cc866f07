//! Lists the tests, and measures the time of each and the mutants that it reaches.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::build::TestBinary;
use xtask::ui;

/// The seed of property tests, the same as in CI, so that verdicts can be repeated.
const SEED: &str = "20261121";

/// The memory limit of a test in KiB, because a mutant may allocate without bound.
const MEMORY_KIB: u32 = 12_000_000;

/// One test.
pub(super) struct Test {
    pub(super) program: usize,
    pub(super) name: String,
    pub(super) takes: Duration,
    /// Numbers of the mutants that it reaches.
    pub(super) reaches: BTreeSet<u32>,
}

/// All tests that reach a mutant and pass without mutants.
pub(super) struct Suite {
    pub(super) programs: Vec<TestBinary>,
    pub(super) tests: Vec<Test>,
    cases: u32,
}

/// The result of running tests.
pub(super) struct TestRun {
    pub(super) passed: bool,
    pub(super) late: bool,
    /// Names of the failed tests, as far as the output has them.
    pub(super) failed: Vec<String>,
    pub(super) took: Duration,
}

impl Suite {
    /// Runs every test once without mutants.
    pub(super) fn measure(programs: Vec<TestBinary>, cases: u32, jobs: usize) -> Result<Suite> {
        let mut suite = Suite { programs, tests: Vec::new(), cases };
        let mut names = Vec::new();
        for (at, program) in suite.programs.iter().enumerate() {
            let list = Command::new(&program.path).args(["--list", "--format", "terse"]).output()?;
            let text = String::from_utf8_lossy(&list.stdout).into_owned();
            names.extend(text.lines().filter_map(|l| l.strip_suffix(": test")).map(|name| (at, name.to_owned())));
        }
        ui::say(&format!("running {} tests of {} programs, each once", names.len(), suite.programs.len()));
        let folder = tempfile::tempdir().context("could not make a temporary folder")?;
        let found = Mutex::new(Vec::new());
        each(jobs, &names, |at, (program, name)| {
            let file = folder.path().join(at.to_string());
            let variables = [("QKVAULT_MUTANT_REACH", file.to_string_lossy().into_owned())];
            let ran = suite.run(*program, &[name], &variables, Duration::from_secs(600));
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let reaches: BTreeSet<u32> = text.lines().filter_map(|l| l.parse().ok()).collect();
            match ran {
                Ok(ran) if ran.passed => {
                    let test = Test { program: *program, name: name.clone(), takes: ran.took, reaches };
                    found.lock().unwrap_or_else(|e| e.into_inner()).push(test);
                }
                _ => ui::say(&format!("{} fails without any mutant, so it is left out", suite.label(*program, name))),
            }
        });
        let mut tests = found.into_inner().unwrap_or_else(|e| e.into_inner());
        tests.retain(|t| !t.reaches.is_empty());
        tests.sort_by_key(|t| t.takes);
        let all: Duration = tests.iter().map(|t| t.takes).sum();
        ui::say(&format!("{} of them reach mutants, in {:.0} s", tests.len(), all.as_secs_f64()));
        suite.tests = tests;
        Ok(suite)
    }

    /// A test's name with its program.
    pub(super) fn label(&self, program: usize, name: &str) -> String {
        format!("{}: {name}", self.programs[program].name)
    }

    /// Runs tests of a program.
    pub(super) fn run(
        &self,
        program: usize,
        names: &[&String],
        variables: &[(&str, String)],
        limit: Duration,
    ) -> Result<TestRun> {
        let TestBinary { name: _, path, folder } = &self.programs[program];
        let mut output = tempfile::tempfile().context("could not make a temporary file")?;
        let start = Instant::now();
        let mut child = Command::new("sh")
            .args(["-c", &format!("ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\"")])
            .arg(path)
            .args(["--exact", "--test-threads", "1"])
            .args(names)
            .env("PROPTEST_RNG_SEED", SEED)
            .env("PROPTEST_CASES", self.cases.to_string())
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            .env("RUST_BACKTRACE", "0")
            .envs(variables.iter().map(|(name, value)| (*name, value.as_str())))
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{} did not start", path.display()))?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if start.elapsed() > limit {
                child.kill().ok();
                child.wait()?;
                break None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let took = start.elapsed();
        let mut text = Vec::new();
        std::io::Seek::rewind(&mut output)?;
        std::io::Read::read_to_end(&mut output, &mut text)?;
        let text = String::from_utf8_lossy(&text);
        let failed = text.lines().filter_map(|l| l.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        Ok(TestRun {
            passed: status.is_some_and(|s| s.success()),
            late: status.is_none(),
            failed: failed.map(str::to_owned).collect(),
            took,
        })
    }

    /// The tests that reach each mutant, the fastest first.
    pub(super) fn by_mutant(&self) -> BTreeMap<u32, Vec<usize>> {
        let mut tests: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, test) in self.tests.iter().enumerate() {
            for id in &test.reaches {
                tests.entry(*id).or_default().push(at);
            }
        }
        tests
    }
}

/// Runs `work` for each item, on `jobs` threads, beginning in the order of the list.
pub(super) fn each<T: Sync>(jobs: usize, list: &[T], work: impl Fn(usize, &T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some((at, item)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, list.get(i)?)))
                {
                    work(at, item);
                }
            });
        }
    });
}

/// Makes the folder of a file if necessary.
pub(super) fn make_folder_of(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}
