//! The child process of the compiler: alone with its folder, within limits of time and memory, and gone with everything
//! that it made when it ends or when whoever started it does.
//!
//! It gets the request by its standard input and nothing of the caller's environment or folders. The input stays open
//! while somebody waits: the program of the child (`compiler.py`) ends, and removes its folder, when the input does.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::python::Python;

/// Names of the folders of children begin so.
const FOLDER: &str = "qkvault-fa4-";

/// A folder that is as old as this belongs to no child: the limit of time is far below.
const STALE: Duration = Duration::from_secs(6 * 3600);

/// Characters of a child's last words that an error repeats.
const LAST_WORDS: usize = 600;

/// The most bytes of messages that are read.
const MESSAGES: u64 = 1 << 20;

/// How long a child has to remove its folder when it is ended.
const FAREWELL: Duration = Duration::from_secs(5);

/// The environment of a child: none of the caller's.
const ENVIRONMENT: [(&str, &str); 2] = [("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8")];

/// What a child may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildLimits {
    /// Wall-clock time.
    pub(crate) time: Duration,
    /// Bytes of address space; a file may have as many.
    pub(crate) memory: u64,
    /// Bytes of its answer.
    pub(crate) answer: u64,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A file could not be written or read.
    File { what: &'static str, why: String },
    /// The child ended without an answer: how, and its last words.
    Failed { status: String, words: String },
}

/// The folder of a child, with the files of its program.
#[derive(Debug)]
pub(crate) struct ChildRoom {
    folder: tempfile::TempDir,
}

impl ChildRoom {
    /// A new folder, which only this user can enter, with these files.
    pub(crate) fn with(files: &[(&str, &str)]) -> Result<ChildRoom, Ended> {
        sweep(&std::env::temp_dir());
        let folder = tempfile::Builder::new().prefix(FOLDER).permissions(private()).tempdir().map_err(file("make"))?;
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).map_err(file("write"))?;
        }
        Ok(ChildRoom { folder })
    }

    /// Runs one of the files as a program with these arguments, followed by the limits (seconds, megabytes), and the
    /// request as its standard input. The text of the file `answer.json` that it leaves.
    pub(crate) fn run(
        &self,
        python: &Python,
        program: &str,
        arguments: &[&Path],
        request: &str,
        limits: ChildLimits,
    ) -> Result<String, Ended> {
        let folder = self.folder.path();
        let mut command = Command::new(&python.program);
        // Isolated and without site-packages: nothing that is installed beside the fetched packages is imported.
        command.args(["-I", "-S", "-B"]).arg(folder.join(program)).args(arguments);
        command.args([limits.time.as_secs().to_string(), (limits.memory >> 20).to_string()]);
        command.env_clear().envs(ENVIRONMENT).env("HOME", folder).env("TMPDIR", folder).current_dir(folder);
        let messages = folder.join("messages");
        let to = || File::options().create(true).append(true).open(&messages).map(Stdio::from).map_err(file("write"));
        command.stdin(Stdio::piped()).stdout(to()?).stderr(to()?);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let started = Instant::now();
        let failed = |status: String| Ended::Failed { status, words: last_words(&messages) };
        let process = command.spawn().map_err(|error| failed(format!("it does not start: {error}")))?;
        let status = Running { process }.answered(request, started + limits.time).map_err(failed)?;
        if !status.success() {
            return Err(failed(status.to_string()));
        }
        let answer = File::open(folder.join("answer.json")).map_err(file("read"))?;
        let mut text = String::new();
        answer.take(limits.answer + 1).read_to_string(&mut text).map_err(file("read"))?;
        if text.len() as u64 > limits.answer {
            return Err(failed(format!("its answer has more than {} bytes", limits.answer)));
        }
        Ok(text)
    }
}

/// A child that is ended when this is dropped.
struct Running {
    process: Process,
}

impl Running {
    /// Writes the request and waits until the child ends, or ends it at `until`.
    fn answered(mut self, request: &str, until: Instant) -> Result<ExitStatus, String> {
        let mut input = self.process.stdin.take().ok_or("it has no input")?;
        // A child that reads nothing must not stop this thread, so another one writes. The input stays open in it.
        let text = format!("{request}\n");
        let (close, closed) = std::sync::mpsc::channel::<()>();
        let writer = std::thread::spawn(move || {
            let _ = input.write_all(text.as_bytes());
            let _ = closed.recv();
        });
        let status = self.wait(until);
        drop(close);
        if !matches!(status, Ok(Some(_))) {
            // Its input has ended; it has a moment to remove its folder.
            let _ = self.wait(Instant::now() + FAREWELL);
            drop(self);
        }
        // The pipe has no reader any more, so this ends.
        let _ = writer.join();
        match status {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err("it took too long and was ended".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn wait(&mut self, until: Instant) -> std::io::Result<Option<ExitStatus>> {
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(Some(status));
            }
            let now = Instant::now();
            if now >= until {
                return Ok(None);
            }
            std::thread::sleep(pause.min(until - now));
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let (Ok(None), Some(group)) = (self.process.try_wait(), group(&self.process)) {
            // With everything that it started: the child leads a group of its own.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            let _ = self.process.wait();
        }
    }
}

fn group(process: &Process) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(i32::try_from(process.id()).ok()?)
}

/// The end of a child's messages, in one line.
fn last_words(messages: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(messages) {
        let _ = file.take(MESSAGES).read_to_end(&mut bytes);
    }
    let text = String::from_utf8_lossy(&bytes);
    let words = text.trim();
    let from = words.char_indices().rev().nth(LAST_WORDS).map_or(0, |(at, _)| at);
    words[from..].replace('\n', " | ")
}

/// Removes folders of children of this user that were killed together with whoever started them.
fn sweep(parent: &Path) {
    let old = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(FOLDER));
        // A link is none, whatever it points to.
        let meta = path.symlink_metadata().ok().filter(|meta| name && meta.is_dir());
        let mine = meta.filter(|meta| std::os::unix::fs::MetadataExt::uid(meta) == rustix::process::geteuid().as_raw());
        let age = mine.and_then(|meta| SystemTime::now().duration_since(meta.modified().ok()?).ok());
        age.is_some_and(|age| age > STALE)
    };
    let names = std::fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path());
    names.filter(old).for_each(|path| {
        let _ = std::fs::remove_dir_all(path);
    });
}

/// A folder that only its owner can enter.
fn private() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o700)
}

fn file(what: &'static str) -> impl Fn(std::io::Error) -> Ended {
    move |error| Ended::File { what, why: error.to_string() }
}

#[cfg(test)]
mod tests;
