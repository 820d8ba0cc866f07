//! Inspecting a vault: lists by headers, one entry in full, the use of its folder, and clearing it.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::folder::Folder;
use crate::format::decode;
use crate::scan::ScannedFile;
use crate::{Entry, Header, Key, Rejection, Source, StoreError, Vault};

/// One stored entry with its header.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listed {
    /// Its key, from the name of the file.
    pub key: Key,
    /// Path of its file.
    pub path: PathBuf,
    /// [`Source::Disk`] or [`Source::Layer`].
    pub source: Source,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// When it was last used or written.
    pub last_used: SystemTime,
    /// Whether an earlier folder has the same key, so that this entry is not served.
    pub shadowed: bool,
    /// The header, or why a look-up rejects the file.
    pub header: Result<Header, Rejection>,
}

/// The number of files in a vault's folder, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Entries.
    pub entries: u64,
    /// Bytes of the entry files.
    pub bytes: u64,
    /// Temporary files: being written, or left behind by a writer that died.
    pub temporary: u64,
    /// Rejected files in quarantine.
    pub quarantined: u64,
    /// Files that the vault did not make.
    pub foreign: u64,
}

impl Vault {
    /// Lists all stored entries: those of the vault's own folder first, then those of the layers, in each by key.
    ///
    /// The iterator reads one header at a time and changes nothing: bad files are listed and stay.
    pub fn ls(&self) -> impl Iterator<Item = Listed> + '_ {
        let mut seen = HashSet::new();
        let many = !self.inner.layers.is_empty();
        self.folders()
            .flat_map(|(folder, source)| folder.entries().map(move |(key, path)| (folder, source, key, path)))
            .filter_map(move |(folder, source, key, path)| {
                let shadowed = many && !seen.insert(key);
                list(folder, source, key, path, shadowed)
            })
    }

    /// Reads the stored entries of one key in the order in which a look-up tries them, each with its payload if it is
    /// good.
    #[must_use]
    pub fn show(&self, key: &Key) -> Vec<(Listed, Result<Entry, Rejection>)> {
        let mut shown: Vec<(Listed, Result<Entry, Rejection>)> = Vec::new();
        for (folder, source) in self.folders() {
            let path = folder.layout.entry(key);
            if let Some(listed) = list(folder, source, *key, path, !shown.is_empty()) {
                let entry = read_whole(folder, &listed);
                shown.push((listed, entry));
            }
        }
        shown
    }

    /// Counts the files in the vault's own folder.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        let Some(folder) = &self.inner.folder else {
            return usage;
        };
        let bytes = |path: &PathBuf| fs::metadata(path).map_or(0, |meta| meta.len());
        for found in folder.scan() {
            match found {
                ScannedFile::Entry(_, path) => {
                    usage.entries += 1;
                    usage.bytes += bytes(&path);
                }
                ScannedFile::Temp(_) => usage.temporary += 1,
                ScannedFile::Foreign => usage.foreign += 1,
                ScannedFile::Unlisted(..) => {}
            }
        }
        usage.quarantined = folder.quarantined().count() as u64;
        usage
    }

    /// Deletes every entry of the vault's own folder, of its quarantine and of memory. Layers, and files that the vault
    /// did not make, stay. Returns the use of the folder before.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the vault does not write, or for the first file that cannot be deleted.
    pub fn clear(&self) -> Result<Usage, StoreError> {
        let folder = self.writable()?;
        let usage = self.usage();
        self.inner.memory.clear();
        let paths = folder.scan().filter_map(|found| match found {
            ScannedFile::Entry(_, path) | ScannedFile::Temp(path) => Some(path),
            ScannedFile::Foreign | ScannedFile::Unlisted(..) => None,
        });
        for path in paths.chain(folder.quarantined()) {
            match fs::remove_file(&path) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::Io { action: "delete", path, source });
                }
                _ => {}
            }
        }
        Ok(usage)
    }

    /// The folders in the order in which a look-up tries them.
    pub(crate) fn folders(&self) -> impl Iterator<Item = (&Folder, Source)> {
        let own = self.inner.folder.iter().map(|folder| (folder, Source::Disk));
        let layers = self.inner.layers.iter().enumerate();
        own.chain(layers.map(|(n, layer)| (layer, Source::Layer(n))))
    }
}

/// Reads the header of a file and lists it; `None` if the file is gone.
fn list(folder: &Folder, source: Source, key: Key, path: PathBuf, shadowed: bool) -> Option<Listed> {
    let header = folder.read_header(&key, &path);
    listed(source, key, path, shadowed, header)
}

/// Lists a file with a header that was read already; `None` if the file is gone.
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
