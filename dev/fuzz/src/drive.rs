//! Runs a target on inputs, one after another, with each input on disk before it runs.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::guard;
use crate::mutate::Random;
use crate::pool::InputPool;
use crate::targets::FuzzTarget;

/// Prints one line to standard error. Ignores a closed one.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// How long a target runs.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    /// At most so long.
    pub time: Duration,
    /// At most so many inputs.
    pub runs: u64,
}

/// What a run did, in words.
///
/// # Errors
///
/// The kept inputs cannot be read, or `current` cannot be written.
pub fn run(target: &FuzzTarget, seed: u64, until: Until, current: &Path) -> Result<String> {
    let begin = Instant::now();
    let file = File::create(current).with_context(|| format!("{} cannot be written", current.display()))?;
    let keep = Current { file, length: 0 };
    let mut pool = InputPool::for_target(target)?;
    let mut random = Random::new(target.name, seed);
    let (mut runs, mut slowest, mut most, mut accepted) = (0_u64, Duration::ZERO, 0, 0_u64);
    let mut keep = keep;
    let whole = pool.inputs().to_vec();
    let mut first = whole.into_iter();
    while runs < until.runs && begin.elapsed() < until.time {
        let input = first.next().unwrap_or_else(|| pool.draw(&mut random));
        keep.write(&input).with_context(|| format!("{} cannot be written", current.display()))?;
        let measured = guard::run(target, &input);
        pool.learn(&input, measured.answer);
        (slowest, most) = (slowest.max(measured.time), most.max(measured.bytes));
        (runs, accepted) = (runs + 1, accepted + u64::from(measured.answer.accepted));
    }
    let (answers, kib) = (pool.answers(), most / 1024);
    let slowest = slowest.as_millis();
    Ok(format!("{runs} inputs, {accepted} accepted, {answers} answers; at most {slowest} ms and {kib} KiB"))
}

/// Replays the input of a file.
///
/// # Errors
///
/// The file cannot be read.
pub fn replay(target: &FuzzTarget, file: &Path) -> Result<String> {
    let bytes = std::fs::read(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let measured = guard::run(target, &bytes);
    let said = if measured.answer.accepted { "accepted" } else { "refused" };
    Ok(format!("{}: {said}, {} ms, {} KiB", file.display(), measured.time.as_millis(), measured.bytes / 1024))
}

/// The file with the input that runs: its length in eight bytes, and the input. It is not made anew for each input, so
/// that an input costs two calls of the system.
struct Current {
    file: File,
    length: u64,
}

impl Current {
    fn write(&mut self, input: &[u8]) -> std::io::Result<()> {
        self.length = input.len() as u64;
        self.file.write_all_at(input, 8)?;
        self.file.write_all_at(&self.length.to_le_bytes(), 0)
    }
}

/// The input that was running when a process ended.
///
/// # Errors
///
/// The file cannot be read, or no process wrote it.
pub fn interrupted(current: &Path) -> Result<Vec<u8>> {
    let bytes = std::fs::read(current).with_context(|| format!("{} cannot be read", current.display()))?;
    let (length, rest) = bytes.split_at_checked(8).context("no input has run")?;
    let length = length.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    ensure!(length <= rest.len(), "{} is cut off", current.display());
    Ok(rest[..length].to_vec())
}
