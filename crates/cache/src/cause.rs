//! Names of the causes of rejection, for counters and file names.

use std::fmt;

#[cfg(doc)]
use crate::Rejection;

/// The name of a cause of rejection, without its facts. Counters and file names use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RejectionCause {
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

impl RejectionCause {
    /// Every cause, in the order of the checks; `ALL[c as usize] == c`.
    pub const ALL: [RejectionCause; 20] = [
        RejectionCause::Unreadable,
        RejectionCause::Untrusted,
        RejectionCause::Seal,
        RejectionCause::Magic,
        RejectionCause::FormatVersion,
        RejectionCause::HeaderLength,
        RejectionCause::HeaderChecksum,
        RejectionCause::Flags,
        RejectionCause::KeyMismatch,
        RejectionCause::Kind,
        RejectionCause::FieldLengths,
        RejectionCause::Label,
        RejectionCause::Codec,
        RejectionCause::PayloadTooLarge,
        RejectionCause::FileLength,
        RejectionCause::StoredChecksum,
        RejectionCause::Decompress,
        RejectionCause::PayloadLength,
        RejectionCause::PayloadChecksum,
        RejectionCause::Discredited,
    ];

    /// A stable name in lower case with dashes.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            RejectionCause::Unreadable => "unreadable",
            RejectionCause::Untrusted => "untrusted",
            RejectionCause::Seal => "seal",
            RejectionCause::Magic => "magic",
            RejectionCause::FormatVersion => "format-version",
            RejectionCause::HeaderLength => "header-length",
            RejectionCause::HeaderChecksum => "header-checksum",
            RejectionCause::Flags => "flags",
            RejectionCause::KeyMismatch => "key-mismatch",
            RejectionCause::Kind => "kind",
            RejectionCause::FieldLengths => "field-lengths",
            RejectionCause::Label => "label",
            RejectionCause::Codec => "codec",
            RejectionCause::PayloadTooLarge => "payload-too-large",
            RejectionCause::FileLength => "file-length",
            RejectionCause::StoredChecksum => "stored-checksum",
            RejectionCause::Decompress => "decompress",
            RejectionCause::PayloadLength => "payload-length",
            RejectionCause::PayloadChecksum => "payload-checksum",
            RejectionCause::Discredited => "discredited",
        }
    }
}

impl fmt::Display for RejectionCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_numbered_in_order_and_named_apart() {
        for (at, cause) in RejectionCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, at, "{cause}");
        }
        let mut names = RejectionCause::ALL.map(RejectionCause::code).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), RejectionCause::ALL.len());
    }
}
