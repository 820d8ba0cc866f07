//! Names of the causes of rejection, for counters and file names.

use std::fmt;

#[cfg(doc)]
use crate::Rejection;

/// The name of a cause of rejection, without its facts. Counters and file names use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Cause {
    /// See [`Rejection::Unreadable`].
    Unreadable,
    /// See [`Rejection::Untrusted`].
    Untrusted,
    /// See [`Rejection::Seal`].
    Seal,
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
    /// See [`Rejection::Discredited`].
    Discredited,
}

impl Cause {
    /// Every cause, in the order of the checks; `ALL[c as usize] == c`.
    pub const ALL: [Cause; 20] = [
        Cause::Unreadable,
        Cause::Untrusted,
        Cause::Seal,
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
        Cause::PayloadTooLarge,
        Cause::FileLength,
        Cause::StoredChecksum,
        Cause::Decompress,
        Cause::PayloadLength,
        Cause::PayloadChecksum,
        Cause::Discredited,
    ];

    /// A stable name in lower case with dashes.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Cause::Unreadable => "unreadable",
            Cause::Untrusted => "untrusted",
            Cause::Seal => "seal",
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
            Cause::PayloadTooLarge => "payload-too-large",
            Cause::FileLength => "file-length",
            Cause::StoredChecksum => "stored-checksum",
            Cause::Decompress => "decompress",
            Cause::PayloadLength => "payload-length",
            Cause::PayloadChecksum => "payload-checksum",
            Cause::Discredited => "discredited",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
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
