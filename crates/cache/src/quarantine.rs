//! Quarantine: rejected entries are moved aside and not deleted, so that a user can find out what happened to the disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use crate::folder::Folder;
use crate::format::decode;
use crate::paths::is_rejected;
use crate::{Entry, Key, Rejection};

/// Most files kept in quarantine; the oldest are deleted first.
const KEPT: usize = 64;

impl Folder {
    /// Moves the file of a rejected entry to quarantine. Returns `None` if nothing was moved.
    ///
    /// Another process may have stored a good entry between the read and the move. So the moved file is read again, and
    /// moved back if it is good.
    pub(crate) fn set_aside(&self, key: &Key, rejection: &Rejection, discredited: Option<&Entry>) -> Option<PathBuf> {
        static UNIQUE: AtomicU64 = AtomicU64::new(0);
        if let Err(error) = fs::symlink_metadata(&self.layout.quarantine).and_then(is_real_folder) {
            tracing::debug!(path = %self.layout.quarantine.display(), %error, "a rejected entry stays in its place");
            return None;
        }
        let from = self.layout.entry(key);
        let to = self.layout.rejected(key, rejection.cause(), UNIQUE.fetch_add(1, Relaxed));
        if let Err(error) = fs::rename(&from, &to) {
            tracing::debug!(path = %from.display(), %error, "could not move a rejected entry aside");
            return None;
        }
        let again = self.read_path(&to).and_then(|bytes| decode(&bytes, Some(key)));
        // Whoever discredits an entry knows it: another one in its place may be good.
        let good = match (&again, discredited) {
            (Ok((_, entry)), Some(discredited)) => entry != discredited,
            (again, _) => again.is_ok(),
        };
        if good {
            // If a third process stored the key meanwhile, one good entry replaces another.
            if let Err(error) = fs::rename(&to, &from) {
                tracing::warn!(path = %to.display(), %error, "a good entry could not be moved back from quarantine");
            }
            return None;
        }
        self.trim_quarantine();
        Some(to)
    }

    /// The files that a vault moved to quarantine: regular ones with the names that it gives. None, if the folder is a
    /// link: then the vault did not make it.
    pub(crate) fn quarantined(&self) -> impl Iterator<Item = PathBuf> + use<> {
        own_files(&self.layout.quarantine).filter(|path| is_rejected(path))
    }

    fn trim_quarantine(&self) {
        let time = |path: &Path| fs::symlink_metadata(path).and_then(|meta| meta.modified());
        let files = self.quarantined().map(|path| (time(&path).unwrap_or(SystemTime::UNIX_EPOCH), path));
        let mut files: Vec<(SystemTime, PathBuf)> = files.collect();
        if files.len() <= KEPT {
            return;
        }
        files.sort();
        for (_, path) in &files[..files.len() - KEPT] {
            // Another process may trim at the same time.
            let _ = fs::remove_file(path);
        }
    }
}

/// The regular files in a folder that is no link.
pub(crate) fn own_files(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let listing = fs::symlink_metadata(folder).and_then(is_real_folder).and_then(|()| fs::read_dir(folder));
    let files = listing.into_iter().flatten().flatten();
    // `file_type` does not follow a link.
    files.filter(|file| file.file_type().is_ok_and(|kind| kind.is_file())).map(|file| file.path())
}

fn is_real_folder(meta: fs::Metadata) -> io::Result<()> {
    if meta.is_dir() { Ok(()) } else { Err(io::Error::new(io::ErrorKind::NotADirectory, "it is a link or a file")) }
}
