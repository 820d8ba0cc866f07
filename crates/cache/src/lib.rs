//! The vault: bytes under a 32-byte key, on disk and in memory.
//!
//! The vault keeps compiled plans and refusals, but this crate does not know what a plan is: it uses no cuDNN and no
//! graph. It guarantees:
//!
//! * Reading is total. Any bytes on disk give an entry, "absent", or "rejected" with the cause; never a wrong entry, an
//!   error or a panic. Every entry holds its key and checksums of its header and of its payload.
//! * Writing is by rename. A reader sees the old entry, the new one or none, never a part; readers take no lock.
//! * One thread per key and process builds; the others wait. Across processes a lock saves double work and nothing
//!   depends on it.
//! * Memory and disk are bounded, and everything is counted.
//! * A plan is code for the GPU, so the vault refuses folders that others can write to unless you allow them.
//!
//! ```
//! use qkvault_cache::{Entry, EntryKind, Key, Lookup, Source, Vault, VaultOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let vault = Vault::open(VaultOptions::in_folder(folder.path()))?;
//! let key = Key([7; 32]);
//! let build = || {
//!     Ok::<_, std::io::Error>(Entry {
//!         kind: EntryKind::Plan,
//!         target: "sm_90".into(),
//!         what: "prefill".into(),
//!         library: "9.27.0".into(),
//!         meta: Vec::new(),
//!         payload: b"bytes of the library".to_vec(),
//!     })
//! };
//! assert_eq!(vault.get_or_build(&key, build)?.source, Source::Built);
//! assert_eq!(vault.get_or_build(&key, build)?.source, Source::Memory);
//! assert!(matches!(vault.get(&key), Lookup::Hit(_)));
//! # Ok(())
//! # }
//! ```
//!
//! `docs/vault.md` is the manual; `docs/vault-format.md` describes the file format byte by byte.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc, clippy::must_use_candidate)]

mod auto_gc;
mod cause;
mod crew;
mod entry;
mod env;
mod error;
mod evict;
mod flight;
mod folder;
mod format;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzz;
mod gc;
#[cfg(test)]
mod golden;
mod key;
mod limits;
mod list;
mod lock;
mod lookup;
mod memory;
mod obtain;
mod older;
mod options;
mod pack;
mod paths;
mod quarantine;
mod read;
mod rejection;
mod remote;
mod scan;
mod seen;
mod settings;
mod stats;
mod sync;
mod trust;
mod vault;
mod verify;
mod write;

pub use cause::RejectionCause;
pub use entry::{Entry, EntryKind};
pub use env::{FolderSource, OptionError, RemoteSettings, parse_bytes};
pub use error::{Error, OpenError, StoreError};
pub use format::{EncodeError, Header, MAX_PAYLOAD};
pub use gc::GcReport;
pub use key::{Key, ParseKeyError};
pub use limits::{DiskLimits, Mode};
pub use list::{Listed, Usage};
pub use lookup::Lookup;
pub use obtain::Obtained;
pub use older::Older;
pub use options::VaultOptions;
pub use pack::{
    ManifestEntry, PackError, PackLimits, PackManifest, PackOptions, PackReport, SealKey, SecretError, UnpackOptions,
    UnpackReport, WeakSecret, verify_pack,
};
pub use paths::STORE_FORMAT;
pub use rejection::Rejection;
pub use remote::{
    Address, FolderRemote, MAX_REMOTE_BYTES, Remote, RemoteError, RemoteOptions, remote_name, without_secrets,
};
#[cfg(feature = "http")]
pub use remote::{BadLocation, HttpRemote};
#[cfg(feature = "object-store")]
pub use remote::{ObjectStoreError, ObjectStoreRemote};
pub use settings::Settings;
pub use stats::Stats;
pub use vault::{Source, Vault};
pub use verify::{Depth, VerifyReport};
