//! Errors of writing and reading packs. The checks run in the order of the variants.

use std::io;

use crate::{Key, Rejection, StoreError};

/// Why packing or unpacking stopped. Unpacking that stops has stored nothing, except with [`PackError::Store`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// The stream could not be read or written.
    #[error("could not {action}: {source}; {}", crate::error::advice(source))]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The stream does not start with the magic bytes of a pack.
    #[error(
        "this is not a pack, which `qkvault pack FILE` writes: it starts with {:?}",
        String::from_utf8_lossy(found)
    )]
    Magic {
        /// The first bytes.
        found: Vec<u8>,
    },
    /// The pack has another version of the format.
    #[error(
        "the pack has format {found}, and this qkvault reads format {expected}: pack again with this version, which \
         never looks up the keys of another format"
    )]
    Version {
        /// Version of the pack.
        found: u16,
        /// Version that this library reads.
        expected: u16,
    },
    /// The header does not match its checksum.
    #[error("the header of the pack does not match its checksum: fetch the pack again")]
    HeaderChecksum,
    /// The header has flags that this library does not know.
    #[error("flags {found:#06x} ask for features that this library does not have")]
    Flags {
        /// The flags.
        found: u16,
    },
    /// The pack is sealed and no key was given.
    #[error("the pack is sealed: give the seal's secret to check it (`qkvault unpack --seal FILE`)")]
    SealKeyNeeded,
    /// A key was given and the pack has no seal.
    #[error(
        "the pack is not sealed, so nothing shows that it comes from a holder of the secret; have it packed again with \
         `qkvault pack --seal FILE`"
    )]
    NotSealed,
    /// A seal is required, and the pack has none.
    #[error(
        "the pack is not sealed, and unsealed packs are refused here: whoever can make one can run code on the GPU. Have \
         it packed again with `qkvault pack --seal FILE`, and give the same secret to `qkvault unpack --seal FILE`"
    )]
    SealRequired,
    /// The header says that the pack is not sealed, and has the bytes of a seal.
    #[error(
        "the pack has the bytes of a seal and is marked as not sealed: it was changed after it was sealed; fetch it again"
    )]
    SealWithoutFlag,
    /// The seal was made with another key, or for other bytes.
    #[error("the seal does not match: the pack was changed, or sealed with another secret")]
    Seal,
    /// A declared amount exceeds the limit.
    #[error("the pack declares {declared} {what}, the limit is {limit}; raise the limit if you trust the pack")]
    TooLarge {
        /// The thing that is counted.
        what: &'static str,
        /// The declared amount.
        declared: u64,
        /// The largest amount that is allowed.
        limit: u64,
    },
    /// The stream ends too early.
    #[error("the pack ends within its {what}: {expected} bytes declared, {found} there; fetch it again")]
    Truncated {
        /// The part in which the stream ends.
        what: &'static str,
        /// Bytes declared.
        expected: u64,
        /// Bytes present.
        found: u64,
    },
    /// The manifest does not match its checksum.
    #[error("the manifest does not match its checksum: fetch the pack again")]
    ManifestChecksum,
    /// The manifest contradicts itself or the header.
    #[error("the manifest is wrong at entry {at}: {detail}")]
    Manifest {
        /// Number of the entry, from 0.
        at: usize,
        /// What is wrong.
        detail: String,
    },
    /// The body does not match its checksum.
    #[error("the body does not match its checksum: fetch the pack again")]
    BodyChecksum,
    /// Bytes follow the pack.
    #[error("bytes follow the end of the pack")]
    Trailing,
    /// The body does not decompress to what the manifest declares.
    #[error("the body does not decompress to what the manifest declares: {detail}")]
    Body {
        /// What is wrong.
        detail: String,
    },
    /// An entry in the body is bad.
    #[error("the entry {key} in the pack is bad: {rejection}")]
    Entry {
        /// Its key.
        key: Key,
        /// Why the vault would reject it.
        rejection: Rejection,
    },
    /// An entry in the body differs from the one that the manifest declares.
    #[error("the entry {key} in the pack is not what the manifest says: {field} differs")]
    EntryDiffers {
        /// Its key.
        key: Key,
        /// The field that differs.
        field: &'static str,
    },
    /// More entries are selected than a pack can hold.
    #[error("{found} entries are selected, a pack holds at most {limit}: select fewer and make several packs")]
    TooMany {
        /// Entries selected.
        found: usize,
        /// The most entries that a pack holds.
        limit: usize,
    },
    /// The pack is good, and the vault could not store it. Entries stored before this one are good and stay.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl PackError {
    pub(crate) fn io(action: &'static str) -> impl FnOnce(io::Error) -> PackError {
        move |source| PackError::Io { action, source }
    }
}
