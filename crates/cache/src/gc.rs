//! Collections: deleting entries until the folder is within its limits.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::crew;
use crate::evict::{Candidate, plan_eviction};
use crate::folder::Folder;
use crate::paths::{TEMP_PREFIX, is_lock};
use crate::quarantine::own_files;
use crate::read::write_without_following;
use crate::scan::ScannedFile;
use crate::stats::add;
use crate::{DiskLimits, Key, Mode, StoreError, Vault};

/// The result of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GcReport {
    /// Entries found.
    pub entries: u64,
    /// Bytes of the entries found.
    pub bytes: u64,
    /// Entries deleted.
    pub evicted: u64,
    /// Bytes of the entries deleted.
    pub evicted_bytes: u64,
    /// Entries that no limit deletes: this process holds them, or they were used within the time of grace.
    pub spared: u64,
    /// Whether the entries that are left have more bytes than the limit.
    pub over: bool,
    /// Deleted files of writers that died.
    pub leftovers: u64,
    /// Entries that were selected and could not be deleted.
    pub failed: u64,
}

/// Age from which a temporary file or a lock counts as abandoned.
const STALE: Duration = Duration::from_secs(3600);

/// Number of threads that delete. They wait for the disk or the network, not for a core.
const DELETERS: usize = 16;

/// Longest time between two collections over all processes.
const EVERY: Duration = Duration::from_secs(3600);

impl Vault {
    /// Deletes entries until the folder is within `limits`, and temporary files of writers that died.
    ///
    /// It never deletes an entry that this process holds, or that was used or written within the time of grace. An
    /// entry that another process has read stays valid there, because that process holds the bytes and not the file.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotWritable`] if the vault does not write. Files that cannot be deleted are counted in the report.
    pub fn gc(&self, limits: &DiskLimits) -> Result<GcReport, StoreError> {
        let folder = self.writable()?;
        let now = (self.inner.options.clock)();
        let in_use: HashSet<Key> = self.inner.memory.in_use().collect();
        let mut report = GcReport::default();
        // The age of a temporary file is measured by the clock that stamped it: by the clock of a host that is an hour
        // ahead, every file being written would look abandoned.
        let disk_now = disk_time(folder).unwrap_or(now);
        let mut candidates = Vec::new();
        for found in folder.scan() {
            match found {
                ScannedFile::Entry(key, path) => {
                    // It vanished meanwhile.
                    let Some((bytes, last_used)) = look(&path) else {
                        continue;
                    };
                    let in_use = in_use.contains(&key);
                    candidates.push(Candidate { key, bytes, last_used, in_use });
                    report.entries += 1;
                    report.bytes += bytes;
                }
                ScannedFile::Temp(path) => report.leftovers += u64::from(remove_stale(&path, disk_now)),
                ScannedFile::Unlisted(..) | ScannedFile::Foreign => {}
            }
        }
        report.leftovers += remove_stale_locks(folder, disk_now);

        let plan = plan_eviction(&candidates, now, limits);
        report.spared = plan.spared;
        report.over = limits.max_bytes.is_some_and(|most| plan.kept_bytes > most);
        let going: HashSet<Key> = plan.keys.into_iter().collect();
        candidates.retain(|candidate| going.contains(&candidate.key));
        // File systems delete faster folder by folder.
        candidates.sort_unstable_by_key(|candidate| candidate.key);
        let outcomes = crew::parallel_map(&candidates, DELETERS, |candidate| delete(folder, candidate));
        for (deleted, bytes) in outcomes {
            match deleted {
                true => {
                    report.evicted += 1;
                    report.evicted_bytes += bytes;
                }
                false => report.failed += 1,
            }
        }
        add(&self.inner.counters.evicted_disk, report.evicted);
        add(&self.inner.counters.evicted_disk_bytes, report.evicted_bytes);
        tracing::debug!(?report, "collected");
        Ok(report)
    }

    pub(crate) fn writable(&self) -> Result<&Folder, StoreError> {
        match (self.inner.settings.mode, &self.inner.folder) {
            (Mode::ReadWrite, Some(folder)) => Ok(folder),
            (Mode::ReadOnly, _) => Err(StoreError::NotWritable { mode: "ro" }),
            _ => Err(StoreError::NotWritable { mode: "off" }),
        }
    }

    /// Starts a collection in a thread of its own if one is due. Every write calls it.
    pub(crate) fn collect_if_due(&self, written: u64) {
        let auto = &self.inner.auto_gc;
        let limits = self.inner.settings.limits;
        let Some(folder) = &self.inner.folder else {
            return;
        };
        if limits.max_bytes.is_none() && limits.max_age.is_none() {
            return;
        }
        let now = (self.inner.options.clock)();
        if !auto.is_due(written, limits.max_bytes, || stamp_is_old(folder, now)) || !auto.begin() {
            return;
        }
        let vault = self.clone();
        let run = move || {
            let _running = vault.inner.auto_gc.running();
            if let Some(folder) = &vault.inner.folder {
                set_stamp(folder, (vault.inner.options.clock)());
            }
            // `gc` logs and counts what it does.
            let _ = vault.gc(&limits);
        };
        let thread = std::thread::Builder::new().name("qkvault-gc".to_owned());
        if let Err(error) = thread.spawn(run) {
            drop(auto.running());
            tracing::debug!(%error, "no thread for collecting");
        }
    }
}

/// Deletes one entry, unless it was used or written since it was selected. Returns whether that worked, and its bytes;
/// `None` if it stays or is gone already.
fn delete(folder: &Folder, candidate: &Candidate) -> Option<(bool, u64)> {
    let Candidate { key, bytes, last_used, in_use: _ } = candidate;
    let path = folder.layout.entry(key);
    if look(&path) != Some((*bytes, *last_used)) {
        return None;
    }
    match fs::remove_file(&path) {
        Ok(()) => Some((true, *bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "an entry could not be evicted");
            Some((false, 0))
        }
    }
}

fn look(path: &Path) -> Option<(u64, SystemTime)> {
    let meta = fs::symlink_metadata(path).ok()?;
    // On a file system without times every entry is the oldest.
    let last_used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    Some((meta.len(), last_used))
}

/// The current time by the clock of the folder's file system; `None` if the folder cannot be written.
fn disk_time(folder: &Folder) -> Option<SystemTime> {
    let probe = tempfile::Builder::new().prefix(TEMP_PREFIX).tempfile_in(&folder.layout.version).ok()?;
    probe.as_file().metadata().and_then(|meta| meta.modified()).ok()
}

fn is_stale(path: &Path, now: SystemTime) -> bool {
    look(path).is_some_and(|(_, time)| now.duration_since(time).is_ok_and(|age| age > STALE))
}

fn remove_stale(path: &Path, now: SystemTime) -> bool {
    is_stale(path, now) && fs::remove_file(path).is_ok()
}

/// Removes old lock files that no process holds. A holder removes its own; these belong to processes that were killed.
fn remove_stale_locks(folder: &Folder, now: SystemTime) -> u64 {
    let mut removed = 0;
    for path in own_files(&folder.layout.locks).filter(|path| is_lock(path)) {
        let free = || File::open(&path).is_ok_and(|file| file.try_lock().is_ok());
        if is_stale(&path, now) && free() && fs::remove_file(&path).is_ok() {
            removed += 1;
        }
    }
    removed
}

fn stamp_path(folder: &Folder) -> PathBuf {
    folder.layout.version.join("gc.stamp")
}

/// Whether no process has collected for [`EVERY`]. A vault without a stamp gets one, and the answer is no.
fn stamp_is_old(folder: &Folder, now: SystemTime) -> bool {
    match look(&stamp_path(folder)) {
        Some((_, time)) => match now.duration_since(time) {
            Ok(age) => age > EVERY,
            Err(ahead) => ahead.duration() > EVERY,
        },
        None => {
            set_stamp(folder, now);
            false
        }
    }
}

fn set_stamp(folder: &Folder, now: SystemTime) {
    let path = stamp_path(folder);
    let set = write_without_following(&path).and_then(|file| file.set_modified(now));
    if let Err(error) = set {
        tracing::debug!(path = %path.display(), %error, "could not stamp the collection");
    }
}
