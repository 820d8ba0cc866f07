//! A lock per key across processes. It saves double work, and nothing else depends on it.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::read::{open_for_reading, write_without_following};

/// A held lock. Dropping it removes the file and releases the lock.
#[derive(Debug)]
pub(crate) struct KeyLock {
    path: PathBuf,
    file: File,
}

/// The result of an attempt to lock.
#[derive(Debug)]
pub(crate) enum Locked {
    /// This process holds the lock and may build.
    Held(KeyLock),
    /// Another process stored the entry meanwhile.
    Appeared,
    /// Another process still holds the lock after the longest wait.
    TimedOut,
    /// The file system has no locks, or the lock file cannot be opened.
    Unavailable(io::Error),
}

/// First and longest pause between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(25));

/// Takes the lock file at `path`, waiting at most `wait`. Gives up as soon as `appeared` returns true.
pub(crate) fn acquire(path: &Path, wait: Duration, appeared: impl Fn() -> bool) -> Locked {
    let start = Instant::now();
    let mut pause = PAUSES.0;
    loop {
        let file = match open(path) {
            Ok(file) => file,
            Err(error) => return Locked::Unavailable(error),
        };
        match file.try_lock() {
            // The holder before this one removed the name before it released the lock, so this may be a file that no
            // other process finds, while another process holds the new one: try again.
            Ok(()) if is_current(path, &file) => {
                let path = path.to_owned();
                return Locked::Held(KeyLock { path, file });
            }
            Ok(()) => continue,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Locked::Unavailable(error),
        }
        if appeared() {
            return Locked::Appeared;
        }
        let left = wait.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Locked::TimedOut;
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(PAUSES.1);
    }
}

fn open(path: &Path) -> io::Result<File> {
    match write_without_following(path) {
        // Another user's lock file in a shared vault can be locked without being written.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => open_for_reading(path),
        other => other,
    }
}

#[cfg(unix)]
fn is_current(path: &Path, file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |meta: fs::Metadata| (meta.dev(), meta.ino());
    match (fs::metadata(path), file.metadata()) {
        (Ok(named), Ok(held)) => id(named) == id(held),
        (Err(error), _) if error.kind() == io::ErrorKind::NotFound => false,
        // Unknown: trust the lock, which at worst means one double build.
        _ => true,
    }
}

#[cfg(not(unix))]
fn is_current(_: &Path, _: &File) -> bool {
    true
}

impl Drop for KeyLock {
    fn drop(&mut self) {
        // On other systems an open file cannot be removed; `gc` removes it later.
        if cfg!(unix) {
            let _ = fs::remove_file(&self.path);
        }
        let _ = self.file.unlock();
    }
}
