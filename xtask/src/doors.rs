//! Tests of the doors in Python, one process for each module: what a module configures stays with it, and modules run
//! side by side.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::programs::{self, Task};
use crate::record_tests::TESTS;
use crate::{cargo, jax_tests, torch_tests, ui, wheel};

/// A run of the modules of a door.
#[derive(Debug)]
pub(crate) struct DoorModules {
    /// The Python, with the packages of the door.
    pub(crate) python: PathBuf,
    /// The beginning of the modules' names.
    pub(crate) prefix: &'static str,
    /// Variables of the processes, beside those of this one.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// How many modules run at a time.
    pub(crate) jobs: usize,
    /// Whether a module may lack a package of its own, and be skipped.
    pub(crate) may_skip: bool,
}

impl DoorModules {
    /// Runs every module, and says at the end what failed, with its output.
    ///
    /// # Errors
    ///
    /// A module fails, or there is none.
    pub(crate) fn run(self) -> Result<()> {
        let jobs = self.jobs;
        programs::side_by_side(self.tasks()?, jobs)
    }

    /// A task for every module.
    ///
    /// # Errors
    ///
    /// There is no module.
    pub(crate) fn tasks(self) -> Result<Vec<Task<'static>>> {
        let names = self.names()?;
        ensure!(!names.is_empty(), "no module of tests begins with {}", self.prefix);
        let this = Arc::new(self);
        let task = |name: String| -> Task<'static> {
            let this = Arc::clone(&this);
            Box::new(move || this.module(&name))
        };
        Ok(names.into_iter().map(task).collect())
    }

    /// The modules, the largest files first: those that take longest are among them.
    fn names(&self) -> Result<Vec<String>> {
        let folder = cargo::root().join(TESTS);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&folder).with_context(|| format!("{} cannot be read", folder.display()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(name) = name.strip_suffix(".py").filter(|name| name.starts_with(self.prefix)) {
                found.push((std::cmp::Reverse(entry.metadata()?.len()), name.to_owned()));
            }
        }
        found.sort();
        Ok(found.into_iter().map(|(_, name)| name).collect())
    }

    fn module(&self, name: &str) -> Result<String> {
        let begun = Instant::now();
        let done = Command::new(&self.python)
            .args(["-m", "unittest", "discover", "--pattern", &format!("{name}.py")])
            .current_dir(cargo::root().join(TESTS))
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .output()
            .with_context(|| format!("{} does not start", self.python.display()))?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        if !done.status.success() {
            bail!("{name} failed:\n{}{said}", String::from_utf8_lossy(&done.stdout));
        }
        let counted = said.lines().rev().find(|line| line.starts_with("Ran ")).unwrap_or_default();
        let nothing = counted.is_empty() || counted.starts_with("Ran 0 tests");
        // A module that skips itself counts as one test.
        let skipped = counted.starts_with("Ran 1 test ") && said.trim_end().ends_with("OK (skipped=1)");
        ensure!(!nothing && (self.may_skip || !skipped), "{name} ran no test:\n{said}");
        Ok(format!("{name}: {counted}, {:.0} s in all", begun.elapsed().as_secs_f64()))
    }
}

/// The tests of both doors on the CPU, with the library that was built beside the tests of this workspace: what is
/// short is done, the wheel in an empty environment among it, and the modules are returned.
///
/// # Errors
///
/// Packages cannot be installed, or a test fails.
pub(crate) fn tasks() -> Result<Vec<Task<'static>>> {
    let library = PathBuf::from(cargo::target()?).join("debug/deps/libqkvault_c.so");
    ensure!(library.is_file(), "{} is not there: `cargo test --no-run` builds it", library.display());
    let begun = Instant::now();
    let folder = tempfile::tempdir().context("no temporary folder could be made")?;
    let installed = wheel::install(&library, folder.path())?;
    ui::say(&format!("the wheel in an empty environment: {:.0} s", begun.elapsed().as_secs_f64()));
    let mut tasks = torch_tests::tasks(&library, &installed)?;
    tasks.extend(jax_tests::tasks(&library, &installed)?);
    Ok(tasks)
}

/// Installs what the doors' tests need.
///
/// # Errors
///
/// Packages cannot be installed.
pub(crate) fn install() -> Result<()> {
    wheel::install_auditwheel()?;
    torch_tests::install()?;
    jax_tests::install()
}
