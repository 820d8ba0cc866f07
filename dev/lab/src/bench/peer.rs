//! Other libraries in a process of Python, which answers each line with a line, so that both take turns on one GPU.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

/// The program, a folder. It needs nothing but PyTorch; what other libraries compute is told where they are missing.
const PROGRAM: [(&str, &str); 10] = [
    ("__main__.py", include_str!("peer/__main__.py")),
    ("cases.py", include_str!("peer/cases.py")),
    ("exact.py", include_str!("peer/exact.py")),
    ("measure.py", include_str!("peer/measure.py")),
    ("plain.py", include_str!("peer/plain.py")),
    ("warm.py", include_str!("peer/warm.py")),
    ("ways_flash_attn.py", include_str!("peer/ways_flash_attn.py")),
    ("ways_flashinfer.py", include_str!("peer/ways_flashinfer.py")),
    ("ways_flex.py", include_str!("peer/ways_flex.py")),
    ("ways_torch.py", include_str!("peer/ways_torch.py")),
];

/// The process.
pub(super) struct Peer {
    child: Child,
    lines: BufReader<ChildStdout>,
    words: Option<ChildStdin>,
    /// PyTorch's version, its cuDNN, its GPU.
    pub(super) machine: Value,
    /// The program's folder, deleted at the end.
    _folder: tempfile::TempDir,
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
    ///
    /// # Errors
    ///
    /// As [`Peer::start`].
    pub(super) fn start_as(python: &Path, device: usize, mode: &str) -> anyhow::Result<Peer> {
        let folder = tempfile::Builder::new().prefix("qkvault-peer-").tempdir()?;
        for (name, text) in PROGRAM {
            std::fs::write(folder.path().join(name), text)?;
        }
        let mut command = Command::new(python);
        command.arg("-u").arg(folder.path()).arg(mode).arg(device.to_string());
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.with_context(|| format!("{} cannot be started", python.display()))?;
        let (words, lines) = (child.stdin.take(), child.stdout.take().context("no output")?);
        let mut peer = Peer { child, lines: BufReader::new(lines), words, machine: Value::Null, _folder: folder };
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

    /// Whether the process has not ended.
    pub(super) fn is_there(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
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

#[cfg(test)]
mod tests {
    use super::PROGRAM;

    #[test]
    fn the_program_has_every_file_of_its_folder_but_its_tests() {
        let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/peer")).expect("a folder");
        let names = folder.filter_map(|file| file.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".py") && name != "test_peer.py").collect();
        names.sort();
        assert_eq!(names, PROGRAM.map(|(name, _)| name));
    }
}
