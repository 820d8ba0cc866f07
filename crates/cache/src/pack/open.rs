//! Opening a pack: every check that needs no decompression.

use std::io::{Read, Write};

use tempfile::SpooledTempFile;

use super::manifest::MAX_LINE;
use super::{PACK_HEADER, PackError, PackHeader, PackManifest, UnpackOptions, memory};

/// Limits on what a pack declares. A pack that declares more is refused before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackLimits {
    /// Most entries. Default: 1,000,000.
    pub entries: u64,
    /// Most bytes of the compressed body. Default: 8 GiB.
    pub packed_bytes: u64,
    /// Most bytes of all entries, decompressed. Default: 64 GiB.
    pub plain_bytes: u64,
    /// Most bytes of memory that reading takes, besides 20 for each byte of the pack: for the window of the
    /// decompression and the largest entry. Default: 64,000,000.
    pub memory_bytes: u64,
}

impl Default for PackLimits {
    fn default() -> Self {
        PackLimits { entries: 1_000_000, packed_bytes: 8 << 30, plain_bytes: 64 << 30, memory_bytes: 64_000_000 }
    }
}

/// Bytes of the body that are kept in memory before it goes to a temporary file.
const SPOOL: usize = 64 << 20;

/// A pack with a checked header, seal, manifest, checksum of the body, and end of the stream.
pub(crate) struct OpenPack {
    pub(crate) manifest: PackManifest,
    pub(crate) body: SpooledTempFile,
}

/// Reads the header and the manifest of a pack, and checks them against each other and the limits.
fn read_head(input: &mut dyn Read, options: &UnpackOptions) -> Result<(PackHeader, PackManifest), PackError> {
    let UnpackOptions { seal, require_seal, limits } = options;
    let head = read_part(input, "header", PACK_HEADER as u64)?;
    let mut bytes = [0; PACK_HEADER];
    bytes.copy_from_slice(&head);
    let header = PackHeader::decode(&bytes, seal.as_ref(), *require_seal)?;
    let PackHeader { entries, manifest_len, body_len, plain_len, manifest_hash, body_hash: _ } = header;
    let most = u64::from(entries).saturating_mul(MAX_LINE);
    for (what, declared, limit) in [
        ("entries", u64::from(entries), limits.entries),
        ("bytes of manifest", manifest_len, most),
        ("bytes of body", body_len, limits.packed_bytes),
        ("bytes of entries", plain_len, limits.plain_bytes),
    ] {
        if declared > limit {
            return Err(PackError::TooLarge { what, declared, limit });
        }
    }
    let lines = read_part(input, "manifest", manifest_len)?;
    if blake3::hash(&lines).as_bytes() != &manifest_hash {
        return Err(PackError::ManifestChecksum);
    }
    let manifest = PackManifest::decode(&lines, entries)?;
    if manifest.plain_len() != plain_len {
        let detail = format!("its entries have {} bytes, the header says {plain_len}", manifest.plain_len());
        return Err(PackError::Manifest { at: manifest.entries.len(), detail });
    }
    Ok((header, manifest))
}

pub(crate) fn open(input: &mut dyn Read, options: &UnpackOptions) -> Result<OpenPack, PackError> {
    let (header, manifest) = read_head(input, options)?;
    let mut body = SpooledTempFile::new(SPOOL);
    let mut hasher = blake3::Hasher::new();
    let mut left = header.body_len;
    let mut buffer = vec![0; 128 << 10];
    while left > 0 {
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = match input.read(&mut buffer[..most]) {
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(PackError::io("read the pack")(error)),
        };
        if read == 0 {
            let (expected, found) = (header.body_len, header.body_len - left);
            return Err(PackError::Truncated { what: "body", expected, found });
        }
        hasher.update(&buffer[..read]);
        body.write_all(&buffer[..read]).map_err(PackError::io("keep the pack in the temporary folder"))?;
        left -= read as u64;
    }
    if hasher.finalize() != header.body_hash {
        return Err(PackError::BodyChecksum);
    }
    if !read_part_or_less(input, 1)?.is_empty() {
        return Err(PackError::Trailing);
    }
    let window = memory::window(&mut body).map_err(PackError::io("read the pack"))?;
    let packed = PACK_HEADER as u64 + header.manifest_len + header.body_len;
    memory::check(window, &manifest, packed, &options.limits)?;
    Ok(OpenPack { manifest, body })
}

fn read_part(input: &mut dyn Read, what: &'static str, expected: u64) -> Result<Vec<u8>, PackError> {
    let bytes = read_part_or_less(input, expected)?;
    match bytes.len() as u64 {
        found if found == expected => Ok(bytes),
        found => Err(PackError::Truncated { what, expected, found }),
    }
}

/// Reads up to `len` bytes. The buffer grows with what arrives, not with what is declared.
fn read_part_or_less(input: &mut dyn Read, len: u64) -> Result<Vec<u8>, PackError> {
    let mut bytes = Vec::new();
    input.take(len).read_to_end(&mut bytes).map_err(PackError::io("read the pack"))?;
    Ok(bytes)
}
