//! Looking at what is stored: lists by headers, one entry in full, checks of all, and clearing.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::SystemTime;

use crate::folder::Folder;
use crate::read::{open_for_reading, unreadable};
use crate::scan::Found;
use crate::{Entry, Header, Key, Rejection, Source, StoreError, Vault, decode};

/// One stored entry, by its header.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listed {
    /// Its key, by the file's name.
    pub key: Key,
    /// Its file.
    pub path: PathBuf,
    /// [`Source::Disk`] or [`Source::Layer`].
    pub source: Source,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// When it was last used or written.
    pub last_used: SystemTime,
    /// Whether the same key lies in a place that is asked before this one.
    pub shadowed: bool,
    /// The header, or why the file would not be served.
    pub header: Result<Header, Rejection>,
}

/// How much of each entry [`Vault::verify`] looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// The header and the length of the file.
    Header,
    /// Everything: also the checksum of the stored bytes, decompression, and the checksum of the payload.
    Payload,
}

/// What a check of all entries found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Entries that are good.
    pub good: u64,
    /// Bytes of their files.
    pub good_bytes: u64,
    /// Entries that would not be served, with the reasons, in the order of the list.
    pub bad: Vec<(Listed, Rejection)>,
}

/// What lies in the folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Entries.
    pub entries: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Files being written, or left behind.
    pub temporary: u64,
    /// Files in quarantine.
    pub quarantined: u64,
    /// Files that are not the vault's.
    pub foreign: u64,
}

impl Vault {
    /// All stored entries, the vault's own folder first, then the layers; in each by key. Reads headers only, one at a
    /// time as the iterator goes on, and changes nothing: bad files are listed and stay.
    pub fn ls(&self) -> impl Iterator<Item = Listed> + '_ {
        let mut seen = HashSet::new();
        let many = !self.inner.layers.is_empty();
        self.places()
            .flat_map(|(folder, source)| folder.entries().map(move |(key, path)| (folder, source, key, path)))
            .filter_map(move |(folder, source, key, path)| {
                let shadowed = many && !seen.insert(key);
                list(folder, source, key, path, shadowed)
            })
    }

    /// The stored entries of one key, in the order in which they are asked, each with its payload if it is good.
    pub fn show(&self, key: &Key) -> Vec<(Listed, Result<Entry, Rejection>)> {
        let mut shown: Vec<(Listed, Result<Entry, Rejection>)> = Vec::new();
        for (folder, source) in self.places() {
            let path = folder.places.entry(key);
            if let Some(listed) = list(folder, source, *key, path, !shown.is_empty()) {
                let entry = read_whole(folder, &listed);
                shown.push((listed, entry));
            }
        }
        shown
    }

    /// Checks every stored entry, with one thread per core, and changes nothing.
    pub fn verify(&self, depth: Depth) -> VerifyReport {
        let mut files = Vec::new();
        for (folder, source) in self.places() {
            files.extend(folder.entries().map(|(key, path)| (folder, source, key, path)));
        }
        let next = AtomicUsize::new(0);
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(16));
        let work = || {
            let mut found = Vec::new();
            while let Some((folder, source, key, path)) = files.get(next.fetch_add(1, Relaxed)) {
                let Some(listed) = list(folder, *source, *key, path.clone(), false) else {
                    continue;
                };
                let result = match (depth, &listed.header) {
                    (_, Err(rejection)) => Err(rejection.clone()),
                    (Depth::Header, Ok(_)) => Ok(()),
                    (Depth::Payload, Ok(_)) => read_whole(folder, &listed).map(drop),
                };
                found.push((listed, result));
            }
            found
        };
        let mut checked: Vec<(Listed, Result<(), Rejection>)> = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut all = work();
            for other in others {
                match other.join() {
                    Ok(found) => all.extend(found),
                    // A check that was lost must not look like a check that passed.
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            all
        });
        let rank = |source| match source {
            Source::Layer(n) => n + 1,
            _ => 0,
        };
        checked.sort_by_key(|(listed, _)| (rank(listed.source), listed.key));
        let mut report = VerifyReport::default();
        for (listed, result) in checked {
            match result {
                Ok(()) => {
                    report.good += 1;
                    report.good_bytes += listed.file_bytes;
                }
                Err(rejection) => report.bad.push((listed, rejection)),
            }
        }
        report
    }

    /// Counts what lies in the vault's own folder.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        let Some(folder) = &self.inner.folder else {
            return usage;
        };
        for found in folder.scan() {
            match found {
                Found::Entry(_, path) => {
                    usage.entries += 1;
                    usage.bytes += fs::metadata(path).map_or(0, |meta| meta.len());
                }
                Found::Temp(_) => usage.temporary += 1,
                Found::Foreign => usage.foreign += 1,
            }
        }
        usage.quarantined = fs::read_dir(&folder.places.quarantine).map_or(0, |files| files.count() as u64);
        usage
    }

    /// Deletes every entry of the vault's own folder, what is in quarantine, and what memory holds. Layers, and files
    /// that are not the vault's, stay. Returns what was there.
    pub fn clear(&self) -> Result<Usage, StoreError> {
        let folder = self.writable()?;
        let usage = self.usage();
        self.inner.memory.clear();
        let aside = fs::read_dir(&folder.places.quarantine).into_iter().flatten().flatten();
        let paths = folder.scan().filter_map(|found| match found {
            Found::Entry(_, path) | Found::Temp(path) => Some(path),
            Found::Foreign => None,
        });
        for path in paths.chain(aside.map(|file| file.path())) {
            match fs::remove_file(&path) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::Io { action: "delete", path, source });
                }
                _ => {}
            }
        }
        Ok(usage)
    }

    /// The folders in the order in which they are asked.
    pub(crate) fn places(&self) -> impl Iterator<Item = (&Folder, Source)> {
        let own = self.inner.folder.iter().map(|folder| (folder, Source::Disk));
        let layers = self.inner.layers.iter().enumerate();
        own.chain(layers.map(|(n, layer)| (layer, Source::Layer(n))))
    }
}

/// `None` when the file is gone.
fn list(folder: &Folder, source: Source, key: Key, path: PathBuf, shadowed: bool) -> Option<Listed> {
    let meta = fs::symlink_metadata(&path).ok()?;
    let header = folder.read_header(&key, &path);
    Some(Listed {
        key,
        source,
        file_bytes: meta.len(),
        last_used: meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        shadowed,
        header,
        path,
    })
}

fn read_whole(folder: &Folder, listed: &Listed) -> Result<Entry, Rejection> {
    let file = open_for_reading(&listed.path).map_err(|error| unreadable(&error))?;
    let bytes = folder.read(&listed.path, &file)?;
    decode(&bytes, Some(&listed.key)).map(|(_, entry)| entry)
}
