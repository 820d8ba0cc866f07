//! Kernels that many plans carry, taken out of a payload and put back.
//!
//! A plan is JSON with its compiled kernel inside as base64 text, and the kernel is the same for every shape of a family.
//! Nothing here knows of plans: any long run of base64 text in a payload is taken out, as the bytes it stands for, and kept
//! once under their hash. What is left is the frame, which says where the texts go back.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::HASH_LEN;
use crate::{Key, Rejection};

/// Shortest run, in bytes of text, that is taken out: below it a file of its own costs more than it saves.
const MIN_RUN: usize = 8 << 10;

/// Most runs of one payload; their number is one byte.
const MAX_RUNS: usize = u8::MAX as usize;

/// A payload without its long runs of base64.
pub(crate) struct Split {
    /// For each run in order, the offset of its text in the payload (8 bytes), then the payload without the runs.
    pub(crate) frame: Vec<u8>,
    /// For each run in order, the hash of its bytes and the bytes.
    pub(crate) blobs: Vec<(Key, Vec<u8>)>,
}

/// Takes the long runs of base64 out of a payload; `None` if it has none.
pub(crate) fn split(payload: &[u8]) -> Option<Split> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < payload.len() && runs.len() < MAX_RUNS {
        let len = payload[at..].iter().take_while(|byte| is_digit(**byte)).count();
        let padding = payload[at + len..].iter().take(2).take_while(|byte| **byte == b'=').count();
        let text = &payload[at..at + len + padding];
        if len >= MIN_RUN
            // Strict: one text for one value, so that putting it back gives these very bytes.
            && let Ok(bytes) = STANDARD.decode(text)
        {
            runs.push((at, text.len(), bytes));
        }
        at += (len + padding).max(1);
    }
    if runs.is_empty() {
        return None;
    }
    let mut frame = Vec::with_capacity(payload.len());
    for (at, ..) in &runs {
        frame.extend_from_slice(&(*at as u64).to_le_bytes());
    }
    let mut end = 0;
    for (at, len, _) in &runs {
        frame.extend_from_slice(&payload[end..*at]);
        end = at + len;
    }
    frame.extend_from_slice(&payload[end..]);
    let blobs = runs.into_iter().map(|(_, _, bytes)| (Key(*blake3::hash(&bytes).as_bytes()), bytes)).collect();
    Some(Split { frame, blobs })
}

/// The text that stands in a payload for a blob.
pub(crate) fn text_of(blob: &[u8]) -> Vec<u8> {
    STANDARD.encode(blob).into_bytes()
}

/// Longest frame of a payload of `len` bytes with `runs` runs.
pub(crate) fn frame_limit(len: usize, runs: usize) -> usize {
    len.saturating_add(runs * 8)
}

/// Puts the texts of blobs back into a frame. Never gives more than `len` bytes; what it gives is checked by its hash.
pub(crate) fn join<T: AsRef<[u8]>>(
    frame: &[u8],
    hashes: &[Key],
    len: usize,
    mut text: impl FnMut(&Key) -> Result<T, Rejection>,
) -> Result<Vec<u8>, Rejection> {
    let wrong = |found: usize| Rejection::PayloadLength { declared: len as u64, found: found as u64 };
    let (offsets, mut rest) = frame.split_at_checked(hashes.len() * 8).ok_or_else(|| wrong(frame.len()))?;
    let mut payload = Vec::with_capacity(len);
    for (offset, hash) in offsets.chunks_exact(8).zip(hashes) {
        let mut at = [0; 8];
        at.copy_from_slice(offset);
        let gap = usize::try_from(u64::from_le_bytes(at)).ok().and_then(|at| at.checked_sub(payload.len()));
        let (before, after) = gap.and_then(|gap| rest.split_at_checked(gap)).ok_or_else(|| wrong(payload.len()))?;
        let text = text(hash)?;
        let text = text.as_ref();
        if before.len() + text.len() > len.saturating_sub(payload.len()) {
            return Err(wrong(payload.len() + before.len() + text.len()));
        }
        payload.extend_from_slice(before);
        payload.extend_from_slice(text);
        rest = after;
    }
    if payload.len() + rest.len() != len {
        return Err(wrong(payload.len() + rest.len()));
    }
    payload.extend_from_slice(rest);
    Ok(payload)
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/'
}

const _: () = assert!(HASH_LEN == size_of::<Key>());

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn back(payload: &[u8]) -> Option<Vec<u8>> {
        let Split { frame, blobs } = split(payload)?;
        assert!(frame.len() <= frame_limit(payload.len(), blobs.len()));
        let hashes: Vec<Key> = blobs.iter().map(|(hash, _)| *hash).collect();
        let find = |hash: &Key| Ok(text_of(&blobs.iter().find(|(h, _)| h == hash).unwrap().1));
        Some(join(&frame, &hashes, payload.len(), find).unwrap())
    }

    #[test]
    fn a_run_at_either_end_alone_and_twice_comes_back() {
        let kernel = text_of(&(0..20_000u32).map(|n| ((n * n) >> 3) as u8).collect::<Vec<_>>());
        for parts in
            [vec![&kernel[..]], vec![b"{\"", &kernel, b"\"}"], vec![&kernel, b"\"", &kernel], vec![b"{", &kernel]]
        {
            let payload = parts.concat();
            assert_eq!(back(&payload).as_deref(), Some(&payload[..]));
        }
        let twice = split(&[&kernel[..], b" ", &kernel].concat()).unwrap();
        assert!(twice.blobs.len() == 2 && twice.blobs[0].0 == twice.blobs[1].0, "the same bytes have one name");
    }

    #[test]
    fn what_would_not_come_back_stays_where_it_is() {
        // A length that base64 does not have, bits that no value leaves, and a run that is short.
        for text in ["A".repeat(MIN_RUN + 1), format!("{}AB==", "A".repeat(MIN_RUN)), "A".repeat(MIN_RUN - 4)] {
            assert!(split(text.as_bytes()).is_none(), "{}", text.len());
        }
    }

    #[test]
    fn a_frame_that_was_tampered_with_is_rejected() {
        let payload = [b"{\"".to_vec(), text_of(&[7; 9_000]), b"\"}".to_vec()].concat();
        let Split { frame, blobs } = split(&payload).unwrap();
        let joined = |frame: &[u8], len| join(frame, &[blobs[0].0], len, |_| Ok(text_of(&blobs[0].1)));
        assert_eq!(joined(&frame, payload.len()).as_deref(), Ok(&payload[..]));
        for (frame, len) in [
            (frame[..5].to_vec(), payload.len()),
            ([&[0xff; 8], &frame[8..]].concat(), payload.len()),
            (frame.clone(), payload.len() - 1),
            (frame.clone(), 10),
            (frame[..frame.len() - 1].to_vec(), payload.len()),
        ] {
            assert!(matches!(joined(&frame, len), Err(Rejection::PayloadLength { .. })));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_payload_comes_back(parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), 0usize..9_000), 0..4)) {
            let payload: Vec<u8> = parts.iter().flat_map(|(noise, len)| [noise.clone(), text_of(&vec![noise.len() as u8; *len])].concat()).collect();
            if let Some(found) = back(&payload) {
                prop_assert_eq!(found, payload);
            }
        }
    }
}
