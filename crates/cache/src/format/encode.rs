//! Entry to bytes.

use super::share::{Split, split};
use super::{Codec, FIXED_LEN, FORMAT_VERSION, HASH_LEN, MAGIC, MAX_LABEL, MAX_META, MAX_PAYLOAD};
use crate::{Entry, Key};

/// zstd level of entries: on 46 real plans level 3 gave 4.3x in well under 0.1 s for the whole set, and level 9 only a
/// tenth less.
const LEVEL: i32 = 3;

/// An entry that the format cannot hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A label is too long.
    #[error("the label `{field}` has {found} bytes, an entry holds at most 255: shorten it")]
    LabelTooLong {
        /// Which label.
        field: &'static str,
        /// Its bytes.
        found: usize,
    },
    /// The meta field is too long.
    #[error("the meta field has {found} bytes, an entry holds at most 65535: keep large data in the payload")]
    MetaTooLong {
        /// Its bytes.
        found: usize,
    },
    /// The payload is too long.
    #[error("the payload has {found} bytes, an entry holds at most {limit}")]
    PayloadTooLong {
        /// Its bytes.
        found: u64,
        /// The most an entry holds.
        limit: u64,
    },
    /// The compressor failed; it has no reason to, short of memory.
    #[error("zstd could not compress the payload: {detail}")]
    Compress {
        /// What zstd said.
        detail: String,
    },
}

/// The bytes of an entry file that stands alone. With [`Codec::Zstd`] and [`Codec::Shared`] the payload is compressed, and
/// stored as it is if it does not shrink; nothing is shared.
///
/// The result depends on the arguments only: no time, no host, no path.
pub fn encode(key: &Key, entry: &Entry, codec: Codec) -> Result<Vec<u8>, EncodeError> {
    let payload = &entry.payload;
    check(entry)?;
    let compressed = match codec {
        Codec::None => None,
        Codec::Zstd | Codec::Shared => Some(compress(payload)?).filter(|bytes| bytes.len() < payload.len()),
    };
    Ok(match &compressed {
        Some(stored) => file(key, entry, Codec::Zstd, &[], stored),
        None => file(key, entry, Codec::None, &[], payload),
    })
}

/// An entry file whose kernels lie in blobs beside it.
pub(crate) struct Shared {
    /// The bytes of the file.
    pub(crate) file: Vec<u8>,
    /// The blobs that it refers to, by hash.
    pub(crate) blobs: Vec<(Key, Vec<u8>)>,
}

/// The bytes of an entry file and of what it shares with others; a payload with nothing to share stands alone.
pub(crate) fn encode_shared(key: &Key, entry: &Entry) -> Result<Shared, EncodeError> {
    check(entry)?;
    let Some(Split { frame, blobs }) = split(&entry.payload) else {
        return Ok(Shared { file: encode(key, entry, Codec::Zstd)?, blobs: Vec::new() });
    };
    let hashes: Vec<Key> = blobs.iter().map(|(hash, _)| *hash).collect();
    Ok(Shared { file: file(key, entry, Codec::Shared, &hashes, &compress(&frame)?), blobs })
}

/// Whether the format can hold an entry.
fn check(entry: &Entry) -> Result<(), EncodeError> {
    let Entry { kind: _, target, what, library, meta, payload } = entry;
    for (field, label) in [("library", library), ("target", target), ("what", what)] {
        if label.len() > MAX_LABEL {
            return Err(EncodeError::LabelTooLong { field, found: label.len() });
        }
    }
    if meta.len() > MAX_META {
        return Err(EncodeError::MetaTooLong { found: meta.len() });
    }
    if payload.len() as u64 > MAX_PAYLOAD {
        return Err(EncodeError::PayloadTooLong { found: payload.len() as u64, limit: MAX_PAYLOAD });
    }
    Ok(())
}

/// Header and stored bytes of an entry that was checked.
fn file(key: &Key, entry: &Entry, codec: Codec, shared: &[Key], stored: &[u8]) -> Vec<u8> {
    let Entry { kind, target, what, library, meta, payload } = entry;
    let labels = library.len() + target.len() + what.len();
    let header_len = FIXED_LEN + labels + meta.len() + shared.len() * HASH_LEN + HASH_LEN;
    let mut out = Vec::with_capacity(header_len + stored.len());
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    out.extend_from_slice(&0u16.to_le_bytes()); // flags: none in version 1
    out.extend_from_slice(&(header_len as u32).to_le_bytes());
    out.push(kind.code());
    out.push(codec.code());
    // `check` and `split` keep the casts below exact.
    out.push(shared.len() as u8);
    out.push(library.len() as u8);
    out.push(target.len() as u8);
    out.push(what.len() as u8);
    out.extend_from_slice(&(meta.len() as u16).to_le_bytes());
    out.extend_from_slice(&(stored.len() as u64).to_le_bytes());
    out.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    out.extend_from_slice(key.as_bytes());
    let payload_hash = blake3::hash(payload);
    out.extend_from_slice(payload_hash.as_bytes());
    let stored_hash = match codec {
        Codec::None => payload_hash,
        Codec::Zstd | Codec::Shared => blake3::hash(stored),
    };
    out.extend_from_slice(stored_hash.as_bytes());
    debug_assert_eq!(out.len(), FIXED_LEN);
    out.extend_from_slice(library.as_bytes());
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(what.as_bytes());
    out.extend_from_slice(meta);
    for hash in shared {
        out.extend_from_slice(hash.as_bytes());
    }
    let header_hash = blake3::hash(&out);
    out.extend_from_slice(header_hash.as_bytes());
    debug_assert_eq!(out.len(), header_len);
    out.extend_from_slice(stored);
    out
}

pub(super) fn compress(payload: &[u8]) -> Result<Vec<u8>, EncodeError> {
    zstd::bulk::compress(payload, LEVEL).map_err(|error| EncodeError::Compress { detail: error.to_string() })
}
