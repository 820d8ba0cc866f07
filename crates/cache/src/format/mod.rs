//! The file format of one entry, version 1: constants, the header as data, and the two directions.
//!
//! `docs/vault-format.md` has the same, byte by byte. Everything here is a pure function of bytes: no file, no clock.
//! The test `golden` pins the bytes; when it fails on purpose, raise [`FORMAT_VERSION`] and the folder name.

mod blob;
mod decode;
mod encode;
mod share;

pub use blob::decode_blob;
pub(crate) use blob::{check_blob, encode_blob};
pub use decode::{check_stored, decode, decode_header, decode_with};
pub use encode::{EncodeError, encode};
pub(crate) use encode::{Shared, encode_shared};
pub(crate) use share::text_of;

use crate::{EntryKind, Key};

/// First eight bytes of an entry. The line ends and the end-of-file mark expose a transfer that rewrote text.
pub(crate) const MAGIC: [u8; 8] = [0x93, b'Q', b'K', b'V', b'E', 0x0d, 0x0a, 0x1a];

/// Version of the entry format this library writes, and the only one it reads.
pub const FORMAT_VERSION: u16 = 1;

/// Bytes before the labels.
pub(crate) const FIXED_LEN: usize = 136;

/// Bytes of every checksum (blake3).
pub(crate) const HASH_LEN: usize = 32;

/// Shortest header: the fixed part and its checksum.
pub(crate) const MIN_HEADER: usize = FIXED_LEN + HASH_LEN;

/// Longest header: every label, the meta field and the list of shared blobs full.
pub(crate) const MAX_HEADER: usize = FIXED_LEN + 3 * MAX_LABEL + MAX_META + 255 * HASH_LEN + HASH_LEN;

/// Longest label in bytes; its length is one byte.
pub const MAX_LABEL: usize = u8::MAX as usize;

/// Longest meta field in bytes; its length is two bytes.
pub const MAX_META: usize = u16::MAX as usize;

/// Longest payload in bytes, 256 MiB: a thousand times a real plan (70 to 219 KB measured), and small enough that a
/// forged length cannot exhaust the memory of a host.
pub const MAX_PAYLOAD: u64 = 256 << 20;

// Offsets of the fixed part, used by both directions and by the tests of each field.
pub(crate) mod at {
    pub(crate) const VERSION: usize = 8;
    pub(crate) const FLAGS: usize = 10;
    pub(crate) const HEADER_LEN: usize = 12;
    pub(crate) const KIND: usize = 16;
    pub(crate) const CODEC: usize = 17;
    pub(crate) const SHARED: usize = 18;
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
pub enum Codec {
    /// As it is.
    None,
    /// One zstd frame.
    Zstd,
    /// One zstd frame of the payload without its kernels, which lie in blobs that other entries may refer to as well.
    Shared,
}

impl Codec {
    pub(crate) fn code(self) -> u8 {
        match self {
            Codec::None => 0,
            Codec::Zstd => 1,
            Codec::Shared => 2,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Codec::None),
            1 => Some(Codec::Zstd),
            2 => Some(Codec::Shared),
            _ => None,
        }
    }
}

/// The checked header of an entry: all that lists and selections need, without the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The key the entry was written under.
    pub key: Key,
    /// Plan or refusal.
    pub kind: EntryKind,
    /// Version of the library that wrote the payload.
    pub library: String,
    /// Label of the target.
    pub target: String,
    /// Label of the attention.
    pub what: String,
    /// The caller's small facts.
    pub meta: Vec<u8>,
    /// How the payload is stored.
    pub codec: Codec,
    /// Hashes of the blobs that the payload shares with other entries, in order; none unless the codec is
    /// [`Codec::Shared`].
    pub shared: Vec<Key>,
    /// Length of this header in the file, in bytes.
    pub header_len: usize,
    /// Length of the payload in the file, in bytes.
    pub stored_len: u64,
    /// Length of the payload, in bytes.
    pub payload_len: u64,
    /// blake3 of the payload.
    pub payload_hash: [u8; HASH_LEN],
    /// blake3 of the payload as stored.
    pub stored_hash: [u8; HASH_LEN],
}

impl Header {
    /// Length of the whole entry file in bytes.
    pub fn file_len(&self) -> u64 {
        self.header_len as u64 + self.stored_len
    }
}

#[cfg(test)]
mod tests;
