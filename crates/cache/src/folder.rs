//! One folder of entries: opened with its trust checked, read without locks, written by rename.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::SystemTime;

use crate::format::{MAX_HEADER, MAX_PAYLOAD, decode};
use crate::paths::{Places, TEMP_PREFIX, entry_name};
use crate::{Entry, Header, Key, OpenError, Rejection, StoreError, trust};

/// One folder with the shape of a vault.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) places: Places,
    allow_shared: bool,
    durable: bool,
}

/// What reading a key's file came to.
#[derive(Debug)]
pub(crate) enum Loaded {
    /// No file.
    Absent,
    /// A good entry, its header, and the open file, to be stamped as used.
    Good(Header, Entry, File),
    /// A file that is not served.
    Bad(Rejection),
}

impl Folder {
    /// A folder to read and write: made if missing, refused if others can write to it.
    pub(crate) fn open_writable(
        root: &Path,
        allow_shared: bool,
        durable: bool,
    ) -> Result<Self, OpenError> {
        let folder = Self::open_read_only(root, allow_shared, durable)?;
        folder.create().map_err(|source| OpenError::Folder {
            path: root.to_owned(),
            source,
        })?;
        // What was just made may lie under a folder that is open to all.
        folder.check()?;
        Ok(folder)
    }

    /// A folder to read, which may not be there yet.
    pub(crate) fn open_read_only(
        root: &Path,
        allow_shared: bool,
        durable: bool,
    ) -> Result<Self, OpenError> {
        // A relative path would change its meaning when the process changes its folder.
        let root = std::path::absolute(root).map_err(|source| OpenError::Folder {
            path: root.to_owned(),
            source,
        })?;
        let folder = Folder {
            places: Places::new(root),
            allow_shared,
            durable,
        };
        folder.check()?;
        Ok(folder)
    }

    fn check(&self) -> Result<(), OpenError> {
        let Places {
            root,
            vault,
            version,
            entries,
            locks: _,
            quarantine: _,
        } = &self.places;
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
                return Err(OpenError::Folder {
                    path: path.clone(),
                    source: io::ErrorKind::NotADirectory.into(),
                });
            }
            if !self.allow_shared
                && let Some(why) = trust::distrust(&meta)
            {
                let path = path.clone();
                return Err(OpenError::Untrusted { path, why });
            }
        }
        match trust::distrust_above(root) {
            Some(why) if !self.allow_shared => Err(OpenError::Untrusted {
                path: root.clone(),
                why,
            }),
            _ => Ok(()),
        }
    }

    /// Makes what is missing. Called again when the folder was removed while open.
    fn create(&self) -> io::Result<()> {
        for path in [
            &self.places.entries,
            &self.places.locks,
            &self.places.quarantine,
        ] {
            trust::create_private(path, self.allow_shared)?;
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

    /// Reads the entry of a key. Never an error: what cannot be served is told as a rejection.
    pub(crate) fn load(&self, key: &Key) -> Loaded {
        let path = self.places.entry(key);
        let file = match open_for_reading(&path) {
            Ok(file) => file,
            Err(error) if is_absence(&error) => return Loaded::Absent,
            Err(error) => return Loaded::Bad(unreadable(&error)),
        };
        match self.read(&path, &file) {
            Ok(bytes) => match decode(&bytes, Some(key)) {
                Ok((header, entry)) => Loaded::Good(header, entry, file),
                Err(rejection) => Loaded::Bad(rejection),
            },
            Err(rejection) => Loaded::Bad(rejection),
        }
    }

    /// The bytes of an opened entry file, within the limit of the format.
    pub(crate) fn read(&self, path: &Path, file: &File) -> Result<Vec<u8>, Rejection> {
        let meta = file.metadata().map_err(|error| unreadable(&error))?;
        if !meta.is_file() {
            let detail = "it is not a regular file".to_owned();
            return Err(Rejection::Unreadable { detail });
        }
        self.check_entry(path, &meta)?;
        let limit = MAX_HEADER as u64 + MAX_PAYLOAD;
        if meta.len() > limit {
            return Err(Rejection::PayloadTooLarge {
                declared: meta.len(),
                limit,
            });
        }
        let mut bytes = Vec::with_capacity(meta.len() as usize + 1);
        // One byte past the limit shows a file that grew meanwhile without reading on for ever.
        file.take(limit + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| unreadable(&error))?;
        Ok(bytes)
    }

    fn check_entry(&self, path: &Path, meta: &fs::Metadata) -> Result<(), Rejection> {
        if self.allow_shared {
            return Ok(());
        }
        let untrusted = |what: &str, why: String| Rejection::Untrusted {
            detail: format!("{what}: {why}"),
        };
        if let Some(why) = trust::distrust(meta) {
            return Err(untrusted("the entry file", why));
        }
        let shard = path.parent().unwrap_or(path);
        let meta = fs::symlink_metadata(shard).map_err(|error| unreadable(&error))?;
        if !meta.is_dir() {
            return Err(untrusted("its folder", "it is a link".to_owned()));
        }
        match trust::distrust(&meta) {
            Some(why) => Err(untrusted("its folder", why)),
            None => Ok(()),
        }
    }

    /// Stores the bytes of an entry under its key: written beside it, synced, renamed over it.
    pub(crate) fn store(&self, key: &Key, bytes: &[u8]) -> Result<(), StoreError> {
        let shard = self.places.shard(key);
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
                // Other users must be able to read what this one writes, as far as the umask lets them.
                use std::os::unix::fs::PermissionsExt;
                builder.permissions(fs::Permissions::from_mode(0o666));
            }
            builder.tempfile_in(&shard)
        };
        let mut file = match temp() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.create()
                    .and_then(|()| trust::create_private(&shard, self.allow_shared))
                    .map_err(|error| io("make the folder", &shard, error))?;
                temp()
            }
            other => other,
        }
        .map_err(|error| io("make a file in", &shard, error))?;
        self.check_shard(&shard)?;
        file.write_all(bytes)
            .map_err(|error| io("write", file.path(), error))?;
        if self.durable {
            file.as_file()
                .sync_all()
                .map_err(|error| io("sync", file.path(), error))?;
        }
        let path = shard.join(entry_name(key));
        match file.persist(&path) {
            Ok(_) => Ok(()),
            Err(error) => Err(io("rename a file to", &path, error.error)),
        }
    }

    fn check_shard(&self, shard: &Path) -> Result<(), StoreError> {
        let untrusted = |why: String| StoreError::Untrusted {
            path: shard.to_owned(),
            why,
        };
        match fs::symlink_metadata(shard) {
            Ok(meta) if !meta.is_dir() => Err(untrusted("it is a link".to_owned())),
            Ok(meta) if !self.allow_shared => match trust::distrust(&meta) {
                Some(why) => Err(untrusted(why)),
                None => Ok(()),
            },
            // If it vanished, the rename will tell.
            _ => Ok(()),
        }
    }

    /// Stamps an entry as used now. A stamp that cannot be set only makes the entry look older than it is.
    pub(crate) fn stamp(&self, file: &File, now: SystemTime) {
        if let Err(error) = file.set_modified(now) {
            tracing::debug!(%error, "could not stamp an entry as used");
        }
    }
}

/// Opens without waiting for the other end, should the file be a pipe.
fn open_for_reading(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    }
    options.open(path)
}

fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        // A folder that is gone, or a file where a folder should be, holds no entry either way.
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn unreadable(error: &io::Error) -> Rejection {
    Rejection::Unreadable {
        detail: error.to_string(),
    }
}

const CACHEDIR_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
# This folder holds what qkvault can make again: https://bford.info/cachedir/\n";
