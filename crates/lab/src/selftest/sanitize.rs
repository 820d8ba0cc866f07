//! A self-test under NVIDIA's compute-sanitizer: each case in a process of its own, several at a time, each distinct fault told once.
//!
//! memcheck sees every case. initcheck and racecheck are ten times as slow and see a sample. A kernel that reads or writes beyond an
//! operand computes right numbers most of the time, so the comparison with the oracle alone does not find it.
//!
//! Run the plain self-test with the same seed and `--vault` first: a plan that the vault lacks is compiled under the sanitizer.

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
    /// Reads of device memory that nobody has written.
    Initcheck,
    /// Accesses to shared memory without an order between them.
    Racecheck,
}

impl Tool {
    /// The name that compute-sanitizer knows it by.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Tool::Memcheck => "memcheck",
            Tool::Initcheck => "initcheck",
            Tool::Racecheck => "racecheck",
        }
    }
}

/// What one tool says of one case.
pub(super) struct Seen {
    pub(super) number: u64,
    pub(super) tool: Tool,
    /// How the case itself ended: right, refused, wrong or failed.
    pub(super) status: &'static str,
    /// Faults, or why there is no verdict.
    pub(super) faults: Result<Vec<Fault>, String>,
}

/// Bytes of padding after each allocation, so that what lies behind an operand belongs to nobody.
const PADDING: &str = "256";

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &Args, attentions: &Attentions<'_>) -> anyhow::Result<Outcome> {
    anyhow::ensure!(
        globals.vault.is_some(),
        "--sanitize starts a process for each case; name the vault that they share with --vault DIR"
    );
    let limit = Duration::from_secs(args.case_limit);
    // The first worker runs without the sanitizer: it says where cases run, or why they cannot.
    let place = Worker::start(&mut this_program(["--worker"])?)?
        .ask(super::isolate::PLACE, limit)
        .context("a worker does not start; `selftest --cases 1` says why")?;
    let place: Value = serde_json::from_str(&place)?;
    version(&args.sanitizer)?;
    let logs = tempfile::tempdir().context("a folder for the sanitizer's logs")?;
    let numbers = attentions.numbers();
    let mut sanitized = Sanitized::new(args, numbers.end - numbers.start, place);
    let started = Instant::now();
    each(
        args,
        numbers,
        |number, tool| one(args, logs.path(), number, tool, limit),
        |seen| {
            let attention = attentions.attention(seen.number);
            sanitized.take(&seen, &attention, args.serves(seen.number), started.elapsed());
        },
    )?;
    Ok(sanitized.finish(globals, started.elapsed()))
}

/// Tools that see a case: memcheck each, the others every `sample`-th (0: none).
fn tools(number: u64, sample: u64) -> &'static [Tool] {
    if sample > 0 && number.is_multiple_of(sample) {
        &[Tool::Memcheck, Tool::Initcheck, Tool::Racecheck]
    } else {
        &[Tool::Memcheck]
    }
}

/// Puts every case to its tools, several processes at a time, and hands on what came of each.
fn each(
    args: &Args,
    numbers: Range<u64>,
    one: impl Fn(u64, Tool) -> anyhow::Result<Seen> + Sync,
    mut take: impl FnMut(Seen),
) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicU64::new(numbers.start);
    std::thread::scope(|scope| {
        let (sender, seen) = channel();
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
                            // Nobody listens only when the command is at its end.
                            let _ = sender.send(one(number, tool)?);
                        }
                    }
                })
            })
            .collect();
        drop(sender);
        seen.into_iter().for_each(&mut take);
        threads.into_iter().try_for_each(|t| t.join().expect("a thread that only waits does not panic"))
    })
}

/// One case under one tool.
fn one(args: &Args, logs: &Path, number: u64, tool: Tool, limit: Duration) -> anyhow::Result<Seen> {
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
    Ok(Seen { number, tool, status, faults })
}

/// This program as a worker under a tool.
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

/// Says early that the sanitizer is not there.
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
