//! One folder of entries: opening it, with its trust checked, and making what is missing.

use std::fs;
use std::io;
use std::path::Path;

use crate::paths::Places;
use crate::{OpenError, trust};

/// One folder with the shape of a vault.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) places: Places,
    pub(crate) allow_shared: bool,
    pub(crate) durable: bool,
}

impl Folder {
    /// A folder to read and write: made if missing, refused if others can write to it.
    pub(crate) fn open_writable(root: &Path, allow_shared: bool, durable: bool) -> Result<Self, OpenError> {
        let folder = Self::open_read_only(root, allow_shared, durable)?;
        folder.create().map_err(|source| OpenError::Folder { path: root.to_owned(), source })?;
        // What was just made may lie under a folder that is open to all.
        folder.check()?;
        Ok(folder)
    }

    /// A folder to read, which may not be there yet.
    pub(crate) fn open_read_only(root: &Path, allow_shared: bool, durable: bool) -> Result<Self, OpenError> {
        // A relative path would change its meaning when the process changes its folder.
        let root = std::path::absolute(root).map_err(|source| OpenError::Folder { path: root.to_owned(), source })?;
        let folder = Folder { places: Places::new(root), allow_shared, durable };
        folder.check()?;
        Ok(folder)
    }

    fn check(&self) -> Result<(), OpenError> {
        let Places { root, vault, version, entries, locks: _, quarantine: _ } = &self.places;
        for path in [root, vault, version, entries] {
            let meta = match fs::metadata(path) {
                Ok(meta) => meta,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(source) => {
                    let path = path.clone();
                    return Err(OpenError::Folder { path, source });
                }
            };
            if !meta.is_dir() {
                return Err(OpenError::Folder { path: path.clone(), source: io::ErrorKind::NotADirectory.into() });
            }
            if !self.allow_shared
                && let Some(why) = trust::distrust(&meta)
            {
                let path = path.clone();
                return Err(OpenError::Untrusted { path, why });
            }
        }
        match trust::distrust_above(root) {
            Some(why) if !self.allow_shared => Err(OpenError::Untrusted { path: root.clone(), why }),
            _ => Ok(()),
        }
    }

    /// Makes what is missing. Called again when the folder was removed while open.
    pub(crate) fn create(&self) -> io::Result<()> {
        trust::create_private(&self.places.entries, self.allow_shared)?;
        // Without these two there are no locks and nothing is moved aside; the vault works all the same.
        for path in [&self.places.locks, &self.places.quarantine] {
            if let Err(error) = trust::create_private(path, self.allow_shared) {
                tracing::debug!(path = %path.display(), %error, "could not make a folder of the vault");
            }
        }
        // Backup tools skip folders with this file. Its absence costs nothing, so failing to write it is no error.
        let tag = self.places.root.join("CACHEDIR.TAG");
        if !tag.exists()
            && let Err(error) = fs::write(&tag, CACHEDIR_TAG)
        {
            tracing::debug!(path = %tag.display(), %error, "could not write the cache tag");
        }
        Ok(())
    }
}

const CACHEDIR_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
# This folder holds what qkvault can make again: https://bford.info/cachedir/\n";
