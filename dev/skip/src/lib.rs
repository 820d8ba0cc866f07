//! Skips a test that cannot run on this machine, and records it, so that skipped tests are counted.
//!
//! The test harness reports a test that returns early as `ok`. [`skip`] prints the reason and writes it into the file
//! that [`RECORD`] names. `cargo xtask test` reads and counts that file, and fails if a test is skipped that should not
//! be. If [`PROMISED`] names a requirement, its absence is a failure of the test.

#![allow(clippy::print_stdout, reason = "tests use this crate, and print for the people who run them")]

use std::fmt;
use std::io::Write as _;
use std::path::Path;

/// The variable with the file of skipped tests, which has one line for each.
pub const RECORD: &str = "QKVAULT_SKIPS";

/// The variable with the names of the needs that are promised, separated by commas.
pub const PROMISED: &str = "QKVAULT_REQUIRE";

/// The beginning of the printed line for a skipped test.
pub const SAID: &str = "requirement not met";

/// A requirement of a test that a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    /// A GPU with its driver, and plans for it.
    Gpu,
    /// Two GPUs with their driver, and plans that load on both.
    TwoGpus,
    /// A fetched slim cuDNN.
    Cudnn,
    /// A fetched full cuDNN, more than 1 GB.
    FullCudnn,
    /// A machine without a driver, or without an installed cuDNN.
    Bare,
    /// File systems that can be mounted, other users, pipes and limits, to make disks fail.
    Faults,
    /// An S3 server.
    S3,
    /// A Chromium on the path.
    Chromium,
    /// A pip that starts.
    Pip,
    /// A C++ compiler.
    Cxx,
    /// A pkg-config that starts, and a C compiler.
    PkgConfig,
    /// The fetched toolchain of FlashAttention-4.
    Fa4,
    /// PyTorch, as `cargo xtask torch-tests` installs it.
    Torch,
    /// Idle cores.
    Cores,
    /// Variables that ask for it: it is a chore rather than a test.
    Asked,
}

impl Need {
    /// All needs.
    pub const ALL: [Need; 15] = [
        Need::Gpu,
        Need::TwoGpus,
        Need::Cudnn,
        Need::FullCudnn,
        Need::Bare,
        Need::Faults,
        Need::S3,
        Need::Chromium,
        Need::Pip,
        Need::Cxx,
        Need::PkgConfig,
        Need::Fa4,
        Need::Torch,
        Need::Cores,
        Need::Asked,
    ];

    /// Its name in records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Need::Gpu => "gpu",
            Need::TwoGpus => "gpu2",
            Need::Cudnn => "cudnn",
            Need::FullCudnn => "cudnn-full",
            Need::Bare => "bare",
            Need::Faults => "faults",
            Need::S3 => "s3",
            Need::Chromium => "chromium",
            Need::Pip => "pip",
            Need::Cxx => "cxx",
            Need::PkgConfig => "pkg-config",
            Need::Fa4 => "fa4",
            Need::Torch => "torch",
            Need::Cores => "cores",
            Need::Asked => "asked",
        }
    }

    /// The phrase after "because there is".
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Need::Gpu => "no GPU",
            Need::TwoGpus => "no second GPU",
            Need::Cudnn => "no fetched cuDNN",
            Need::FullCudnn => "no fetched full cuDNN",
            Need::Bare => "a driver or a cuDNN that the test must not find",
            Need::Faults => "no way to make a disk fail here",
            Need::S3 => "no server that speaks S3",
            Need::Chromium => "no Chromium",
            Need::Pip => "no pip",
            Need::Cxx => "no C++ compiler",
            Need::PkgConfig => "no pkg-config",
            Need::Fa4 => "no fetched toolchain of FlashAttention-4",
            Need::Torch => "no installed PyTorch",
            Need::Cores => "no idle core",
            Need::Asked => "nobody who asked for them",
        }
    }

    /// Whether the environment of this process promises it.
    #[must_use]
    pub fn is_promised(self) -> bool {
        std::env::var(PROMISED).is_ok_and(|all| all.split(',').any(|name| name == self.name()))
    }
}

/// One skipped test.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skip {
    /// Its requirement.
    pub need: Need,
    /// Package, test program and name: `qkvault-exec/gpu::fill`.
    pub test: String,
    /// What exactly is missing, and how to get it.
    pub why: String,
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\t{}\t{}", self.need.name(), self.test, self.why)
    }
}

impl Skip {
    /// Parses a line that `Display` wrote; `None` for other lines.
    #[must_use]
    pub fn parse(line: &str) -> Option<Skip> {
        let [need, test, why] = line.splitn(3, '\t').collect::<Vec<_>>().try_into().ok()?;
        let need = Need::ALL.into_iter().find(|known| known.name() == need)?;
        Some(Skip { need, test: test.to_owned(), why: why.to_owned() })
    }
}

/// Records that the running test cannot do its work, or the rest of it. The test returns after this call.
///
/// # Panics
///
/// If the requirement was promised, or if the record cannot be written.
pub fn skip(need: Need, why: &str) {
    assert!(!need.is_promised(), "{SAID}: {why}; {PROMISED} promises it");
    println!("{SAID}: {why}");
    if let Some(record) = std::env::var_os(RECORD) {
        let skip = Skip { need, test: running(), why: why.split_whitespace().collect::<Vec<_>>().join(" ") };
        append(Path::new(&record), &skip);
    }
}

/// Writes the line with one call, because many threads and processes append to the file.
fn append(record: &Path, skip: &Skip) {
    let file = std::fs::OpenOptions::new().append(true).create(true).open(record);
    let written = file.and_then(|mut file| file.write_all(format!("{skip}\n").as_bytes()));
    assert!(written.is_ok(), "{}: {written:?}; {RECORD} must name a file that can be written", record.display());
}

/// The running test. The harness gives the thread its name; a process that runs a single test has the name as an
/// argument.
fn running() -> String {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_else(|_| "?".to_owned());
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let program = program.rsplit_once('-').map_or(program.clone(), |(name, _)| name.to_owned());
    let thread = std::thread::current().name().filter(|name| *name != "main").map(str::to_owned);
    let told = || {
        let words: Vec<String> = std::env::args().skip(1).collect();
        words.contains(&"--exact".to_owned()).then(|| words.into_iter().find(|word| !word.starts_with('-')))?
    };
    let test = thread.or_else(told).unwrap_or_else(|| "?".to_owned());
    format!("{package}/{program}::{test}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Set for the test below in its child process.
    const CHILD: &str = "QKVAULT_TEST_CHILD";

    #[test]
    fn a_skip_is_written_down_and_a_promise_makes_it_a_failure() {
        const NAME: &str = "tests::a_skip_is_written_down_and_a_promise_makes_it_a_failure";
        if std::env::var_os(CHILD).is_some() {
            return skip(Need::Gpu, "no GPU\there,\nat all");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let record = folder.path().join("skips");
        let run = |promised: &str| {
            let mut command = Command::new(std::env::current_exe().expect("a program"));
            command.args(["--exact", NAME, "--nocapture"]).env(CHILD, "1").env(RECORD, &record);
            command.env("CARGO_PKG_NAME", "one").env(PROMISED, promised).output().expect("it runs")
        };
        let done = run("cudnn");
        assert!(done.status.success() && String::from_utf8_lossy(&done.stdout).contains("requirement not met: no GPU"));
        let text = std::fs::read_to_string(&record).expect("a record");
        let found: Vec<Skip> = text.lines().filter_map(Skip::parse).collect();
        let expected =
            Skip { need: Need::Gpu, test: format!("one/qkvault_skip::{NAME}"), why: "no GPU here, at all".to_owned() };
        assert_eq!(found, [expected]);
        assert!(!run("cudnn,gpu").status.success(), "a GPU was promised");
        assert_eq!(std::fs::read_to_string(&record).expect("a record"), text);
    }

    #[test]
    fn names_of_needs_differ_and_a_line_that_is_none_is_told() {
        let mut names = Need::ALL.map(Need::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Need::ALL.len());
        assert_eq!(Skip::parse("gpu\tone"), None);
        assert_eq!(Skip::parse("tpu\tone\twhy"), None);
    }
}
