//! Packs: many entries as one stream, to move a vault or a part of it.
//!
//! A pack is a header, a manifest, and one zstd stream over all entries with a long window. Plans of one model share
//! most of their bytes, so a pack takes about half of the bytes of its entry files.
//!
//! The format has no file names, so no path can leave the folder. Every length is declared, limited, and checked
//! against what arrives. Nothing is decompressed before the whole stream matches its checksums and, with a key, its
//! seal. `docs/vault-format.md` describes the bytes.

mod error;
mod manifest;
mod memory;
mod open;
mod seal;
mod secret;
mod unpack;
mod write;

pub use error::PackError;
pub use manifest::{ManifestEntry, PackManifest};
pub use open::PackLimits;
pub use seal::{SealKey, WeakSecret};
pub use secret::SecretError;
pub use unpack::{UnpackOptions, UnpackReport, verify_pack};
pub use write::{PackOptions, PackReport};

use crate::format::HASH_LEN;
use crate::paths::STORE_FORMAT;

/// The first eight bytes of a pack.
pub(crate) const PACK_MAGIC: [u8; 8] = [0x93, b'Q', b'K', b'V', b'P', 0x0d, 0x0a, 0x1a];

/// The version of the pack format that this library writes, and the only one that it reads.
pub(crate) const PACK_VERSION: u16 = STORE_FORMAT;

/// Bytes of the header.
pub(crate) const PACK_HEADER: usize = 168;

/// Largest window of the zstd stream that is read, as a power of two: 128 MiB, which a reader holds in memory.
pub(crate) const WINDOW_LOG: u32 = 27;

/// Largest window that is written, as a power of two: 32 MiB, which every reader allows however small the pack is.
pub(crate) const WRITTEN_WINDOW_LOG: u32 = 25;

const FLAG_SEALED: u16 = 1;

// Offsets in the header.
pub(crate) mod at {
    pub(crate) const VERSION: usize = 8;
    pub(crate) const FLAGS: usize = 10;
    pub(crate) const ENTRIES: usize = 12;
    pub(crate) const MANIFEST_LEN: usize = 16;
    pub(crate) const BODY_LEN: usize = 24;
    pub(crate) const PLAIN_LEN: usize = 32;
    pub(crate) const MANIFEST_HASH: usize = 40;
    pub(crate) const BODY_HASH: usize = 72;
    pub(crate) const SEAL: usize = 104;
    pub(crate) const CHECKSUM: usize = 136;
}

const _: () = assert!(at::CHECKSUM + HASH_LEN == PACK_HEADER);

/// The header of a pack, as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackHeader {
    pub(crate) entries: u32,
    pub(crate) manifest_len: u64,
    pub(crate) body_len: u64,
    pub(crate) plain_len: u64,
    pub(crate) manifest_hash: [u8; HASH_LEN],
    pub(crate) body_hash: [u8; HASH_LEN],
}

impl PackHeader {
    pub(crate) fn encode(&self, seal: Option<&SealKey>) -> [u8; PACK_HEADER] {
        let PackHeader { entries, manifest_len, body_len, plain_len, manifest_hash, body_hash } = self;
        let flags = if seal.is_some() { FLAG_SEALED } else { 0 };
        let mut out = [0; PACK_HEADER];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &PACK_MAGIC);
        put(at::VERSION, &PACK_VERSION.to_le_bytes());
        put(at::FLAGS, &flags.to_le_bytes());
        put(at::ENTRIES, &entries.to_le_bytes());
        put(at::MANIFEST_LEN, &manifest_len.to_le_bytes());
        put(at::BODY_LEN, &body_len.to_le_bytes());
        put(at::PLAIN_LEN, &plain_len.to_le_bytes());
        put(at::MANIFEST_HASH, manifest_hash);
        put(at::BODY_HASH, body_hash);
        if let Some(key) = seal {
            let seal = key.seal(&out[..at::SEAL]);
            out[at::SEAL..at::CHECKSUM].copy_from_slice(seal.as_bytes());
        }
        let checksum = blake3::hash(&out[..at::CHECKSUM]);
        out[at::CHECKSUM..].copy_from_slice(checksum.as_bytes());
        out
    }

    /// Reads and checks a header; with the key of a seal, the seal too.
    ///
    /// With `require`, a pack without a seal is refused.
    pub(crate) fn decode(bytes: &[u8; PACK_HEADER], seal: Option<&SealKey>, require: bool) -> Result<Self, PackError> {
        if bytes[..PACK_MAGIC.len()] != PACK_MAGIC {
            return Err(PackError::Magic { found: bytes[..PACK_MAGIC.len()].to_vec() });
        }
        let version = u16::from_le_bytes(field(bytes, at::VERSION));
        if version != PACK_VERSION {
            return Err(PackError::Version { found: version, expected: PACK_VERSION });
        }
        if blake3::hash(&bytes[..at::CHECKSUM]).as_bytes() != &bytes[at::CHECKSUM..] {
            return Err(PackError::HeaderChecksum);
        }
        let flags = u16::from_le_bytes(field(bytes, at::FLAGS));
        if flags & !FLAG_SEALED != 0 {
            return Err(PackError::Flags { found: flags });
        }
        match (flags & FLAG_SEALED != 0, seal) {
            (true, None) => return Err(PackError::SealKeyNeeded),
            // Else a pack whose flag was cleared would pass as one that was never sealed.
            (false, _) if bytes[at::SEAL..at::CHECKSUM].iter().any(|byte| *byte != 0) => {
                return Err(PackError::SealWithoutFlag);
            }
            (false, Some(_)) => return Err(PackError::NotSealed),
            (false, None) if require => return Err(PackError::SealRequired),
            // Comparing two blake3 hashes takes the same time wherever they differ.
            (true, Some(key)) if key.seal(&bytes[..at::SEAL]) != field(bytes, at::SEAL) => {
                return Err(PackError::Seal);
            }
            _ => {}
        }
        Ok(PackHeader {
            entries: u32::from_le_bytes(field(bytes, at::ENTRIES)),
            manifest_len: u64::from_le_bytes(field(bytes, at::MANIFEST_LEN)),
            body_len: u64::from_le_bytes(field(bytes, at::BODY_LEN)),
            plain_len: u64::from_le_bytes(field(bytes, at::PLAIN_LEN)),
            manifest_hash: field(bytes, at::MANIFEST_HASH),
            body_hash: field(bytes, at::BODY_HASH),
        })
    }
}

fn field<const N: usize>(bytes: &[u8; PACK_HEADER], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[cfg(test)]
mod tests;
