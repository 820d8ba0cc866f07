//! PyTorch in a process of its own, which answers each line with a line, so that both take turns on one GPU.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

/// The program. It needs nothing but PyTorch.
pub(super) const PROGRAM: &str = include_str!("peer.py");

/// The process.
pub(super) struct Peer {
    child: Child,
    lines: BufReader<ChildStdout>,
    words: Option<ChildStdin>,
    /// PyTorch's version, its cuDNN, its GPU.
    pub(super) machine: Value,
    /// The program's file, deleted at the end.
    _file: tempfile::NamedTempFile,
}

impl Peer {
    /// Starts the process and waits until PyTorch is imported and has a GPU.
    ///
    /// # Errors
    ///
    /// Python or PyTorch is not there, or has no GPU.
    pub(super) fn start(python: &Path, device: usize) -> anyhow::Result<Peer> {
        Peer::start_as(python, device, "serve")
    }

    /// Starts the program in one of its modes.
    fn start_as(python: &Path, device: usize, mode: &str) -> anyhow::Result<Peer> {
        let mut file = tempfile::Builder::new().prefix("qkvault-peer-").suffix(".py").tempfile()?;
        file.write_all(PROGRAM.as_bytes())?;
        let mut command = Command::new(python);
        command.arg("-u").arg(file.path()).arg(mode).arg(device.to_string());
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.with_context(|| format!("{} cannot be started", python.display()))?;
        let (words, lines) = (child.stdin.take(), child.stdout.take().context("no output")?);
        let mut peer = Peer { child, lines: BufReader::new(lines), words, machine: Value::Null, _file: file };
        peer.machine = peer.answer()?;
        Ok(peer)
    }

    /// Seconds from the start of a fresh process to its first output, and the process, which is ready for more shapes.
    ///
    /// # Errors
    ///
    /// As [`Peer::start`].
    pub(super) fn first(python: &Path, device: usize, mode: &str) -> anyhow::Result<(Duration, Peer)> {
        let started = Instant::now();
        let peer = Peer::start_as(python, device, mode)?;
        Ok((started.elapsed(), peer))
    }

    /// Asks for something.
    ///
    /// # Errors
    ///
    /// The answer is an error, or the process has ended.
    pub(super) fn ask(&mut self, what: &Value) -> anyhow::Result<Value> {
        let words = self.words.as_mut().context("the peer's input is closed")?;
        writeln!(words, "{what}").and_then(|()| words.flush()).context("the peer has ended")?;
        self.answer()
    }

    /// A number of an answer.
    ///
    /// # Errors
    ///
    /// As [`Peer::ask`].
    pub(super) fn number(&mut self, what: &Value, field: &str) -> anyhow::Result<f64> {
        let answer = self.ask(what)?;
        answer[field].as_f64().with_context(|| format!("the peer's answer {answer} has no number '{field}'"))
    }

    fn answer(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            bail!("the peer printed nothing more and ended with {}", self.child.wait()?);
        }
        let answer: Value = serde_json::from_str(&line).with_context(|| format!("the peer printed {line:?}"))?;
        if let Some(error) = answer["error"].as_str() {
            bail!("{error}");
        }
        Ok(answer)
    }

    /// Frees the peer's tensors.
    pub(super) fn free(&mut self) {
        // Ignored: the next request says what is wrong.
        let _ = self.ask(&json!({ "do": "free" }));
    }
}

/// The peer as records have it: what it is, or why there is none.
pub(super) fn record(peer: &Result<Peer, String>) -> (Value, Option<&String>) {
    match peer {
        Ok(peer) => (peer.machine.clone(), None),
        Err(why) => (Value::Null, Some(why)),
    }
}

/// The numbers of a list in a record.
pub(super) fn numbers(list: &Value) -> impl Iterator<Item = f64> + '_ {
    list.as_array().into_iter().flatten().filter_map(Value::as_f64)
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.words.take());
        let _ = self.child.wait();
    }
}
