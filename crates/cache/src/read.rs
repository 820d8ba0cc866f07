//! Reading entries from a folder, without locks, without errors, and without trust in the files.

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

use crate::folder::Folder;
use crate::format::{MAX_HEADER, MAX_PAYLOAD, decode_stored};
use crate::{Entry, Key, Rejection, trust};

/// The result of reading the file of a key.
#[derive(Debug)]
pub(crate) enum ReadEntry {
    /// No file.
    Absent,
    /// A good file.
    Good {
        /// The entry.
        entry: Entry,
        /// The open file, which the caller stamps as used.
        file: File,
        /// Bytes of the file.
        bytes: u64,
    },
    /// A rejected file.
    Bad(Rejection),
}

/// Bytes of memory that a thread keeps for the files that it reads. Most entries have 10 to 200 KB.
const KEPT_BUFFER: usize = 1 << 20;

thread_local! {
    /// The bytes of the file that is read. Touching new memory takes longer than reading.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Folder {
    /// Reads the entry of a key.
    pub(crate) fn load(&self, key: &Key) -> ReadEntry {
        let path = self.layout.entry(key);
        let file = match open_for_reading(&path) {
            Ok(file) => file,
            Err(error) if is_absence(&error) => return ReadEntry::Absent,
            Err(error) => return ReadEntry::Bad(unreadable(&error)),
        };
        let decoded = BUFFER.with_borrow_mut(|buffer| {
            self.read_into(&path, &file, buffer)?;
            let decoded = decode_stored(buffer, Some(key));
            if buffer.capacity() > KEPT_BUFFER {
                *buffer = Vec::new();
            }
            decoded
        });
        match decoded {
            Ok((header, entry)) => ReadEntry::Good { entry, file, bytes: header.file_len() },
            Err(rejection) => ReadEntry::Bad(rejection),
        }
    }

    /// Reads the bytes of an entry file.
    pub(crate) fn read_path(&self, path: &Path) -> Result<Vec<u8>, Rejection> {
        let file = open_for_reading(path).map_err(|error| unreadable(&error))?;
        self.read(path, &file)
    }

    /// Reads the bytes of an open entry file, up to the limit of the format.
    fn read(&self, path: &Path, file: &File) -> Result<Vec<u8>, Rejection> {
        let mut bytes = Vec::new();
        self.read_into(path, file, &mut bytes)?;
        Ok(bytes)
    }

    fn read_into(&self, path: &Path, file: &File, bytes: &mut Vec<u8>) -> Result<(), Rejection> {
        let meta = file.metadata().map_err(|error| unreadable(&error))?;
        if !meta.is_file() {
            let detail = "it is not a regular file".to_owned();
            return Err(Rejection::Unreadable { detail });
        }
        self.check_entry(path, &meta)?;
        let limit = MAX_HEADER as u64 + MAX_PAYLOAD;
        if meta.len() > limit {
            return Err(Rejection::PayloadTooLarge { declared: meta.len(), limit });
        }
        bytes.clear();
        bytes.reserve(meta.len() as usize + 1);
        // One byte past the limit is enough to notice a file that grew meanwhile.
        file.take(limit + 1).read_to_end(bytes).map_err(|error| unreadable(&error))?;
        Ok(())
    }

    pub(crate) fn check_entry(&self, path: &Path, meta: &fs::Metadata) -> Result<(), Rejection> {
        if self.allow_shared {
            return Ok(());
        }
        let untrusted = |what: &str, why: String| Rejection::Untrusted { detail: format!("{what}: {why}") };
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
}

/// Opens a file without waiting for the other end of a pipe and without following a link.
pub(crate) fn open_for_reading(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;

        use rustix::fs::OFlags;
        options.custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32);
    }
    options.open(path)
}

/// Opens or creates a file to write, keeping what is in it, without following a link.
pub(crate) fn write_without_following(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;

        use rustix::fs::OFlags;
        options.custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32);
    }
    options.open(path)
}

fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        // Neither a missing folder nor a file in its place holds an entry.
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

pub(crate) fn unreadable(error: &io::Error) -> Rejection {
    Rejection::Unreadable { detail: error.to_string() }
}
