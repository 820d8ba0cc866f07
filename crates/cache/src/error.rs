//! What can go wrong on the way in and out, apart from bad bytes (those are rejections, not errors).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::{EncodeError, Key, OptionError};

/// Why a vault could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A variable of the environment cannot be understood.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The folder is not there and could not be made, or cannot be looked at.
    #[error("the vault folder {} cannot be used: {source}; {}", path.display(), advice(source))]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The remote store cannot be set up. Whether it answers is not asked here.
    #[error("the remote store {location} cannot be used: {detail}; correct or unset QKVAULT_REMOTE and its companions")]
    Remote {
        /// Where it should be.
        location: String,
        /// What is wrong.
        detail: String,
    },
    /// Others can write to the folder.
    #[error(
        "the vault folder {} is not trusted: {why}. A stored plan runs on the GPU, so whoever can write there can run \
         code. Use another folder (QKVAULT_CACHE_DIR), make this one private (chown it to this user, chmod go-w), or, if you trust everyone \
         who can write to it, allow it with QKVAULT_CACHE_ALLOW_SHARED=1",
        path.display()
    )]
    Untrusted {
        /// The folder.
        path: PathBuf,
        /// Who can write to it.
        why: String,
    },
}

/// Why an entry was not stored. Entries that were there before are unharmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The entry does not fit the format.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The vault may not write.
    #[error(
        "the vault is open with mode `{mode}` and stores nothing; set QKVAULT_CACHE=rw or open it to read and write"
    )]
    NotWritable {
        /// `off` or `ro`.
        mode: &'static str,
    },
    /// The folder could not be written to.
    #[error("could not {action} {}: {source}; {}", path.display(), advice(source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A folder inside the vault is not what it was made as.
    #[error("{} is not trusted: {why}; remove it, or the whole vault folder", path.display())]
    Untrusted {
        /// The folder.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

/// Why there is no entry after [`Vault::get_or_build`](crate::Vault::get_or_build).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error<E> {
    /// The build failed, here or in the thread this one waited for. The next call tries again.
    #[error("the build failed: {0}")]
    Build(Arc<E>),
    /// The build panicked in the thread this one waited for. The next call tries again.
    #[error(
        "the build of {key} panicked in another thread; its panic message is on that thread; calling again builds again"
    )]
    Panicked {
        /// The key.
        key: Key,
    },
    /// The builder asked for the key it is building, which could only wait for itself.
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

/// What to do about an I/O error of the vault's folder.
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
