//! Tests of the entry format: the pinned bytes, one corruption per field, every flip and every cut.

use proptest::prelude::*;

use super::*;
use crate::{Entry, RejectionCause, golden};

fn key() -> Key {
    Key(std::array::from_fn(|i| i as u8))
}

fn entry() -> Entry {
    Entry {
        kind: EntryKind::Plan,
        target: "sm_90 132sm driver 13.0 cudnn 9.27.0 slim".into(),
        what: "prefill bf16 b1 h32/8 s4096 d128 causal".into(),
        library: "9.27.0".into(),
        meta: vec![0xde, 0xad],
        payload: b"a plan, a plan, a plan, a plan, a plan, a plan, a plan, a plan, a plan".to_vec(),
    }
}

/// Rewrites the header's checksum, so that the next check in the order is reached.
fn sign(bytes: &mut [u8]) {
    let len = u32::from_le_bytes(bytes[at::HEADER_LEN..at::KIND].try_into().unwrap()) as usize;
    let hash = blake3::hash(&bytes[..len - HASH_LEN]);
    bytes[len - HASH_LEN..len].copy_from_slice(hash.as_bytes());
}

fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = encode(&key(), &entry(), Codec::Zstd).unwrap();
    change(&mut bytes);
    bytes
}

fn signed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    changed(|bytes| {
        change(bytes);
        sign(bytes);
    })
}

fn cause(bytes: &[u8]) -> Option<RejectionCause> {
    decode(bytes, Some(&key())).err().map(|rejection| rejection.cause())
}

#[test]
fn golden() {
    // When this fails, files written before are no longer read: raise FORMAT_VERSION and STORE_FORMAT, and say so
    // in the change log under "Cache format / key".
    let golden = golden::read(&golden::entry(Codec::None));
    let (header, found) = decode(&golden, Some(&key())).expect("the golden file is an entry");
    assert_eq!(found, entry());
    assert_eq!(header.codec, Codec::None);
    let bytes = encode(&key(), &entry(), Codec::None).unwrap();
    assert_eq!(bytes, golden, "the bytes written for the same entry have changed");

    // Compressed bytes may differ with the version of zstd; only that they are read is pinned.
    let golden = golden::read(&golden::entry(Codec::Zstd));
    let (header, found) = decode(&golden, Some(&key())).expect("the golden file is an entry");
    assert_eq!((found, header.codec), (entry(), Codec::Zstd));
}

/// `cargo test -p qkvault-cache write_golden -- --ignored` writes new golden files, after a deliberate change.
#[test]
#[ignore = "writes the golden files"]
fn write_golden() {
    for codec in [Codec::None, Codec::Zstd] {
        std::fs::write(golden::entry(codec), encode(&key(), &entry(), codec).unwrap()).unwrap();
    }
}

#[test]
fn every_field_has_its_own_rejection() {
    let cases: Vec<(RejectionCause, Vec<u8>)> = vec![
        (RejectionCause::Magic, changed(|b| b[0] ^= 1)),
        (RejectionCause::Magic, changed(|b| b.clear())),
        (
            RejectionCause::FormatVersion,
            signed(|b| b[at::VERSION..at::FLAGS].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes())),
        ),
        (RejectionCause::HeaderLength, changed(|b| b[at::HEADER_LEN + 1] = 0)),
        (RejectionCause::HeaderLength, changed(|b| b[at::HEADER_LEN + 3] = 0xff)),
        (RejectionCause::HeaderChecksum, changed(|b| b[FIXED_LEN] ^= 1)),
        (RejectionCause::Flags, signed(|b| b[at::FLAGS + 1] = 0x80)),
        (RejectionCause::KeyMismatch, signed(|b| b[at::KEY + 31] ^= 1)),
        (RejectionCause::Kind, signed(|b| b[at::KIND] = 0)),
        (RejectionCause::Kind, signed(|b| b[at::KIND] = 4)),
        (RejectionCause::FieldLengths, signed(|b| b[at::LIBRARY_LEN] += 1)),
        (RejectionCause::FieldLengths, signed(|b| b[at::TARGET_LEN] += 1)),
        (RejectionCause::FieldLengths, signed(|b| b[at::WHAT_LEN] += 1)),
        (RejectionCause::FieldLengths, signed(|b| b[at::META_LEN] += 1)),
        (RejectionCause::Label, signed(|b| b[FIXED_LEN] = 0xff)),
        (RejectionCause::Codec, signed(|b| b[at::CODEC] = 2)),
        (RejectionCause::Codec, signed(|b| b[at::CODEC + 1] = 1)),
        (RejectionCause::PayloadTooLarge, signed(|b| b[at::STORED_LEN + 7] = 1)),
        (RejectionCause::PayloadTooLarge, signed(|b| b[at::PLAIN_LEN + 7] = 1)),
        (RejectionCause::FileLength, signed(|b| b[at::STORED_LEN] += 1)),
        (RejectionCause::FileLength, changed(|b| b.push(0))),
        (RejectionCause::StoredChecksum, signed(|b| b[at::STORED_HASH] ^= 1)),
        (RejectionCause::StoredChecksum, changed(|b| *b.last_mut().unwrap() ^= 1)),
        (RejectionCause::PayloadLength, signed(|b| b[at::PLAIN_LEN] += 1)),
        (RejectionCause::Decompress, signed(|b| b[at::PLAIN_LEN] -= 1)),
        (RejectionCause::PayloadChecksum, signed(|b| b[at::PAYLOAD_HASH] ^= 1)),
    ];
    for (n, (expected, bytes)) in cases.iter().enumerate() {
        assert_eq!(cause(bytes), Some(*expected), "case {n}");
    }
    assert_eq!(cause(&changed(|_| {})), None);
}

#[test]
fn a_payload_with_the_wrong_codec_byte_is_not_served() {
    // Compressed bytes declared as plain, with lengths made to match: the checksum of the payload finds it.
    let bytes = signed(|b| {
        b[at::CODEC] = 0;
        let stored: [u8; 8] = b[at::STORED_LEN..at::PLAIN_LEN].try_into().unwrap();
        b[at::PLAIN_LEN..at::KEY].copy_from_slice(&stored);
    });
    assert_eq!(cause(&bytes), Some(RejectionCause::PayloadChecksum));
    let bytes = signed(|b| b[at::CODEC] = 0);
    assert_eq!(cause(&bytes), Some(RejectionCause::PayloadLength));
}

#[test]
fn a_bomb_stops_at_its_declared_length() {
    // 64 MiB of zeros compress to a few KB; the header claims 1,000 bytes.
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 3).unwrap();
    let bytes = changed(|b| {
        let len = u32::from_le_bytes(b[at::HEADER_LEN..at::KIND].try_into().unwrap()) as usize;
        b.truncate(len);
        b[at::STORED_LEN..at::PLAIN_LEN].copy_from_slice(&(bomb.len() as u64).to_le_bytes());
        b[at::PLAIN_LEN..at::KEY].copy_from_slice(&1000u64.to_le_bytes());
        b[at::STORED_HASH..FIXED_LEN].copy_from_slice(blake3::hash(&bomb).as_bytes());
        sign(b);
        b.extend_from_slice(&bomb);
    });
    assert_eq!(cause(&bytes), Some(RejectionCause::Decompress));
}

/// Found by fuzzing: a file of 234 bytes took 192 MiB before anything was decompressed.
#[test]
fn a_frame_that_tells_another_length_than_is_declared_is_rejected_before_memory_is_taken() {
    let bytes = encode(&key(), &entry(), Codec::Zstd).unwrap();
    for declared in [MAX_PAYLOAD, MAX_PAYLOAD / 2, 1] {
        let signed = {
            let mut bytes = bytes.clone();
            bytes[at::PLAIN_LEN..at::KEY].copy_from_slice(&declared.to_le_bytes());
            sign(&mut bytes);
            bytes
        };
        let expected = if declared == 1 { RejectionCause::Decompress } else { RejectionCause::PayloadLength };
        assert_eq!(cause(&signed), Some(expected), "{declared}");
    }
    // A frame whose header does not tell: bit 7 and 6 and the single segment of its descriptor say how.
    let untold = zstd::stream::encode_all(&entry().payload[..], 3).unwrap();
    let header = decode_header(&bytes, None).unwrap();
    let mut whole = [&bytes[..header.header_len], &untold[..]].concat();
    whole[at::STORED_LEN..at::PLAIN_LEN].copy_from_slice(&(untold.len() as u64).to_le_bytes());
    let hash = blake3::hash(&untold);
    whole[at::STORED_HASH..][..HASH_LEN].copy_from_slice(hash.as_bytes());
    sign(&mut whole);
    let rejection = decode(&whole, None).expect_err("it does not tell its length");
    assert!(rejection.to_string().contains("does not tell its length"), "{rejection}");
}

#[test]
fn every_flipped_bit_and_every_cut_is_rejected() {
    for codec in [Codec::None, Codec::Zstd] {
        let good = encode(&key(), &entry(), codec).unwrap();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bytes = good.clone();
                bytes[at] ^= 1 << bit;
                assert!(cause(&bytes).is_some(), "byte {at} bit {bit} was served");
            }
        }
        for len in 0..good.len() {
            assert!(cause(&good[..len]).is_some(), "{len} bytes were served");
            assert!(decode_header(&good[..len], None).is_err() || len >= MIN_HEADER);
        }
    }
}

#[test]
fn what_does_not_fit_is_told() {
    let long = "x".repeat(256);
    let with = |change: fn(&mut Entry, String)| {
        let mut entry = entry();
        change(&mut entry, long.clone());
        encode(&key(), &entry, Codec::None).unwrap_err()
    };
    for (field, error) in [
        ("library", with(|entry, long| entry.library = long)),
        ("target", with(|entry, long| entry.target = long)),
        ("what", with(|entry, long| entry.what = long)),
    ] {
        assert_eq!(error, EncodeError::LabelTooLong { field, found: 256 });
    }
    let meta = Entry { meta: vec![0; MAX_META + 1], ..entry() };
    assert_eq!(encode(&key(), &meta, Codec::None), Err(EncodeError::MetaTooLong { found: MAX_META + 1 }));
}

#[test]
fn the_longest_header_is_read() {
    let full = Entry {
        target: "t".repeat(MAX_LABEL),
        what: "w".repeat(MAX_LABEL),
        library: "l".repeat(MAX_LABEL),
        meta: vec![9; MAX_META],
        ..entry()
    };
    let bytes = encode(&key(), &full, Codec::Zstd).unwrap();
    assert_eq!(decode(&bytes, Some(&key())).unwrap().1, full);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn entries_come_back(
        target in ".{0,60}", what in ".{0,60}", library in "[0-9.]{0,20}",
        meta in prop::collection::vec(any::<u8>(), 0..300),
        payload in prop::collection::vec(any::<u8>(), 0..3000),
        repeat in 1usize..20, plan in any::<bool>(), zstd in any::<bool>(), id in any::<[u8; 32]>(),
    ) {
        let kind = if plan { EntryKind::Plan } else { EntryKind::Refusal };
        let entry = Entry { kind, target, what, library, meta, payload: payload.repeat(repeat) };
        let codec = if zstd { Codec::Zstd } else { Codec::None };
        let bytes = encode(&Key(id), &entry, codec).unwrap();
        let (header, found) = decode(&bytes, Some(&Key(id))).unwrap();
        prop_assert_eq!(&found, &entry);
        prop_assert_eq!(header.file_len(), bytes.len() as u64);
        prop_assert_eq!(decode_header(&bytes[..header.header_len], None).unwrap(), header);
        prop_assert!(bytes.len() <= MAX_HEADER + entry.payload.len(), "storing never grows a payload");
    }

    #[test]
    fn any_bytes_are_answered(mut bytes in prop::collection::vec(any::<u8>(), 0..600), head in 0usize..5) {
        // Random bytes behind ever longer stretches of a good header, so that the later checks are reached too.
        let good = encode(&key(), &entry(), Codec::Zstd).unwrap();
        let keep = [0, 8, 16, 40, FIXED_LEN][head].min(bytes.len());
        bytes[..keep].copy_from_slice(&good[..keep]);
        prop_assert!(decode(&bytes, None).is_err());
        if bytes.len() > MIN_HEADER {
            let len = bytes.len() as u32;
            bytes[at::HEADER_LEN..at::KIND].copy_from_slice(&len.to_le_bytes());
            sign(&mut bytes);
            let _ = decode(&bytes, None);
        }
    }
}
