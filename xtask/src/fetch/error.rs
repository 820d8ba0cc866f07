//! What can go wrong while fetching; each message is one paragraph that ends with what to do.

use std::io;
use std::path::{Path, PathBuf};

use qkvault_base::LibrarySet;
use thiserror::Error;

/// Why something could not be fetched.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// NVIDIA's licence was not accepted.
    #[error(
        "cuDNN and the libraries it needs are NVIDIA's and come under NVIDIA's licence ({url}), which has to be accepted before they are \
         fetched; read it, then accept it once with --accept-nvidia-license, with QKVAULT_ACCEPT_NVIDIA_LICENSE=1, or at the prompt on a \
         terminal",
        url = super::licence::URL
    )]
    Licence,
    /// The version is not one that is pinned.
    #[error(
        "cuDNN {wanted} ({set}) is not among the versions whose hashes are known ({}); ask for one of those, or use one that is installed \
         by QKVAULT_CUDNN_PATH",
        known.join(", ")
    )]
    UnknownVersion {
        /// What was asked for.
        wanted: String,
        /// Of which set.
        set: LibrarySet,
        /// What could have been asked for.
        known: Vec<String>,
    },
    /// The list of wheels is not valid.
    #[error("the list of wheels {} is not valid: {reason}", file.display())]
    Pins {
        /// The list.
        file: PathBuf,
        /// What is wrong in it.
        reason: String,
    },
    /// There are no wheels for this kind of machine.
    #[error(
        "cuDNN is fetched for Linux on x86-64 only, and this is {os} on {arch}; install cuDNN 9 another way and name it by \
         QKVAULT_CUDNN_PATH"
    )]
    Platform {
        /// The operating system.
        os: &'static str,
        /// The processor.
        arch: &'static str,
    },
    /// There is no pip.
    #[error(
        "wheels are fetched with pip, so that the index and proxy configured for it are used, and no pip could be started ({}); install \
         Python 3 with pip, or uv; or name an installed cuDNN by QKVAULT_CUDNN_PATH",
        tried.join("; ")
    )]
    NoPip {
        /// Every command tried, with why it did not do.
        tried: Vec<String>,
    },
    /// pip did not get the wheels.
    #[error(
        "`{command}` did not get {what}: {reason}; check the network, and the index and proxy that pip is configured with, then run this \
         again (what is complete is kept); without a network, copy {} from a machine that has it, or name an installed cuDNN by \
         QKVAULT_CUDNN_PATH",
        folder.display()
    )]
    Download {
        /// The command run.
        command: String,
        /// What was wanted.
        what: String,
        /// What pip said last.
        reason: String,
        /// The folder that would have been made.
        folder: PathBuf,
    },
    /// A file is not the one that was pinned.
    #[error(
        "{file} is not the file that is pinned: its SHA-256 should be {expected} and {found}; nothing of it was used. Either the index that pip is \
         configured with gives out another file, which should be looked into, or the pin in xtask/wheels.toml is wrong"
    )]
    WrongHash {
        /// The file.
        file: String,
        /// The pinned hash.
        expected: String,
        /// What was found, in words.
        found: String,
    },
    /// A file with the right hash cannot be unpacked.
    #[error("the wheel {file} cannot be unpacked: {reason}; nothing of it was used")]
    Wheel {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something could not be read or written.
    #[error("cannot {what} {}: {cause}; {}", path.display(), remedy(cause))]
    Io {
        /// The verb.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason, told in the message.
        cause: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: &'static str, path: &Path, cause: io::Error) -> Self {
        Self::Io { what, path: path.to_owned(), cause }
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space (a slim set takes up to 0.4 GB while it is fetched, a full one 3 GB), or set QKVAULT_CACHE_DIR to a folder on a \
             larger disk, then run this again"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "set QKVAULT_CACHE_DIR (or --dest) to a folder that can be written"
        }
        _ => "nothing half-done is left in use; run this again once that is put right",
    }
}
