//! Entries of older formats in a vault's folder: never read, known by the folder's name, deleted on demand.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::folder::Folder;
use crate::paths::{STORE_FORMAT, TEMP_PREFIX, is_lock, is_rejected, key_of};
use crate::{Source, StoreError, Vault};

/// The entries of one older format in one folder. This version never looks their keys up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Older {
    /// The folder, such as `ROOT/vault/v1`.
    pub path: PathBuf,
    /// [`Source::Disk`] or [`Source::Layer`].
    pub source: Source,
    /// The format, lower than [`STORE_FORMAT`].
    pub format: u16,
    /// Number of entries.
    pub entries: u64,
    /// Bytes of all files: entries, the files beside them, quarantine.
    pub bytes: u64,
}

impl std::fmt::Display for Older {
    /// Writes a sentence that says what is there and what to do.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Older { path, source, format, entries, bytes: _ } = self;
        let fix = match source {
            Source::Layer(_) => "the layer has to be warmed again with this version",
            _ => "`qkvault cache gc` deletes them",
        };
        let n = if *entries == 1 { "entry" } else { "entries" };
        let path = path.display();
        write!(
            f,
            "{path} holds {entries} {n} of format {format}, which an older qkvault wrote and this one \
             (format {STORE_FORMAT}) never reads: {fix}"
        )
    }
}

impl Vault {
    /// Finds entries of older formats in the vault's own folder and in its layers, by file names alone.
    #[must_use]
    pub fn older(&self) -> Vec<Older> {
        self.folders().flat_map(|(folder, source)| folder.older(source)).collect()
    }

    /// Deletes the entries of older formats in the vault's own folder, and returns what it deleted. Layers, and files
    /// that no vault made, stay. A running program of an older version builds again what it misses.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the vault does not write, or for the first file that cannot be deleted.
    pub fn clear_older(&self) -> Result<Vec<Older>, StoreError> {
        let folder = self.writable()?;
        let found = folder.older(Source::Disk);
        for older in &found {
            for (path, _) in files(&older.path) {
                match fs::remove_file(&path) {
                    Err(source) if source.kind() != io::ErrorKind::NotFound => {
                        return Err(StoreError::Io { action: "delete", path, source });
                    }
                    _ => {}
                }
            }
            remove_empty(&older.path, DEPTH);
        }
        Ok(found)
    }
}

impl Folder {
    /// Whether there is a folder of an older format. Costs one check per format, because every opening does it.
    pub(crate) fn has_older(&self) -> bool {
        (1..STORE_FORMAT).any(|format| self.layout.vault.join(format!("v{format}")).is_dir())
    }

    /// The older formats in this folder, oldest first.
    pub(crate) fn older(&self, source: Source) -> Vec<Older> {
        let mut found: Vec<Older> = subfolders(&self.layout.vault)
            .into_iter()
            .filter_map(|path| {
                let format = path.file_name()?.to_str()?.strip_prefix('v')?.parse().ok()?;
                let (mut entries, mut bytes) = (0, 0);
                for (file, len) in files(&path) {
                    entries += u64::from(key_of(&file).is_some() && in_folder(&file, "entries"));
                    bytes += len;
                }
                let older = (1..STORE_FORMAT).contains(&format);
                older.then_some(Older { path, source, format, entries, bytes })
            })
            .collect();
        found.sort_unstable_by_key(|older| older.format);
        found
    }
}

/// Levels of folders below the folder of a format: `entries/ab`.
const DEPTH: u32 = 2;

/// Every file below the folder of a format that a vault made, by its name, with its bytes. Links are not followed.
fn files(format: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    let mut folders = vec![(format.to_owned(), DEPTH)];
    while let Some((folder, depth)) = folders.pop() {
        for file in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(kind) = file.file_type() else { continue };
            if kind.is_dir() && depth > 0 {
                folders.push((file.path(), depth - 1));
            } else if kind.is_file() && is_ours(&file.path()) {
                found.push((file.path(), file.metadata().map_or(0, |meta| meta.len())));
            }
        }
    }
    found
}

/// Whether a vault made a file, by its name.
fn is_ours(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let rejected = in_folder(file, "quarantine") && is_rejected(file);
    key_of(file).is_some() || name.starts_with(TEMP_PREFIX) || name == "gc.stamp" || is_lock(file) || rejected
}

/// Whether a file lies in a folder of this name, or in a direct subfolder of it.
fn in_folder(file: &Path, name: &str) -> bool {
    file.ancestors().skip(1).take(2).any(|folder| folder.file_name().is_some_and(|found| found == name))
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

/// Removes a folder and its subfolders as far as they are empty. One that is not empty stays, which is no error.
fn remove_empty(folder: &Path, depth: u32) {
    if depth > 0 {
        subfolders(folder).iter().for_each(|below| remove_empty(below, depth - 1));
    }
    // Fails when a file is left that no vault made.
    let _ = fs::remove_dir(folder);
}
