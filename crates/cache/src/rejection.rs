//! Why stored bytes were not served: one cause per check, in the order of the checks.

use crate::{Cause, Key};

/// Why an entry was rejected. The variants stand in the order in which the checks run; the first that fails is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// The file could not be read at all. Nothing is known about its content, so it stays where it is.
    #[error("the file could not be read: {detail}")]
    Unreadable {
        /// What the system said.
        detail: String,
    },
    /// The file, or its folder, can be written by others, or belongs to another user.
    #[error("{detail}; fix the permissions, or allow shared folders if you trust everyone who can write there")]
    Untrusted {
        /// Which, and by whom.
        detail: String,
    },
    /// What came from a remote store does not carry the seal of this vault's key.
    #[error("it does not carry the seal of this vault's key")]
    Seal,
    /// It does not start like an entry.
    #[error("it does not start with the mark of an entry, but with {found:02x?}")]
    Magic {
        /// The first bytes, at most eight.
        found: Vec<u8>,
    },
    /// Another version of the format.
    #[error("format version {found}, this library reads version {expected}")]
    FormatVersion {
        /// Version found.
        found: u16,
        /// Version this library reads.
        expected: u16,
    },
    /// The header is cut off, or declares a length that no header has.
    #[error("a header of {declared} bytes is declared or needed, {present} bytes are there")]
    HeaderLength {
        /// Bytes declared, or the least a header has.
        declared: usize,
        /// Bytes of the file that were there to read.
        present: usize,
    },
    /// The header is not what was written.
    #[error("the header does not match its checksum")]
    HeaderChecksum,
    /// Features that this library does not know.
    #[error("flags {found:#06x} ask for features that this library does not have")]
    Flags {
        /// The flags.
        found: u16,
    },
    /// The entry was written under another key.
    #[error("the entry belongs to key {found}, not to {expected}")]
    KeyMismatch {
        /// The key asked for.
        expected: Key,
        /// The key in the header.
        found: Key,
    },
    /// Neither plan nor refusal.
    #[error("entry kind {found} is unknown")]
    Kind {
        /// The byte found.
        found: u8,
    },
    /// The fields do not fill the header.
    #[error("the fields take {fields} bytes, the header has {header}")]
    FieldLengths {
        /// Length of the header.
        header: usize,
        /// Length that the fields add up to.
        fields: usize,
    },
    /// A label that is not UTF-8.
    #[error("the label `{field}` is not UTF-8")]
    Label {
        /// Which label.
        field: &'static str,
    },
    /// An unknown compression.
    #[error("codec {found} is unknown")]
    Codec {
        /// The number found.
        found: u16,
    },
    /// A declared length beyond the limit.
    #[error("a payload of {declared} bytes is declared, the limit is {limit}")]
    PayloadTooLarge {
        /// Bytes declared.
        declared: u64,
        /// The limit.
        limit: u64,
    },
    /// Cut off, or followed by bytes that do not belong.
    #[error("the file should have {expected} bytes and has {found}")]
    FileLength {
        /// Length that the header tells.
        expected: u64,
        /// Length found.
        found: u64,
    },
    /// The stored bytes are not what was written.
    #[error("the stored payload does not match its checksum")]
    StoredChecksum,
    /// The stored bytes do not decompress.
    #[error("the payload does not decompress: {detail}")]
    Decompress {
        /// What zstd said.
        detail: String,
    },
    /// The payload has another length than declared.
    #[error("a payload of {declared} bytes is declared, {found} are there")]
    PayloadLength {
        /// Bytes declared.
        declared: u64,
        /// Bytes found.
        found: u64,
    },
    /// The payload is not what was written.
    #[error("the payload does not match its checksum")]
    PayloadChecksum,
}

impl Rejection {
    /// The cause without its facts.
    pub fn cause(&self) -> Cause {
        match self {
            Rejection::Unreadable { .. } => Cause::Unreadable,
            Rejection::Untrusted { .. } => Cause::Untrusted,
            Rejection::Seal => Cause::Seal,
            Rejection::Magic { .. } => Cause::Magic,
            Rejection::FormatVersion { .. } => Cause::FormatVersion,
            Rejection::HeaderLength { .. } => Cause::HeaderLength,
            Rejection::HeaderChecksum => Cause::HeaderChecksum,
            Rejection::Flags { .. } => Cause::Flags,
            Rejection::KeyMismatch { .. } => Cause::KeyMismatch,
            Rejection::Kind { .. } => Cause::Kind,
            Rejection::FieldLengths { .. } => Cause::FieldLengths,
            Rejection::Label { .. } => Cause::Label,
            Rejection::Codec { .. } => Cause::Codec,
            Rejection::PayloadTooLarge { .. } => Cause::PayloadTooLarge,
            Rejection::FileLength { .. } => Cause::FileLength,
            Rejection::StoredChecksum => Cause::StoredChecksum,
            Rejection::Decompress { .. } => Cause::Decompress,
            Rejection::PayloadLength { .. } => Cause::PayloadLength,
            Rejection::PayloadChecksum => Cause::PayloadChecksum,
        }
    }

    /// Whether the bytes themselves are bad, so that the file is moved aside. What could not be read, or is only not
    /// trusted, may be a good entry and stays.
    pub(crate) fn is_about_content(&self) -> bool {
        !matches!(self, Rejection::Unreadable { .. } | Rejection::Untrusted { .. })
    }
}
