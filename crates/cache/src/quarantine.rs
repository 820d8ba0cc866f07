//! Quarantine: rejected entries are moved aside and not deleted, so that a user can find out what happened to the disk.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use crate::folder::Folder;
use crate::format::decode;
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

    fn trim_quarantine(&self) {
        let Ok(files) = fs::read_dir(&self.layout.quarantine) else {
            return;
        };
        let mut files: Vec<(SystemTime, PathBuf)> = files
            .flatten()
            .map(|file| {
                let time = file.metadata().and_then(|meta| meta.modified());
                (time.unwrap_or(SystemTime::UNIX_EPOCH), file.path())
            })
            .collect();
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
