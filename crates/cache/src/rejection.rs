//! Why stored bytes are rejected: one cause per check, in the order of the checks.

use crate::{Key, RejectionCause};

/// Why an entry was rejected. The variants are in the order of the checks; the first check that fails is reported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// The file could not be read. Its content is unknown, so it stays in its place.
    #[error("the file could not be read: {detail}")]
    Unreadable {
        /// The error of the operating system.
        detail: String,
    },
    /// Others can write to the file or its folder, or another user owns it.
    #[error("{detail}; fix the permissions, or allow shared folders if you trust everyone who can write there")]
    Untrusted {
        /// The file or folder, and who can write to it.
        detail: String,
    },
    /// The entry comes from a remote store and lacks the seal of this vault's key.
    #[error("it does not carry the seal of this vault's key")]
    Seal,
    /// The file does not start with the magic bytes of an entry.
    #[error("it does not start with the mark of an entry, but with {found:02x?}")]
    Magic {
        /// The first bytes, at most eight.
        found: Vec<u8>,
    },
    /// The entry has another version of the format.
    #[error("format version {found}, this library reads version {expected}")]
    FormatVersion {
        /// Version of the entry.
        found: u16,
        /// Version that this library reads.
        expected: u16,
    },
    /// The header is truncated, or declares a length that no header has.
    #[error("a header of {declared} bytes is declared or needed, {present} bytes are there")]
    HeaderLength {
        /// Bytes declared, or the least that a header has.
        declared: usize,
        /// Bytes that the file has.
        present: usize,
    },
    /// The header does not match its checksum.
    #[error("the header does not match its checksum")]
    HeaderChecksum,
    /// The header has flags that this library does not know.
    #[error("flags {found:#06x} ask for features that this library does not have")]
    Flags {
        /// The flags.
        found: u16,
    },
    /// The entry belongs to another key.
    #[error("the entry belongs to key {found}, not to {expected}")]
    KeyMismatch {
        /// The key asked for.
        expected: Key,
        /// The key in the header.
        found: Key,
    },
    /// The kind is neither plan nor refusal.
    #[error("entry kind {found} is unknown")]
    Kind {
        /// The byte of the kind.
        found: u8,
    },
    /// The lengths of the fields do not add up to the length of the header.
    #[error("the fields take {fields} bytes, the header has {header}")]
    FieldLengths {
        /// Length of the header, in bytes.
        header: usize,
        /// Sum of the lengths of the fields, in bytes.
        fields: usize,
    },
    /// A label is not UTF-8.
    #[error("the label `{field}` is not UTF-8")]
    Label {
        /// Name of the label.
        field: &'static str,
    },
    /// The compression is unknown.
    #[error("codec {found} is unknown")]
    Codec {
        /// The number of the compression.
        found: u16,
    },
    /// The declared payload exceeds the limit.
    #[error("a payload of {declared} bytes is declared, the limit is {limit}")]
    PayloadTooLarge {
        /// Bytes declared.
        declared: u64,
        /// The limit.
        limit: u64,
    },
    /// The file is truncated, or longer than the entry.
    #[error("the file should have {expected} bytes and has {found}")]
    FileLength {
        /// Length by the header, in bytes.
        expected: u64,
        /// Length of the file, in bytes.
        found: u64,
    },
    /// The stored payload does not match its checksum.
    #[error("the stored payload does not match its checksum")]
    StoredChecksum,
    /// The payload does not decompress.
    #[error("the payload does not decompress: {detail}")]
    Decompress {
        /// The error of zstd.
        detail: String,
    },
    /// The payload has another length than the header declares.
    #[error("a payload of {declared} bytes is declared, {found} are there")]
    PayloadLength {
        /// Bytes declared.
        declared: u64,
        /// Bytes present.
        found: u64,
    },
    /// The decompressed payload does not match its checksum.
    #[error("the payload does not match its checksum")]
    PayloadChecksum,
    /// The entry is whole, and whoever asked for it found that it is not what its key promises.
    #[error("{detail}")]
    Discredited {
        /// What is wrong.
        detail: String,
    },
}

impl Rejection {
    /// The name of the cause, without its facts.
    #[must_use]
    pub fn cause(&self) -> RejectionCause {
        match self {
            Rejection::Unreadable { .. } => RejectionCause::Unreadable,
            Rejection::Untrusted { .. } => RejectionCause::Untrusted,
            Rejection::Seal => RejectionCause::Seal,
            Rejection::Magic { .. } => RejectionCause::Magic,
            Rejection::FormatVersion { .. } => RejectionCause::FormatVersion,
            Rejection::HeaderLength { .. } => RejectionCause::HeaderLength,
            Rejection::HeaderChecksum => RejectionCause::HeaderChecksum,
            Rejection::Flags { .. } => RejectionCause::Flags,
            Rejection::KeyMismatch { .. } => RejectionCause::KeyMismatch,
            Rejection::Kind { .. } => RejectionCause::Kind,
            Rejection::FieldLengths { .. } => RejectionCause::FieldLengths,
            Rejection::Label { .. } => RejectionCause::Label,
            Rejection::Codec { .. } => RejectionCause::Codec,
            Rejection::PayloadTooLarge { .. } => RejectionCause::PayloadTooLarge,
            Rejection::FileLength { .. } => RejectionCause::FileLength,
            Rejection::StoredChecksum => RejectionCause::StoredChecksum,
            Rejection::Decompress { .. } => RejectionCause::Decompress,
            Rejection::PayloadLength { .. } => RejectionCause::PayloadLength,
            Rejection::PayloadChecksum => RejectionCause::PayloadChecksum,
            Rejection::Discredited { .. } => RejectionCause::Discredited,
        }
    }

    /// Whether the bytes themselves are bad, so that the file goes to quarantine. A file that could not be read or is
    /// not trusted may be a good entry and stays.
    pub(crate) fn is_about_content(&self) -> bool {
        !matches!(self, Rejection::Unreadable { .. } | Rejection::Untrusted { .. })
    }
}
