//! One folder of entries: opening it, checking who can write to it, and creating what is missing.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use crate::paths::VaultLayout;
use crate::{OpenError, trust};

/// One folder with the shape of a vault.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) layout: VaultLayout,
    pub(crate) allow_shared: bool,
    pub(crate) durable: bool,
}

impl Folder {
    /// Opens a folder to read and write. Creates it if it is missing, and refuses it if others can write to it.
    pub(crate) fn open_writable(root: &Path, allow_shared: bool, durable: bool) -> Result<Self, OpenError> {
        let folder = Self::open_read_only(root, allow_shared, durable)?;
        folder.create().map_err(|source| OpenError::Folder { path: root.to_owned(), source })?;
        // The new folder may lie under one that is open to all.
        folder.check()?;
        Ok(folder)
    }

    /// Opens a folder to read; it need not exist yet.
    pub(crate) fn open_read_only(root: &Path, allow_shared: bool, durable: bool) -> Result<Self, OpenError> {
        // A relative path changes its meaning when the process changes its folder.
        let root = std::path::absolute(root).map_err(|source| OpenError::Folder { path: root.to_owned(), source })?;
        let folder = Folder { layout: VaultLayout::new(root), allow_shared, durable };
        folder.check()?;
        Ok(folder)
    }

    fn check(&self) -> Result<(), OpenError> {
        let VaultLayout { root, vault, version, entries, locks: _, quarantine: _ } = &self.layout;
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

    /// Creates what is missing. A write calls it again when the folder was removed while the vault is open.
    pub(crate) fn create(&self) -> io::Result<()> {
        trust::create_private(&self.layout.entries, self.allow_shared)?;
        // The vault works without these two, but then takes no locks and keeps no rejected files.
        for path in [&self.layout.locks, &self.layout.quarantine] {
            if let Err(error) = trust::create_private(path, self.allow_shared) {
                tracing::debug!(path = %path.display(), %error, "could not make a folder of the vault");
            }
        }
        // Backup tools skip folders with this file. The vault works without it, so a failure is no error.
        let tag = self.layout.root.join("CACHEDIR.TAG");
        // A new file: nothing is written through a link of that name.
        if let Err(error) = File::create_new(&tag).and_then(|mut file| file.write_all(CACHEDIR_TAG.as_bytes()))
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            tracing::debug!(path = %tag.display(), %error, "could not write the cache tag");
        }
        Ok(())
    }
}

const CACHEDIR_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
# This folder holds what qkvault can make again: https://bford.info/cachedir/\n";
