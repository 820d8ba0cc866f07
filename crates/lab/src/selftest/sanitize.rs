//! Runs a self-test under NVIDIA's compute-sanitizer: each case in its own process, several in parallel, with each
//! distinct fault reported once.
//!
//! memcheck runs for every case. initcheck and racecheck are ten times as slow and run for a sample. A kernel that
//! reads or writes beyond an operand computes right numbers most of the time, so the comparison with the oracle does
//! not find it.
//!
//! Run the plain self-test with the same seed and `--vault` first. Otherwise plans are compiled under the sanitizer.

use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::Value;

use super::faults::{Fault, faults};
use super::isolate::status_of;
use super::sanitized::Sanitized;
use super::{Args, Attentions};
use crate::workers::{Worker, this_program};
use qkvault_cli::{Globals, Outcome};

/// A tool of compute-sanitizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tool {
    /// Reads and writes outside of allocations, and misaligned ones.
    Memcheck,
    /// Reads of uninitialized device memory.
    Initcheck,
    /// Data races in shared memory.
    Racecheck,
}

impl Tool {
    /// The tool's name for compute-sanitizer.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Tool::Memcheck => "memcheck",
            Tool::Initcheck => "initcheck",
            Tool::Racecheck => "racecheck",
        }
    }
}

/// The report of one tool on one case.
pub(super) struct ToolReport {
    pub(super) number: u64,
    pub(super) tool: Tool,
    /// The status of the case: right, refused, wrong or failed.
    pub(super) status: &'static str,
    /// The faults, or the reason why there is no report.
    pub(super) faults: Result<Vec<Fault>, String>,
}

/// Bytes of padding after each allocation, so that an access beyond an operand hits no other allocation.
const PADDING: &str = "256";

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &Args, attentions: &Attentions<'_>) -> anyhow::Result<Outcome> {
    anyhow::ensure!(
        globals.vault.is_some(),
        "--sanitize starts a process for each case; name the vault that they share with --vault DIR"
    );
    let limit = Duration::from_secs(args.case_limit);
    // The first worker runs without the sanitizer. It describes the machine, or fails with a clear error.
    let place = Worker::start(&mut this_program(["--worker"])?)?
        .ask(super::isolate::PLACE, limit)
        .context("a worker does not start; run `selftest --cases 1` to see why")?;
    let place: Value = serde_json::from_str(&place)?;
    version(&args.sanitizer)?;
    let logs = tempfile::tempdir().context("could not make a folder for the sanitizer's logs")?;
    let numbers = attentions.numbers();
    let mut sanitized = Sanitized::new(args, numbers.end - numbers.start, place);
    let started = Instant::now();
    each(
        args,
        numbers,
        |number, tool| one(args, logs.path(), number, tool, limit),
        |report| {
            let attention = attentions.attention(report.number);
            sanitized.take(&report, &attention, args.serves(report.number), started.elapsed());
        },
    )?;
    Ok(sanitized.finish(globals, started.elapsed()))
}

/// The tools for a case: memcheck always, the others for every `sample`-th case (0: never).
fn tools(number: u64, sample: u64) -> &'static [Tool] {
    if sample > 0 && number.is_multiple_of(sample) {
        &[Tool::Memcheck, Tool::Initcheck, Tool::Racecheck]
    } else {
        &[Tool::Memcheck]
    }
}

/// Runs the tools of every case in parallel processes, and passes each report to `take`.
fn each(
    args: &Args,
    numbers: Range<u64>,
    one: impl Fn(u64, Tool) -> anyhow::Result<ToolReport> + Sync,
    mut take: impl FnMut(ToolReport),
) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicU64::new(numbers.start);
    std::thread::scope(|scope| {
        let (sender, reports) = channel();
        let threads: Vec<_> = (0..args.workers.unwrap_or(cores).max(1))
            .map(|_| {
                let (sender, next, one, end) = (sender.clone(), &next, &one, numbers.end);
                scope.spawn(move || -> anyhow::Result<()> {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= end {
                            return Ok(());
                        }
                        for &tool in tools(number, args.sample) {
                            // Sending fails only after the receiver has ended with the command.
                            let _ = sender.send(one(number, tool)?);
                        }
                    }
                })
            })
            .collect();
        drop(sender);
        reports.into_iter().for_each(&mut take);
        threads.into_iter().try_for_each(|t| t.join().expect("a thread that only waits does not panic"))
    })
}

/// Runs one case under one tool.
fn one(args: &Args, logs: &Path, number: u64, tool: Tool, limit: Duration) -> anyhow::Result<ToolReport> {
    let log = logs.join(format!("{}-{number}.log", tool.name()));
    let mut worker = Worker::start(&mut under(args, tool, &log, limit)?)?;
    // `timeout` ends the sanitizer and the process below it; the longer limit here is for `timeout` itself.
    let beyond = limit + Duration::from_secs(20);
    let answer = worker.ask(&number.to_string(), beyond).map_err(|silence| silence.to_string());
    let status = answer.as_deref().map_or("failed", |line| status_of(line));
    let ended = worker.finish(beyond).map_err(|silence| silence.to_string());
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    let _ = std::fs::remove_file(&log);
    let faults = match faults(&text) {
        Some(faults) => Ok(faults),
        None => Err(format!("{} ended without a summary: {answer:?}, {ended:?}", tool.name())),
    };
    Ok(ToolReport { number, tool, status, faults })
}

/// The command that starts this program as a worker under a tool.
fn under(args: &Args, tool: Tool, log: &Path, limit: Duration) -> anyhow::Result<Command> {
    let worker = this_program(["--worker"])?;
    let mut command = Command::new("timeout");
    command.args(["-k", "5"]).arg(limit.as_secs().to_string()).arg(&args.sanitizer);
    command.args(["--tool", tool.name(), "--report-api-errors", "no", "--print-limit", "100", "--log-file"]).arg(log);
    if tool == Tool::Memcheck {
        command.args(["--padding", PADDING]);
    }
    command.arg(worker.get_program()).args(worker.get_args()).env("RAYON_NUM_THREADS", "1");
    Ok(command)
}

/// Checks that the sanitizer can be started.
fn version(sanitizer: &Path) -> anyhow::Result<()> {
    let found = Command::new(sanitizer).arg("--version").output();
    let found = found.with_context(|| {
        format!(
            "{} could not be started; it comes with the CUDA toolkit (package cuda-sanitizer), or name it with --sanitizer FILE",
            sanitizer.display()
        )
    })?;
    anyhow::ensure!(found.status.success(), "{} --version: {}", sanitizer.display(), found.status);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memcheck_sees_every_case_and_the_slow_tools_a_sample() {
        let count = |tool| (0..2_000).filter(|&n| tools(n, 20).contains(&tool)).count();
        assert_eq!([Tool::Memcheck, Tool::Initcheck, Tool::Racecheck].map(count), [2_000, 100, 100]);
        assert!((0..50).all(|n| tools(n, 0) == [Tool::Memcheck]));
    }
}
