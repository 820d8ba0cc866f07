//! A blob in its file: bytes that several entries share, under their own hash.

use super::decode::{array, decompress, u16_le, u64_le};
use super::encode::compress;
use super::{Codec, EncodeError, FORMAT_VERSION, HASH_LEN, MAX_PAYLOAD};
use crate::{Key, Rejection};

/// First eight bytes of a blob file.
const MAGIC: [u8; 8] = [0x93, b'Q', b'K', b'V', b'B', 0x0d, 0x0a, 0x1a];

/// Bytes of the header.
pub(crate) const BLOB_HEADER: usize = 128;

// Offsets in the header.
mod at {
    pub(super) const VERSION: usize = 8;
    pub(super) const FLAGS: usize = 10;
    pub(super) const CODEC: usize = 12;
    pub(super) const ZEROS: usize = 13;
    pub(super) const STORED_LEN: usize = 16;
    pub(super) const PLAIN_LEN: usize = 24;
    pub(super) const HASH: usize = 32;
    pub(super) const STORED_HASH: usize = 64;
    pub(super) const CHECKSUM: usize = 96;
}

/// The bytes of a blob file. Depends on nothing but `bytes`.
pub(crate) fn encode_blob(hash: &Key, bytes: &[u8]) -> Result<Vec<u8>, EncodeError> {
    let compressed = Some(compress(bytes)?).filter(|stored| stored.len() < bytes.len());
    let (codec, stored) = match &compressed {
        Some(stored) => (Codec::Zstd, stored.as_slice()),
        None => (Codec::None, bytes),
    };
    let mut out = Vec::with_capacity(BLOB_HEADER + stored.len());
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    out.extend_from_slice(&0u16.to_le_bytes()); // flags: none in version 1
    out.extend_from_slice(&[codec.code(), 0, 0, 0]);
    out.extend_from_slice(&(stored.len() as u64).to_le_bytes());
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(hash.as_bytes());
    out.extend_from_slice(blake3::hash(stored).as_bytes());
    let checksum = blake3::hash(&out);
    out.extend_from_slice(checksum.as_bytes());
    out.extend_from_slice(stored);
    Ok(out)
}

/// Checks a blob file without decompressing it, and gives its codec and the length of its bytes.
pub(crate) fn check_blob(file: &[u8], hash: &Key) -> Result<(Codec, usize), Rejection> {
    if !file.starts_with(&MAGIC) {
        return Err(Rejection::Magic { found: file[..file.len().min(MAGIC.len())].to_vec() });
    }
    match file.get(at::VERSION..at::FLAGS).map(u16_le) {
        Some(FORMAT_VERSION) => {}
        Some(found) => return Err(Rejection::FormatVersion { found, expected: FORMAT_VERSION }),
        None => return Err(Rejection::HeaderLength { declared: BLOB_HEADER, present: file.len() }),
    }
    let Some((header, stored)) = file.split_at_checked(BLOB_HEADER) else {
        return Err(Rejection::HeaderLength { declared: BLOB_HEADER, present: file.len() });
    };
    if blake3::hash(&header[..at::CHECKSUM]).as_bytes() != &header[at::CHECKSUM..] {
        return Err(Rejection::HeaderChecksum);
    }
    let flags = u16_le(&header[at::FLAGS..]);
    if flags != 0 || header[at::ZEROS..at::STORED_LEN] != [0; 3] {
        return Err(Rejection::Flags { found: flags });
    }
    let found = Key(array(&header[at::HASH..]));
    if found != *hash {
        return Err(Rejection::KeyMismatch { expected: *hash, found });
    }
    let codec = match Codec::from_code(header[at::CODEC]) {
        Some(codec @ (Codec::None | Codec::Zstd)) => codec,
        Some(Codec::Shared) | None => return Err(Rejection::Codec { found: header[at::CODEC] }),
    };
    let (stored_len, plain_len) = (u64_le(&header[at::STORED_LEN..]), u64_le(&header[at::PLAIN_LEN..]));
    let longest = stored_len.max(plain_len);
    if longest > MAX_PAYLOAD {
        return Err(Rejection::PayloadTooLarge { declared: longest, limit: MAX_PAYLOAD });
    }
    if codec == Codec::None && stored_len != plain_len {
        return Err(Rejection::PayloadLength { declared: plain_len, found: stored_len });
    }
    if stored.len() as u64 != stored_len {
        let expected = BLOB_HEADER as u64 + stored_len;
        return Err(Rejection::FileLength { expected, found: file.len() as u64 });
    }
    if blake3::hash(stored).as_bytes() != &header[at::STORED_HASH..at::CHECKSUM] {
        return Err(Rejection::StoredChecksum);
    }
    Ok((codec, plain_len as usize))
}

/// Reads and checks a whole blob file: the bytes are those that `hash` is the hash of.
pub fn decode_blob(file: &[u8], hash: &Key) -> Result<Vec<u8>, Rejection> {
    let (codec, len) = check_blob(file, hash)?;
    let stored = &file[BLOB_HEADER..];
    let bytes = match codec {
        Codec::Zstd => decompress(stored, len)?,
        Codec::None | Codec::Shared => stored.to_vec(),
    };
    if bytes.len() != len {
        return Err(Rejection::PayloadLength { declared: len as u64, found: bytes.len() as u64 });
    }
    if blake3::hash(&bytes).as_bytes() != hash.as_bytes() {
        return Err(Rejection::PayloadChecksum);
    }
    Ok(bytes)
}

const _: () = assert!(at::CHECKSUM + HASH_LEN == BLOB_HEADER);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cause;

    fn blob() -> (Key, Vec<u8>) {
        let bytes = b"a kernel, a kernel, a kernel, a kernel, a kernel".to_vec();
        (Key(*blake3::hash(&bytes).as_bytes()), bytes)
    }

    fn signed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let (hash, bytes) = blob();
        let mut file = encode_blob(&hash, &bytes).unwrap();
        change(&mut file);
        let checksum = blake3::hash(&file[..at::CHECKSUM]);
        file[at::CHECKSUM..BLOB_HEADER].copy_from_slice(checksum.as_bytes());
        file
    }

    #[test]
    fn golden() {
        let (hash, bytes) = blob();
        // Compressed bytes may differ with the version of zstd; that they are read is pinned.
        assert_eq!(decode_blob(include_bytes!("golden-v1.qkvblob"), &hash), Ok(bytes.clone()));
        assert_eq!(decode_blob(&encode_blob(&hash, &bytes).unwrap(), &hash), Ok(bytes));
    }

    #[test]
    #[ignore = "writes the golden file"]
    fn write_golden() {
        let (hash, bytes) = blob();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/format/golden-v1.qkvblob");
        std::fs::write(path, encode_blob(&hash, &bytes).unwrap()).unwrap();
    }

    #[test]
    fn every_field_has_its_own_rejection() {
        let (hash, _) = blob();
        for (n, (cause, file)) in [
            (Cause::Magic, signed(|f| f[4] = b'E')),
            (Cause::FormatVersion, signed(|f| f[at::VERSION] = 2)),
            (Cause::Flags, signed(|f| f[at::FLAGS] = 1)),
            (Cause::Flags, signed(|f| f[at::ZEROS + 2] = 1)),
            (Cause::KeyMismatch, signed(|f| f[at::HASH] ^= 1)),
            (Cause::Codec, signed(|f| f[at::CODEC] = 2)),
            (Cause::PayloadTooLarge, signed(|f| f[at::PLAIN_LEN + 7] = 1)),
            (Cause::FileLength, signed(|f| f[at::STORED_LEN] += 1)),
            (Cause::PayloadLength, signed(|f| f[at::CODEC] = 0)),
            (Cause::StoredChecksum, signed(|f| f[at::STORED_HASH] ^= 1)),
            (Cause::PayloadLength, signed(|f| f[at::PLAIN_LEN] += 1)),
            (Cause::Decompress, signed(|f| f[at::PLAIN_LEN] -= 1)),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(decode_blob(&file, &hash).map_err(|why| why.cause()), Err(cause), "case {n}");
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_rejected() {
        let (hash, bytes) = blob();
        let good = encode_blob(&hash, &bytes).unwrap();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut file = good.clone();
                file[at] ^= 1 << bit;
                assert!(decode_blob(&file, &hash).is_err(), "byte {at} bit {bit} was served");
            }
            assert!(decode_blob(&good[..at], &hash).is_err(), "{at} bytes were served");
        }
    }
}
