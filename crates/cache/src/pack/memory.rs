//! The memory that reading a pack takes, known before anything is decompressed, and its limit.

use std::io::{Read, Seek};

use tempfile::SpooledTempFile;

use super::{PackError, PackLimits, PackManifest};

/// Memory that is allowed for each byte of a pack: packs of plans have a twentieth of the bytes at best.
const PER_BYTE: u64 = 20;

/// Buffers of the reader besides window and entry.
const AROUND: u64 = 8_000_000;

/// The mark of a zstd frame.
const FRAME: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Refuses a pack whose largest entry and window take more memory than a pack of `packed` bytes may.
///
/// # Errors
///
/// [`PackError::TooLarge`] with what it takes and the limit.
pub(super) fn check(window: u64, manifest: &PackManifest, packed: u64, limits: &PackLimits) -> Result<(), PackError> {
    let largest = manifest.entries.iter().map(|entry| entry.bytes).max().unwrap_or(0);
    // A window fills with what is decompressed.
    let window = window.min(manifest.plain_len());
    let declared = window.saturating_add(largest).saturating_add(AROUND);
    let limit = limits.memory_bytes.saturating_add(packed.saturating_mul(PER_BYTE));
    let what = "bytes of memory for its window and largest entry";
    if declared > limit { Err(PackError::TooLarge { what, declared, limit }) } else { Ok(()) }
}

/// The window of the zstd frame at the start of a body, which a reader keeps in memory; 0 if there is no frame, which
/// the decoder reports.
///
/// # Errors
///
/// The errors of reading the body.
pub(super) fn window(body: &mut SpooledTempFile) -> std::io::Result<u64> {
    body.rewind()?;
    let mut head = Vec::new();
    body.take(14).read_to_end(&mut head)?;
    body.rewind()?;
    Ok(window_of(&head).unwrap_or(0))
}

/// The window in the header of a frame (RFC 8878, 3.1.1.1); `None` if this is no frame.
fn window_of(head: &[u8]) -> Option<u64> {
    let (&descriptor, rest) = head.strip_prefix(&FRAME)?.split_first()?;
    let is_one_segment = descriptor & 0x20 != 0;
    if !is_one_segment {
        let byte = u64::from(*rest.first()?);
        let base = 1_u64 << (10 + (byte >> 3));
        return Some(base + base / 8 * (byte & 7));
    }
    // The window is the content, whose size comes after the number of a dictionary.
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let (size, more) = [(1, 0), (2, 256), (4, 0), (8, 0)][usize::from(descriptor >> 6)];
    let field = rest.get(dictionary..dictionary + size)?;
    let mut bytes = [0; 8];
    bytes[..size].copy_from_slice(field);
    Some(u64::from_le_bytes(bytes).saturating_add(more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_of_a_frame_is_read() {
        use std::io::Write;
        for log in [17, 20, 25, 27] {
            let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
            encoder.window_log(log).unwrap();
            encoder.write_all(b"some bytes").unwrap();
            assert_eq!(window_of(&encoder.finish().unwrap()), Some(1 << log));
        }
        for len in [10_usize, 300, 70_000] {
            // The size is known, so the content is one segment.
            let frame = zstd::bulk::compress(&vec![7; len], 3).unwrap();
            assert_eq!(window_of(&frame), Some(len as u64));
        }
        assert_eq!(window_of(b"no frame"), None);
        assert_eq!(window_of(&FRAME), None);
    }
}
