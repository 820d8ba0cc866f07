//! Tests of the pack format from inside: what a hostile writer could make with all outer checksums right.

use std::io::Write;

use super::*;
use crate::format::{Codec, encode};
use crate::{Entry, EntryKind, Key, golden};

fn entry(n: u8) -> Entry {
    Entry {
        kind: EntryKind::Plan,
        target: "sm_90".into(),
        what: format!("attention {n}"),
        library: "9.27.0".into(),
        meta: vec![n],
        payload: vec![n; 500],
    }
}

fn bytes(n: u8) -> Vec<u8> {
    encode(&Key([n; 32]), &entry(n), Codec::None).unwrap()
}

fn line(n: u8) -> ManifestEntry {
    let Entry { kind, target, what, library, .. } = entry(n);
    ManifestEntry { key: Key([n; 32]), kind, library, target, what, bytes: bytes(n).len() as u64 }
}

fn compress(plain: &[u8], window: u32) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    encoder.window_log(window).unwrap();
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// A pack whose checksums are right, whatever is in it.
fn craft(lines: &[ManifestEntry], body: &[u8], change: impl FnOnce(&mut PackHeader)) -> Vec<u8> {
    let manifest = PackManifest { entries: lines.to_vec() };
    let encoded = manifest.encode();
    let mut header = PackHeader {
        entries: lines.len() as u32,
        manifest_len: encoded.len() as u64,
        body_len: body.len() as u64,
        plain_len: manifest.plain_len(),
        manifest_hash: *blake3::hash(&encoded).as_bytes(),
        body_hash: *blake3::hash(body).as_bytes(),
    };
    change(&mut header);
    [&header.encode(None)[..], &encoded, body].concat()
}

fn verify(pack: &[u8]) -> Result<PackManifest, PackError> {
    verify_pack(pack, &UnpackOptions::default())
}

fn both() -> (Vec<ManifestEntry>, Vec<u8>) {
    (vec![line(1), line(2)], [bytes(1), bytes(2)].concat())
}

#[test]
fn a_crafted_pack_is_good_when_nothing_is_wrong() {
    let (lines, plain) = both();
    let pack = craft(&lines, &compress(&plain, 17), |_| {});
    assert_eq!(verify(&pack).unwrap().entries, lines);
}

#[test]
fn golden() {
    // Compressed bytes may differ with the version of zstd; the header's layout and the manifest are pinned, and that
    // an old pack is read. When this fails, raise PACK_VERSION.
    let golden = golden::read(&golden::pack());
    let (lines, plain) = both();
    assert_eq!(verify(&golden).unwrap().entries, lines);
    let pack = craft(&lines, &compress(&plain, 17), |_| {});
    let manifest_end = PACK_HEADER + PackManifest { entries: lines }.encode().len();
    assert_eq!(golden[..at::BODY_LEN], pack[..at::BODY_LEN]);
    assert_eq!(golden[at::PLAIN_LEN..at::BODY_HASH], pack[at::PLAIN_LEN..at::BODY_HASH]);
    assert_eq!(golden[PACK_HEADER..manifest_end], pack[PACK_HEADER..manifest_end]);
}

/// `cargo test -p qkvault-cache write_golden -- --ignored` writes a new golden file, after a deliberate change.
#[test]
#[ignore = "writes the golden file"]
fn write_golden() {
    let (lines, plain) = both();
    std::fs::write(golden::pack(), craft(&lines, &compress(&plain, 17), |_| {})).unwrap();
}

#[test]
fn a_body_that_grows_beyond_what_is_declared_is_refused() {
    // 64 MiB of zeros in a few KB, behind two good entries.
    let (lines, mut plain) = both();
    plain.resize(plain.len() + (64 << 20), 0);
    let found = verify(&craft(&lines, &compress(&plain, 17), |_| {}));
    assert!(matches!(found, Err(PackError::Body { .. })), "{found:?}");
}

#[test]
fn what_is_declared_is_limited_before_it_is_read() {
    let (lines, plain) = both();
    let body = compress(&plain, 17);
    type HeaderChange = fn(&mut PackHeader);
    let changes: [(&str, HeaderChange); 4] = [
        ("entries", |header| header.entries = u32::MAX),
        ("bytes of manifest", |header| header.manifest_len = u64::MAX),
        ("bytes of body", |header| header.body_len = u64::MAX),
        ("bytes of entries", |header| header.plain_len = u64::MAX),
    ];
    for (expected, change) in changes {
        match verify(&craft(&lines, &body, change)) {
            Err(PackError::TooLarge { what, .. }) => assert_eq!(what, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    let small = PackLimits { entries: 1, ..PackLimits::default() };
    let options = UnpackOptions { limits: small, ..UnpackOptions::default() };
    let found = verify_pack(&craft(&lines, &body, |_| {})[..], &options);
    assert!(matches!(found, Err(PackError::TooLarge { what: "entries", .. })), "{found:?}");
}

#[test]
fn an_entry_with_a_forged_length_is_refused() {
    let (mut lines, plain) = both();
    for len in [0, 10, u64::MAX] {
        lines[0].bytes = len;
        let found = verify(&craft(&lines, &compress(&plain, 17), |header| header.plain_len = 5));
        assert!(matches!(found, Err(PackError::Manifest { at: 0, .. })), "{len}: {found:?}");
    }
    lines[0].bytes = line(1).bytes + 1;
    let found = verify(&craft(&lines, &compress(&plain, 17), |_| {}));
    assert!(matches!(found, Err(PackError::Entry { .. })), "{found:?}");
    let found = verify(&craft(&lines, &compress(&plain, 17), |header| header.plain_len -= 1));
    assert!(matches!(found, Err(PackError::Manifest { at: 2, .. })), "{found:?}");
}

#[test]
fn a_manifest_that_lies_about_an_entry_is_refused() {
    type LineChange = fn(&mut ManifestEntry);
    let changes: [(&str, LineChange); 4] = [
        ("kind", |line| line.kind = EntryKind::Refusal),
        ("library", |line| line.library = "9.19.0".into()),
        ("target", |line| line.target = "sm_100".into()),
        ("what", |line| line.what.push('!')),
    ];
    for (expected, change) in changes {
        let (mut lines, plain) = both();
        change(&mut lines[1]);
        match verify(&craft(&lines, &compress(&plain, 17), |_| {})) {
            Err(PackError::EntryDiffers { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    let (mut lines, plain) = both();
    lines.swap(0, 1);
    let found = verify(&craft(&lines, &compress(&plain, 17), |_| {}));
    assert!(matches!(found, Err(PackError::Entry { .. })), "{found:?}");
    let twice = [line(1), line(1)];
    let found = verify(&craft(&twice, &compress(&[bytes(1), bytes(1)].concat(), 17), |_| {}));
    assert!(matches!(found, Err(PackError::Manifest { at: 1, .. })), "{found:?}");
}

#[test]
fn a_compressed_entry_inside_the_stream_is_refused() {
    let inner = encode(&Key([1; 32]), &entry(1), Codec::Zstd).unwrap();
    let lines = [ManifestEntry { bytes: inner.len() as u64, ..line(1) }];
    let found = verify(&craft(&lines, &compress(&inner, 17), |_| {}));
    assert!(matches!(found, Err(PackError::EntryDiffers { field: "codec", .. })), "{found:?}");
}

#[test]
fn a_window_beyond_the_limit_is_refused() {
    let (lines, plain) = both();
    let found = verify(&craft(&lines, &compress(&plain, 30), |_| {}));
    assert!(matches!(found, Err(PackError::Body { .. })), "{found:?}");
}

#[test]
fn a_second_frame_and_bytes_behind_are_refused() {
    let (lines, plain) = both();
    let body = compress(&plain, 17);
    for extra in [compress(b"more", 17), compress(b"", 17), vec![0]] {
        let found = verify(&craft(&lines, &[body.clone(), extra].concat(), |_| {}));
        assert!(matches!(found, Err(PackError::Body { .. })), "{found:?}");
    }
    let pack = [craft(&lines, &body, |_| {}), vec![0]].concat();
    assert!(matches!(verify(&pack), Err(PackError::Trailing)));
}

#[test]
fn every_flipped_byte_and_every_cut_is_refused() {
    let (lines, plain) = both();
    let good = craft(&lines, &compress(&plain, 17), |_| {});
    for at in 0..good.len() {
        let mut pack = good.clone();
        pack[at] ^= 0x10;
        assert!(verify(&pack).is_err(), "byte {at} flipped");
        assert!(verify(&good[..at]).is_err(), "cut to {at}");
    }
}

#[test]
fn other_archives_are_not_packs() {
    // The start of a tar, a zip, a gzip and a zstd stream.
    for start in [&b"../../etc/passwd\0"[..], b"PK\x03\x04", b"\x1f\x8b\x08\0", b"\x28\xb5\x2f\xfd"] {
        let bytes = [start, &[0; 600]].concat();
        assert!(matches!(verify(&bytes), Err(PackError::Magic { .. })));
    }
}

/// Unpacked, its entries would lie under keys that nobody asks for, and nobody would know.
#[test]
fn a_pack_of_an_older_format_is_refused_with_both_numbers() {
    let old = include_bytes!("golden-v1.qkvpack");
    let error = verify(old).expect_err("format 1");
    assert!(matches!(error, PackError::Version { found: 1, expected: PACK_VERSION }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("format 1") && text.contains(&format!("format {PACK_VERSION}")) && text.contains("pack again"),
        "{text}"
    );
}

#[test]
fn an_unknown_flag_or_version_is_refused() {
    let (lines, plain) = both();
    let good = craft(&lines, &compress(&plain, 17), |_| {});
    let with = |place: usize, value: u16| {
        let mut pack = good.clone();
        pack[place..place + 2].copy_from_slice(&value.to_le_bytes());
        let checksum = blake3::hash(&pack[..at::CHECKSUM]);
        pack[at::CHECKSUM..PACK_HEADER].copy_from_slice(checksum.as_bytes());
        verify(&pack)
    };
    let newer = PACK_VERSION + 1;
    assert!(matches!(with(at::VERSION, newer), Err(PackError::Version { found, .. }) if found == newer));
    assert!(matches!(with(at::FLAGS, 2), Err(PackError::Flags { found: 2 })));
    assert!(matches!(with(at::FLAGS, 1), Err(PackError::SealKeyNeeded)));
}

/// Cleared, the flag let a sealed pack pass as one that was never sealed.
#[test]
fn audit_14_seal_bytes_in_a_pack_that_is_marked_as_unsealed_are_refused() {
    let (lines, plain) = both();
    let mut pack = craft(&lines, &compress(&plain, 17), |_| {});
    for place in [at::SEAL, at::SEAL + 13, at::CHECKSUM - 1] {
        pack[place] = 1;
        let checksum = blake3::hash(&pack[..at::CHECKSUM]);
        pack[at::CHECKSUM..PACK_HEADER].copy_from_slice(checksum.as_bytes());
        assert!(matches!(verify(&pack), Err(PackError::SealWithoutFlag)), "byte {place}");
        let key = UnpackOptions { seal: Some(SealKey::new([1; 32])), ..UnpackOptions::default() };
        assert!(matches!(verify_pack(&pack[..], &key), Err(PackError::SealWithoutFlag)), "with a key too");
        pack[place] = 0;
    }
}

#[test]
fn a_seal_that_is_required_is_demanded_of_every_pack() {
    let (lines, plain) = both();
    let pack = craft(&lines, &compress(&plain, 17), |_| {});
    let required = UnpackOptions { require_seal: true, ..UnpackOptions::default() };
    let error = verify_pack(&pack[..], &required).expect_err("unsealed");
    assert!(matches!(error, PackError::SealRequired), "{error}");
    assert!(error.to_string().contains("qkvault pack --seal FILE"), "{error}");
}

/// The limit is told, and nothing is decompressed. `tests/pack_memory.rs` measures the memory.
#[test]
fn audit_12_a_pack_whose_entries_take_more_memory_than_its_size_allows_is_refused() {
    let huge = ManifestEntry { bytes: 200 << 20, ..line(1) };
    let pack = craft(&[huge], &compress(b"", 17), |_| {});
    match verify(&pack) {
        Err(PackError::TooLarge { what, declared, limit }) => {
            assert!(what.contains("memory"), "{what}");
            assert!(declared > 200 << 20, "{declared}");
            assert_eq!(limit, 64_000_000 + 20 * pack.len() as u64);
        }
        other => panic!("{other:?}"),
    }
    // A window counts as far as it can fill.
    let many: Vec<_> = (0..60).map(|n| ManifestEntry { key: Key([n; 32]), bytes: 2 << 20, ..line(1) }).collect();
    for (window, fits) in [(25, true), (27, false)] {
        // The head of a frame whose content has no declared size.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0, (window - 10) << 3];
        let found = verify(&craft(&many, &frame, |_| {}));
        let refused = matches!(found, Err(PackError::TooLarge { declared: 120_000_000.., .. }));
        assert_eq!(!refused, fits, "{window}: {found:?}");
    }
    let trusted = PackLimits { memory_bytes: 1 << 30, ..PackLimits::default() };
    let options = UnpackOptions { limits: trusted, ..UnpackOptions::default() };
    assert!(matches!(verify_pack(&pack[..], &options), Err(PackError::Body { .. })), "whoever trusts it may");
}
