//! Writes down which attentions a program asks for, as a manifest that `qkvault warm` takes.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use qkvault_graph::{Valid, text, validate};
use qkvault_models::{AttentionEntry, LARGEST_CONFIG, Manifest, Phase};

/// Most attentions that one process records. A service with more of them has a size that grows without bounds.
const MOST: usize = 10_000;

/// Time between two writes, so that a start with hundreds of attentions does not write the file hundreds of times.
const BETWEEN: Duration = Duration::from_millis(100);

/// Records attentions in a manifest file: each distinct one once, added to those that the file has already.
///
/// A thread of its own writes the file within a second, and dropping the recorder writes what is left. The file is
/// replaced as a whole, so that readers never see half of it, and several processes may record into one file. What goes
/// wrong is a warning (`tracing`) and never an error: a service does not fail because of its records.
///
/// ```
/// use qkvault::Recorder;
/// use qkvault::graph::{Attention, DType};
/// use qkvault::models::Manifest;
///
/// # let folder = tempfile::tempdir()?;
/// let file = folder.path().join("asked.toml");
/// let recorder = Recorder::new(&file);
/// recorder.record(&Attention::bshd(1, (32, 8), (512, 512), 128, DType::BF16).causal().validate()?);
/// recorder.flush();
/// let manifest = Manifest::parse(&std::fs::read_to_string(&file)?)?; // `qkvault warm --manifest asked.toml`
/// assert_eq!(manifest.attention.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Recorder {
    shared: Arc<RecordShared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct RecordShared {
    path: PathBuf,
    state: Mutex<RecordState>,
    changed: Condvar,
    /// Held during a write.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct RecordState {
    seen: HashSet<Valid>,
    unwritten: Vec<Valid>,
    /// What a failed write left, for the next one.
    failed: Vec<Valid>,
    closing: bool,
    /// The last warning, which is not repeated.
    warned: String,
}

impl Recorder {
    /// A recorder for a TOML file, which need not exist.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Recorder {
        let shared = RecordShared {
            path: path.into(),
            state: Mutex::default(),
            changed: Condvar::new(),
            writing: Mutex::default(),
        };
        Recorder { shared: Arc::new(shared), writer: Mutex::default() }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Records an attention, unless it is recorded already. Microseconds; the file is written later.
    pub fn record(&self, attention: &Valid) {
        let mut state = self.shared.state();
        if state.seen.contains(attention) {
            return;
        }
        if state.seen.len() == MOST {
            drop(state);
            return self.shared.warn(&format!("no more than {MOST} attentions are recorded; the rest is left out"));
        }
        state.seen.insert(attention.clone());
        state.unwritten.push(attention.clone());
        drop(state);
        self.shared.changed.notify_one();
        self.start();
    }

    /// Writes what is not written yet, and waits for it.
    pub fn flush(&self) {
        self.shared.write();
    }

    /// Starts the thread that writes, if it does not run.
    fn start(&self) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if writer.is_some() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        match std::thread::Builder::new().name("qkvault-record".to_owned()).spawn(move || shared.work()) {
            Ok(thread) => *writer = Some(thread),
            // Dropping the recorder writes.
            Err(error) => self.shared.warn(&format!("no thread could be started: {error}")),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.state().closing = true;
        self.shared.changed.notify_one();
        if let Some(writer) = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // Ignored: a panic of the writer is printed, and ends nothing else.
            let _ = writer.join();
        }
        self.shared.write();
    }
}

impl RecordShared {
    fn state(&self) -> MutexGuard<'_, RecordState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes after every change, until the recorder is dropped.
    fn work(&self) {
        loop {
            let mut state = self.state();
            while state.unwritten.is_empty() && !state.closing {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.closing {
                return;
            }
            drop(state);
            self.write();
            let state = self.state();
            let wait = self.changed.wait_timeout_while(state, BETWEEN, |state| !state.closing);
            drop(wait);
        }
    }

    /// Adds what is unwritten to the file. What cannot be written is tried again with the next attention.
    fn write(&self) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let new = {
            let RecordState { unwritten, failed, .. } = &mut *self.state();
            [std::mem::take(failed), std::mem::take(unwritten)].concat()
        };
        if new.is_empty() {
            return;
        }
        match add(&self.path, &new) {
            Ok(()) => self.state().warned.clear(),
            Err(why) => {
                self.state().failed = new;
                self.warn(&why);
            }
        }
    }

    /// Warns, unless the last warning was the same.
    fn warn(&self, why: &str) {
        let mut state = self.state();
        if state.warned != why {
            why.clone_into(&mut state.warned);
            drop(state);
            tracing::warn!(file = %self.path.display(), "attentions are not recorded: {why}");
        }
    }
}

/// Adds attentions to the manifest of a file, which other processes may do at the same time.
fn add(path: &Path, new: &[Valid]) -> Result<(), String> {
    let failed = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
    let guard = File::create(beside(path, "lock")).map_err(failed("its lock file could not be made"))?;
    guard.lock().map_err(failed("its lock file could not be locked"))?;
    let mut manifest = match fs::read_to_string(path) {
        Ok(text) => Manifest::parse(&text).map_err(|why| format!("the file is there and is no manifest: {why}"))?,
        Err(error) if error.kind() == ErrorKind::NotFound => Manifest::new(Vec::new()),
        Err(error) => return Err(format!("the file could not be read: {error}")),
    };
    let listed = manifest.attentions().map_err(|why| format!("the file has attentions that cannot be read: {why}"))?;
    let known: HashSet<Valid> = listed.into_iter().filter_map(|listed| validate(listed.attention).ok()).collect();
    let missing: Vec<AttentionEntry> = new.iter().filter(|one| !known.contains(*one)).map(entry).collect();
    if missing.is_empty() {
        return Ok(());
    }
    manifest.attention.extend(missing);
    let text = manifest.to_toml();
    if text.len() as u64 > LARGEST_CONFIG {
        return Err(format!("it would be larger than {LARGEST_CONFIG} bytes"));
    }
    replace(path, &text).map_err(failed("the file could not be written"))
}

/// Writes a file beside it and renames that, so that readers see the old one or the new one.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let new = beside(path, "new");
    let written = OpenOptions::new().write(true).create(true).truncate(true).open(&new).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let done = written.and_then(|()| fs::rename(&new, path));
    if done.is_err() {
        // Ignored: the first error is the one to tell.
        let _ = fs::remove_file(&new);
    }
    done
}

/// A hidden file beside a file.
fn beside(path: &Path, end: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{end}"))
}

/// The entry of one attention.
fn entry(attention: &Valid) -> AttentionEntry {
    let phase = match attention.seq() {
        _ if attention.is_backward() => Phase::Train,
        (1, _) => Phase::Decode,
        _ => Phase::Prefill,
    };
    AttentionEntry {
        model: String::new(),
        layer: attention.to_string(),
        layers: 1,
        phase,
        scale: None,
        batch: Vec::new(),
        seq: Vec::new(),
        text: text::print(attention),
    }
}

#[cfg(test)]
mod tests;
