//! The file format of one entry, version 1: constants, the header as data, encoding and decoding.
//!
//! `docs/vault-format.md` describes it byte by byte. Everything here is a pure function of bytes: no file, no clock.
//! The test `golden` holds the bytes; if you change them on purpose, raise [`FORMAT_VERSION`] and the store's format.

mod decode;
mod encode;

pub(crate) use decode::{check_stored, decode, decode_header, decode_stored, entry_of_plain};
pub use encode::EncodeError;
pub(crate) use encode::encode;

use crate::{EntryKind, Key};

/// The first eight bytes of an entry. The line ends and the end-of-file mark expose a transfer that rewrote text.
pub(crate) const MAGIC: [u8; 8] = [0x93, b'Q', b'K', b'V', b'E', 0x0d, 0x0a, 0x1a];

/// The version of the entry format that this library writes, and the only one that it reads.
pub(crate) const FORMAT_VERSION: u16 = 1;

/// Bytes before the labels.
pub(crate) const FIXED_LEN: usize = 136;

/// Bytes of every checksum (blake3).
pub(crate) const HASH_LEN: usize = 32;

/// Shortest header: the fixed part and its checksum.
pub(crate) const MIN_HEADER: usize = FIXED_LEN + HASH_LEN;

/// Longest header: every label and the meta field full.
pub(crate) const MAX_HEADER: usize = FIXED_LEN + 3 * MAX_LABEL + MAX_META + HASH_LEN;

/// Longest label in bytes; its length is one byte.
pub(crate) const MAX_LABEL: usize = u8::MAX as usize;

/// Longest meta field in bytes; its length is two bytes.
pub(crate) const MAX_META: usize = u16::MAX as usize;

/// Longest payload in bytes, 256 MiB: a thousand times a real plan (70 to 219 KB measured), and small enough that a
/// forged length cannot exhaust the memory of a host.
pub const MAX_PAYLOAD: u64 = 256 << 20;

// Offsets of the fixed part, for encoding, decoding, and the tests of each field.
pub(crate) mod at {
    pub(crate) const VERSION: usize = 8;
    pub(crate) const FLAGS: usize = 10;
    pub(crate) const HEADER_LEN: usize = 12;
    pub(crate) const KIND: usize = 16;
    pub(crate) const CODEC: usize = 17;
    pub(crate) const LIBRARY_LEN: usize = 19;
    pub(crate) const TARGET_LEN: usize = 20;
    pub(crate) const WHAT_LEN: usize = 21;
    pub(crate) const META_LEN: usize = 22;
    pub(crate) const STORED_LEN: usize = 24;
    pub(crate) const PLAIN_LEN: usize = 32;
    pub(crate) const KEY: usize = 40;
    pub(crate) const PAYLOAD_HASH: usize = 72;
    pub(crate) const STORED_HASH: usize = 104;
}

const _: () = assert!(at::STORED_HASH + HASH_LEN == FIXED_LEN);

/// How the payload is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Codec {
    /// As it is.
    None,
    /// One zstd frame.
    Zstd,
}

impl Codec {
    pub(crate) fn code(self) -> u16 {
        match self {
            Codec::None => 0,
            Codec::Zstd => 1,
        }
    }

    pub(crate) fn from_code(code: u16) -> Option<Self> {
        match code {
            0 => Some(Codec::None),
            1 => Some(Codec::Zstd),
            _ => None,
        }
    }
}

/// The checked header of an entry: what lists and selections need, without the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header {
    /// The key of the entry.
    pub key: Key,
    /// Plan or refusal.
    pub kind: EntryKind,
    /// Version of the library that wrote the payload.
    pub library: String,
    /// Label of the target.
    pub target: String,
    /// Label of the attention.
    pub what: String,
    /// The facts that the caller stored beside the payload.
    pub meta: Vec<u8>,
    /// Length of the payload, in bytes.
    pub payload_len: u64,
    /// How the payload is stored.
    pub(crate) codec: Codec,
    /// Length of this header in the file, in bytes.
    pub(crate) header_len: usize,
    /// Length of the payload in the file, in bytes.
    pub(crate) stored_len: u64,
    /// blake3 of the payload.
    pub(crate) payload_hash: [u8; HASH_LEN],
    /// blake3 of the payload as stored.
    pub(crate) stored_hash: [u8; HASH_LEN],
}

impl Header {
    /// Length of the whole entry file in bytes.
    pub(crate) fn file_len(&self) -> u64 {
        self.header_len as u64 + self.stored_len
    }
}

#[cfg(test)]
mod tests;
