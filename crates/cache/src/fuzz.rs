//! The checks of fuzzing (`dev/fuzz`), as functions of bytes. Each returns what was said to the input, and panics if
//! that is wrong.
//!
//! The `signed` checks put valid checksums around the input, so that the input reaches the checks behind them.

use crate::format::{
    Codec, FORMAT_VERSION, HASH_LEN, MAGIC, MIN_HEADER, at, check_stored, decode, decode_header, encode,
};
use crate::pack::{PACK_MAGIC, PACK_VERSION};
use crate::{PackLimits, PackManifest, UnpackOptions, verify_pack};

/// Checks that any bytes are an entry or are rejected, and that the three ways of reading agree.
///
/// # Errors
///
/// The rejection, in words.
///
/// # Panics
///
/// If they do not agree.
pub fn entry(bytes: &[u8]) -> Result<(), String> {
    let header = decode_header(bytes, None);
    let stored = check_stored(bytes, None);
    let whole = decode(bytes, None);
    if let Ok(found) = &stored {
        assert_eq!(header.as_ref(), Ok(found), "a checked file has the header that was read alone");
    }
    let (found, entry) = match whole {
        Ok(whole) => whole,
        Err(rejection) => {
            assert!(!rejection.to_string().is_empty());
            return Err(rejection.to_string());
        }
    };
    assert_eq!(stored, Ok(found.clone()), "what decompresses was stored whole");
    assert_eq!(found.payload_len, entry.payload.len() as u64);
    assert_eq!(found.file_len(), bytes.len() as u64);
    assert!(decode(bytes, Some(&found.key)).is_ok());
    let mut other = found.key;
    other.0[0] ^= 1;
    assert!(decode(bytes, Some(&other)).is_err(), "an entry answers under its own key only");
    let again = encode(&found.key, &entry, Codec::None).expect("what was read can be written");
    let (_, same) = decode(&again, Some(&found.key)).expect("what was written can be read");
    assert_eq!(same, entry);
    if found.codec == Codec::None {
        assert_eq!(again, bytes, "there is one form of an entry");
    }
    Ok(())
}

/// Runs [`entry`] with a valid magic, version, and every checksum that the lengths allow.
///
/// # Errors
///
/// As for [`entry`].
///
/// # Panics
///
/// As for [`entry`].
pub fn entry_signed(bytes: &[u8]) -> Result<(), String> {
    let mut bytes = bytes.to_vec();
    if bytes.len() >= MIN_HEADER {
        bytes[..at::VERSION].copy_from_slice(&MAGIC);
        bytes[at::VERSION..at::FLAGS].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        // A writer derives the length of the header from those of its fields.
        let fields: usize =
            [at::LIBRARY_LEN, at::TARGET_LEN, at::WHAT_LEN].map(|at| usize::from(bytes[at])).iter().sum();
        let meta = usize::from(u16::from_le_bytes([bytes[at::META_LEN], bytes[at::META_LEN + 1]]));
        let len = MIN_HEADER + fields + meta;
        if len <= bytes.len() {
            bytes[at::HEADER_LEN..at::KIND].copy_from_slice(&(len as u32).to_le_bytes());
            let stored = bytes[len..].to_vec();
            bytes[at::STORED_LEN..at::PLAIN_LEN].copy_from_slice(&(stored.len() as u64).to_le_bytes());
            let payload = match bytes[at::CODEC] {
                0 => Some(stored.clone()),
                1 => zstd::bulk::decompress(&stored, 1 << 20).ok(),
                _ => None,
            };
            if let Some(payload) = payload {
                bytes[at::PLAIN_LEN..at::KEY].copy_from_slice(&(payload.len() as u64).to_le_bytes());
                bytes[at::PAYLOAD_HASH..at::STORED_HASH].copy_from_slice(blake3::hash(&payload).as_bytes());
            }
            bytes[at::STORED_HASH..][..HASH_LEN].copy_from_slice(blake3::hash(&stored).as_bytes());
            let checksum = blake3::hash(&bytes[..len - HASH_LEN]);
            bytes[len - HASH_LEN..len].copy_from_slice(checksum.as_bytes());
        }
    }
    entry(&bytes)
}

/// Checks that any bytes are a pack or are refused.
///
/// # Errors
///
/// Why it is refused, in words.
///
/// # Panics
///
/// If a pack beyond the limits is accepted.
pub fn pack(bytes: &[u8]) -> Result<PackManifest, String> {
    let limits = PackLimits { packed_bytes: 1 << 20, plain_bytes: 4 << 20, ..PackLimits::default() };
    match verify_pack(bytes, &UnpackOptions { limits, ..UnpackOptions::default() }) {
        Ok(manifest) => {
            assert!(manifest.plain_len() <= limits.plain_bytes);
            Ok(manifest)
        }
        Err(error) => Err(error.to_string()),
    }
}

/// A pack with a valid header around the input, whose first bytes give the lengths of manifest and body.
#[must_use]
pub fn signed_pack(bytes: &[u8]) -> Option<Vec<u8>> {
    let (head, rest) = bytes.split_at_checked(8)?;
    let cut = usize::from(u16::from_le_bytes([head[0], head[1]])).min(rest.len());
    let (manifest, body) = rest.split_at(cut);
    // An odd byte means that the body is given as it should decompress.
    let compressed = zstd::bulk::compress(body, 1).unwrap_or_default();
    let body = if head[2] & 1 == 1 { &compressed } else { body };
    let plain = u64::from(u32::from_le_bytes([head[4], head[5], head[6], head[7]]));
    let mut out = vec![0; 168];
    out[..8].copy_from_slice(&PACK_MAGIC);
    out[8..10].copy_from_slice(&PACK_VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&u32::from(head[3]).to_le_bytes());
    out[16..24].copy_from_slice(&(manifest.len() as u64).to_le_bytes());
    out[24..32].copy_from_slice(&(body.len() as u64).to_le_bytes());
    out[32..40].copy_from_slice(&plain.to_le_bytes());
    out[40..72].copy_from_slice(blake3::hash(manifest).as_bytes());
    out[72..104].copy_from_slice(blake3::hash(body).as_bytes());
    let checksum = blake3::hash(&out[..136]);
    out[136..168].copy_from_slice(checksum.as_bytes());
    out.extend_from_slice(manifest);
    out.extend_from_slice(body);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Codec;
    use crate::golden;

    /// Runs every check on the golden files with each of their bytes changed in turn.
    #[test]
    fn neighbours_of_good_files_are_answered() {
        for file in [golden::entry(Codec::None), golden::entry(Codec::Zstd), golden::pack()] {
            let good = golden::read(&file);
            for at in 0..good.len() {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut bytes = good.clone();
                    bytes[at] = value;
                    let _ = (entry(&bytes), entry_signed(&bytes), pack(&bytes));
                    let _ = signed_pack(&bytes).map(|bytes| pack(&bytes));
                }
            }
        }
    }
}
