//! Errors of opening, storing and building. Bad bytes on disk are rejections, not errors.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::{Address, EncodeError, Key, OptionError};

/// Why a vault could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A variable of the environment cannot be parsed.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The folder cannot be created or read.
    #[error("the vault folder {} cannot be used: {source}; {}", path.display(), advice(source))]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The remote store cannot be set up. Opening a vault does not contact it.
    #[error("the remote store {location} cannot be used: {detail}; correct or unset QKVAULT_REMOTE and its companions")]
    Remote {
        /// Its address or folder.
        location: Address,
        /// What is wrong.
        detail: String,
    },
    /// Other users can write to the folder.
    #[error(
        "the vault folder {} is not trusted: {why}. A stored plan runs on the GPU, so whoever can write there can run \
         code. Use another folder (QKVAULT_CACHE_DIR), make this one private (chown it to this user, chmod go-w), or, \
         if you trust everyone who can write to it, allow it with QKVAULT_CACHE_ALLOW_SHARED=1",
        path.display()
    )]
    Untrusted {
        /// The folder.
        path: PathBuf,
        /// Who can write to it, and its mode.
        why: String,
    },
}

/// Why an entry was not stored. The entries that are stored stay as they are.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The entry does not fit the format.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The vault is open with a mode that does not write.
    #[error(
        "the vault is open with mode `{mode}` and stores nothing; set QKVAULT_CACHE=rw or open it to read and write"
    )]
    NotWritable {
        /// `off` or `ro`.
        mode: &'static str,
    },
    /// A file or folder of the vault could not be written.
    #[error("could not {action} {}: {source}; {}", path.display(), advice(source))]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A folder inside the vault is a link, or other users can write to it.
    #[error("{} is not trusted: {why}; remove it, or the whole vault folder", path.display())]
    Untrusted {
        /// The folder.
        path: PathBuf,
        /// Who can write to it, or that it is a link.
        why: String,
    },
}

/// Why [`Vault::get_or_build`](crate::Vault::get_or_build) returned no entry.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error<E> {
    /// The build failed, in this thread or in the one that this thread waited for. The next call builds again.
    #[error("the build failed: {0}")]
    Build(Arc<E>),
    /// The build panicked in the thread that this one waited for. The next call builds again.
    #[error(
        "the build of {key} panicked in another thread; its panic message is on that thread; calling again builds again"
    )]
    Panicked {
        /// The key.
        key: Key,
    },
    /// The builder asked the vault for the key that it builds, and would have waited for itself.
    #[error("the builder of {key} asked for the same key: a build must not need its own result")]
    Reentrant {
        /// The key.
        key: Key,
    },
}

impl<E> Clone for Error<E> {
    fn clone(&self) -> Self {
        match self {
            Error::Build(error) => Error::Build(Arc::clone(error)),
            Error::Panicked { key } => Error::Panicked { key: *key },
            Error::Reentrant { key } => Error::Reentrant { key: *key },
        }
    }
}

/// The advice at the end of an I/O error of the vault's folder.
pub(crate) fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "free some space, run `cache gc`, or point QKVAULT_CACHE_DIR at a larger disk"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "make it writable, point QKVAULT_CACHE_DIR at a folder that is, or open it with QKVAULT_CACHE=ro"
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "something else has that name: remove it or point QKVAULT_CACHE_DIR elsewhere"
        }
        _ => "check the disk, or point QKVAULT_CACHE_DIR elsewhere",
    }
}
