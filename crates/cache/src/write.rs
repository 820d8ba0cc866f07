//! Writing entries into a folder: a temporary file beside the target, synced and renamed over it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

use crate::folder::Folder;
use crate::paths::{TEMP_PREFIX, entry_name};
use crate::{Key, StoreError, trust};

impl Folder {
    /// Stores the bytes of an entry under its key: writes a temporary file, syncs it, and renames it.
    pub(crate) fn store(&self, key: &Key, bytes: &[u8]) -> Result<(), StoreError> {
        let shard = &self.layout.shard(key);
        let io = |action: &'static str, path: &Path, source: io::Error| StoreError::Io {
            action,
            path: path.to_owned(),
            source,
        };
        let temp = || {
            let mut builder = tempfile::Builder::new();
            builder.prefix(TEMP_PREFIX);
            #[cfg(unix)]
            if self.allow_shared {
                // Other users may read the file as far as the umask allows.
                use std::os::unix::fs::PermissionsExt;
                builder.permissions(fs::Permissions::from_mode(0o666));
            }
            builder.tempfile_in(shard)
        };
        let mut file = match temp() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.create()
                    .and_then(|()| trust::create_private(shard, self.allow_shared))
                    .map_err(|error| io("make the folder", shard, error))?;
                temp()
            }
            other => other,
        }
        .map_err(|error| io("make a file in", shard, error))?;
        self.check_shard(shard)?;
        file.write_all(bytes).map_err(|error| io("write", file.path(), error))?;
        if self.durable {
            file.as_file().sync_all().map_err(|error| io("sync", file.path(), error))?;
        }
        let path = shard.join(entry_name(key));
        match file.persist(&path) {
            Ok(_) => Ok(()),
            Err(error) => Err(io("rename a file to", &path, error.error)),
        }
    }

    fn check_shard(&self, shard: &Path) -> Result<(), StoreError> {
        let untrusted = |why: String| StoreError::Untrusted { path: shard.to_owned(), why };
        match fs::symlink_metadata(shard) {
            Ok(meta) if !meta.is_dir() => Err(untrusted("it is a link".to_owned())),
            Ok(meta) if !self.allow_shared => match trust::distrust(&meta) {
                Some(why) => Err(untrusted(why)),
                None => Ok(()),
            },
            // If the folder vanished, the rename fails.
            _ => Ok(()),
        }
    }

    /// Stamps an entry as used now. If that fails, the entry looks older than it is.
    pub(crate) fn stamp(&self, file: &File, now: SystemTime) {
        if let Err(error) = file.set_modified(now) {
            tracing::debug!(%error, "could not stamp an entry as used");
        }
    }
}
