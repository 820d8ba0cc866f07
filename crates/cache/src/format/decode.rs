//! Decoding: any bytes give an entry or a rejection; the checks run in one documented order, with one cause each.

use std::cell::RefCell;

use super::{Codec, FIXED_LEN, FORMAT_VERSION, HASH_LEN, Header, MAGIC, MAX_HEADER, MAX_PAYLOAD, MIN_HEADER, at};
use crate::{Entry, EntryKind, Key, Rejection};

/// Reads and checks a header from the start of `bytes`, which may hold more or less than the entry.
///
/// With `key`, an entry of another key is rejected. The payload is not read, and lengths are checked against the limits
/// of the format alone.
pub(crate) fn decode_header(bytes: &[u8], key: Option<&Key>) -> Result<Header, Rejection> {
    if !bytes.starts_with(&MAGIC) {
        return Err(Rejection::Magic { found: bytes[..bytes.len().min(MAGIC.len())].to_vec() });
    }
    let version = bytes.get(at::VERSION..at::FLAGS).map(u16_le);
    match version {
        Some(FORMAT_VERSION) => {}
        Some(found) => {
            return Err(Rejection::FormatVersion { found, expected: FORMAT_VERSION });
        }
        None => return Err(short_header(bytes.len(), MIN_HEADER)),
    }
    let Some(declared) = bytes.get(at::HEADER_LEN..at::KIND).map(u32_le) else {
        return Err(short_header(bytes.len(), MIN_HEADER));
    };
    let header_len = declared as usize;
    if !(MIN_HEADER..=MAX_HEADER).contains(&header_len) || header_len > bytes.len() {
        return Err(short_header(bytes.len(), header_len));
    }
    let (signed, checksum) = bytes[..header_len].split_at(header_len - HASH_LEN);
    if blake3::hash(signed).as_bytes() != checksum {
        return Err(Rejection::HeaderChecksum);
    }

    // From here on the header is as a writer wrote it; the rest checks whether this reader can use it.
    let flags = u16_le(&bytes[at::FLAGS..]);
    if flags != 0 {
        return Err(Rejection::Flags { found: flags });
    }
    let found_key = Key(array(&bytes[at::KEY..]));
    if let Some(&expected) = key
        && expected != found_key
    {
        return Err(Rejection::KeyMismatch { expected, found: found_key });
    }
    let kind = EntryKind::from_code(bytes[at::KIND]).ok_or(Rejection::Kind { found: bytes[at::KIND] })?;

    let lens = [
        bytes[at::LIBRARY_LEN] as usize,
        bytes[at::TARGET_LEN] as usize,
        bytes[at::WHAT_LEN] as usize,
        u16_le(&bytes[at::META_LEN..]) as usize,
    ];
    let fields = FIXED_LEN + lens.iter().sum::<usize>() + HASH_LEN;
    if fields != header_len {
        return Err(Rejection::FieldLengths { header: header_len, fields });
    }
    let mut rest = &bytes[FIXED_LEN..header_len];
    let mut take = |len: usize| {
        let (field, after) = rest.split_at(len);
        rest = after;
        field
    };
    let library = label("library", take(lens[0]))?;
    let target = label("target", take(lens[1]))?;
    let what = label("what", take(lens[2]))?;
    let meta = take(lens[3]).to_vec();

    let codec = u16_le(&bytes[at::CODEC..]);
    let codec = Codec::from_code(codec).ok_or(Rejection::Codec { found: codec })?;
    let stored_len = u64_le(&bytes[at::STORED_LEN..]);
    let payload_len = u64_le(&bytes[at::PLAIN_LEN..]);
    let longest = stored_len.max(payload_len);
    if longest > MAX_PAYLOAD {
        return Err(Rejection::PayloadTooLarge { declared: longest, limit: MAX_PAYLOAD });
    }
    if codec == Codec::None && stored_len != payload_len {
        return Err(Rejection::PayloadLength { declared: payload_len, found: stored_len });
    }
    Ok(Header {
        key: found_key,
        kind,
        library,
        target,
        what,
        meta,
        payload_len,
        codec,
        header_len,
        stored_len,
        payload_hash: array(&bytes[at::PAYLOAD_HASH..]),
        stored_hash: array(&bytes[at::STORED_HASH..]),
    })
}

/// Checks a whole entry against its checksums without decompressing it. `bytes` must be exactly one entry file.
pub(crate) fn check_stored(bytes: &[u8], key: Option<&Key>) -> Result<Header, Rejection> {
    let header = decode_header(bytes, key)?;
    if header.file_len() != bytes.len() as u64 {
        return Err(Rejection::FileLength { expected: header.file_len(), found: bytes.len() as u64 });
    }
    if blake3::hash(&bytes[header.header_len..]).as_bytes() != &header.stored_hash {
        return Err(Rejection::StoredChecksum);
    }
    Ok(header)
}

/// Decodes and checks a whole entry. `bytes` must be exactly one entry file.
pub(crate) fn decode(bytes: &[u8], key: Option<&Key>) -> Result<(Header, Entry), Rejection> {
    let (header, entry) = decode_stored(bytes, key)?;
    if blake3::hash(&entry.payload).as_bytes() != &header.payload_hash {
        return Err(Rejection::PayloadChecksum);
    }
    Ok((header, entry))
}

/// The entry of a file that [`check_stored`] found good and whose payload is not compressed. It takes no second copy of
/// the payload.
pub(crate) fn entry_of_plain(header: Header, mut bytes: Vec<u8>) -> Result<Entry, Rejection> {
    if header.codec != Codec::None {
        return Err(Rejection::Codec { found: header.codec.code() });
    }
    if header.payload_hash != header.stored_hash {
        return Err(Rejection::PayloadChecksum);
    }
    bytes.drain(..header.header_len);
    let Header { kind, library, target, what, meta, .. } = header;
    Ok(Entry { kind, target, what, library, meta, payload: bytes })
}

/// Decodes an entry whose payload was compared with its checksum when it came into the vault, as every entry is: when
/// it is written, unpacked or fetched. Here every byte of the file is compared with the checksum of the file, so the
/// payload is the same. Its own checksum would take a sixth of a look-up; `cache verify` compares it.
pub(crate) fn decode_stored(bytes: &[u8], key: Option<&Key>) -> Result<(Header, Entry), Rejection> {
    let header = check_stored(bytes, key)?;
    let stored = &bytes[header.header_len..];
    let len = header.payload_len as usize;
    let payload = match header.codec {
        Codec::None => stored.to_vec(),
        Codec::Zstd => decompress(stored, len)?,
    };
    if payload.len() as u64 != header.payload_len {
        return Err(Rejection::PayloadLength { declared: header.payload_len, found: payload.len() as u64 });
    }
    let entry = Entry {
        kind: header.kind,
        target: header.target.clone(),
        what: header.what.clone(),
        library: header.library.clone(),
        meta: header.meta.clone(),
        payload,
    };
    Ok((header, entry))
}

/// Decompresses into at most `len` bytes; more is an error and allocates nothing.
fn decompress(stored: &[u8], len: usize) -> Result<Vec<u8>, Rejection> {
    thread_local! {
        // A context takes longer to create than a small plan to decompress, so each thread keeps one.
        static CONTEXT: RefCell<zstd::bulk::Decompressor<'static>> = RefCell::default();
    }
    // What is declared is compared with the frame before memory is taken for it: 200 bytes may declare 256 MiB.
    let detail = match zstd::zstd_safe::get_frame_content_size(stored) {
        Ok(Some(found)) if found == len as u64 => None,
        Ok(Some(found)) if found < len as u64 => {
            return Err(Rejection::PayloadLength { declared: len as u64, found });
        }
        Ok(Some(found)) => Some(format!("the frame has {found} bytes, {len} are declared")),
        Ok(None) => Some("the frame does not tell its length".to_owned()),
        Err(_) => Some("it is no frame of zstd".to_owned()),
    };
    if let Some(detail) = detail {
        return Err(Rejection::Decompress { detail });
    }
    let mut payload = Vec::with_capacity(len);
    CONTEXT
        .with_borrow_mut(|context| context.decompress_to_buffer(stored, &mut payload))
        .map_err(|error| Rejection::Decompress { detail: error.to_string() })?;
    Ok(payload)
}

fn short_header(present: usize, declared: usize) -> Rejection {
    Rejection::HeaderLength { declared, present }
}

fn label(field: &'static str, bytes: &[u8]) -> Result<String, Rejection> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(Rejection::Label { field }),
    }
}

// The callers have checked the length; a short slice is a bug of this file.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[..N]);
    out
}

fn u16_le(bytes: &[u8]) -> u16 {
    u16::from_le_bytes(array(bytes))
}

fn u32_le(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(array(bytes))
}

fn u64_le(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(array(bytes))
}
