//! Looking at what is stored: lists by headers, one entry in full, what the folder holds, and clearing it.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::folder::Folder;
use crate::format::decode;
use crate::scan::Found;
use crate::{Entry, Header, Key, Rejection, Source, StoreError, Vault};

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

    /// Counts what lies in the vault's own folder.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        let Some(folder) = &self.inner.folder else {
            return usage;
        };
        let bytes = |path: &PathBuf| fs::metadata(path).map_or(0, |meta| meta.len());
        for found in folder.scan() {
            match found {
                Found::Entry(_, path) => {
                    usage.entries += 1;
                    usage.bytes += bytes(&path);
                }
                Found::Temp(_) => usage.temporary += 1,
                Found::Foreign => usage.foreign += 1,
                Found::Unlisted(..) => {}
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
            Found::Foreign | Found::Unlisted(..) => None,
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
    let header = folder.read_header(&key, &path);
    listed(source, key, path, shadowed, header)
}

/// The same with a header that was read already.
pub(crate) fn listed(
    source: Source,
    key: Key,
    path: PathBuf,
    shadowed: bool,
    header: Result<Header, Rejection>,
) -> Option<Listed> {
    let meta = fs::symlink_metadata(&path).ok()?;
    let last_used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    Some(Listed { key, source, file_bytes: meta.len(), last_used, shadowed, header, path })
}

fn read_whole(folder: &Folder, listed: &Listed) -> Result<Entry, Rejection> {
    let bytes = folder.read_path(&listed.path)?;
    decode(&bytes, Some(&listed.key)).map(|(_, entry)| entry)
}
