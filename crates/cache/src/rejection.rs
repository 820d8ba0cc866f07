//! Why stored bytes were not served: one cause per check, in the order of the checks.

use std::fmt;

use crate::Key;

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
    #[error(
        "{detail}; fix the permissions, or allow shared folders if you trust everyone who can write there"
    )]
    Untrusted {
        /// Which, and by whom.
        detail: String,
    },
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
        /// The byte found.
        found: u8,
    },
    /// The payload lives partly in shared blobs, which this library does not read.
    #[error("the payload needs {count} shared blobs, which this library does not read")]
    SharedBlobs {
        /// How many.
        count: usize,
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

/// The name of a cause, without its facts: what counters and file names use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Cause {
    /// See [`Rejection::Unreadable`].
    Unreadable,
    /// See [`Rejection::Untrusted`].
    Untrusted,
    /// See [`Rejection::Magic`].
    Magic,
    /// See [`Rejection::FormatVersion`].
    FormatVersion,
    /// See [`Rejection::HeaderLength`].
    HeaderLength,
    /// See [`Rejection::HeaderChecksum`].
    HeaderChecksum,
    /// See [`Rejection::Flags`].
    Flags,
    /// See [`Rejection::KeyMismatch`].
    KeyMismatch,
    /// See [`Rejection::Kind`].
    Kind,
    /// See [`Rejection::FieldLengths`].
    FieldLengths,
    /// See [`Rejection::Label`].
    Label,
    /// See [`Rejection::Codec`].
    Codec,
    /// See [`Rejection::SharedBlobs`].
    SharedBlobs,
    /// See [`Rejection::PayloadTooLarge`].
    PayloadTooLarge,
    /// See [`Rejection::FileLength`].
    FileLength,
    /// See [`Rejection::StoredChecksum`].
    StoredChecksum,
    /// See [`Rejection::Decompress`].
    Decompress,
    /// See [`Rejection::PayloadLength`].
    PayloadLength,
    /// See [`Rejection::PayloadChecksum`].
    PayloadChecksum,
}

impl Cause {
    /// Every cause, in the order of the checks; `ALL[c as usize] == c`.
    pub const ALL: [Cause; 19] = [
        Cause::Unreadable,
        Cause::Untrusted,
        Cause::Magic,
        Cause::FormatVersion,
        Cause::HeaderLength,
        Cause::HeaderChecksum,
        Cause::Flags,
        Cause::KeyMismatch,
        Cause::Kind,
        Cause::FieldLengths,
        Cause::Label,
        Cause::Codec,
        Cause::SharedBlobs,
        Cause::PayloadTooLarge,
        Cause::FileLength,
        Cause::StoredChecksum,
        Cause::Decompress,
        Cause::PayloadLength,
        Cause::PayloadChecksum,
    ];

    /// A stable name in lower case with dashes.
    pub fn code(self) -> &'static str {
        match self {
            Cause::Unreadable => "unreadable",
            Cause::Untrusted => "untrusted",
            Cause::Magic => "magic",
            Cause::FormatVersion => "format-version",
            Cause::HeaderLength => "header-length",
            Cause::HeaderChecksum => "header-checksum",
            Cause::Flags => "flags",
            Cause::KeyMismatch => "key-mismatch",
            Cause::Kind => "kind",
            Cause::FieldLengths => "field-lengths",
            Cause::Label => "label",
            Cause::Codec => "codec",
            Cause::SharedBlobs => "shared-blobs",
            Cause::PayloadTooLarge => "payload-too-large",
            Cause::FileLength => "file-length",
            Cause::StoredChecksum => "stored-checksum",
            Cause::Decompress => "decompress",
            Cause::PayloadLength => "payload-length",
            Cause::PayloadChecksum => "payload-checksum",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl Rejection {
    /// The cause without its facts.
    pub fn cause(&self) -> Cause {
        match self {
            Rejection::Unreadable { .. } => Cause::Unreadable,
            Rejection::Untrusted { .. } => Cause::Untrusted,
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
            Rejection::SharedBlobs { .. } => Cause::SharedBlobs,
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
    pub fn is_about_content(&self) -> bool {
        !matches!(
            self,
            Rejection::Unreadable { .. } | Rejection::Untrusted { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_numbered_in_order_and_named_apart() {
        for (at, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, at, "{cause}");
        }
        let mut names = Cause::ALL.map(Cause::code).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Cause::ALL.len());
    }
}
