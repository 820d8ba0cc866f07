//! The memory that hostile packs take, measured: in a binary of its own, because other tests take memory too.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write;

use qkvault_cache::{PackError, STORE_FORMAT, UnpackOptions, Vault, VaultOptions, verify_pack};

/// The entry file of zeros under the key `[n; 32]`, as `docs/vault-format.md` describes it.
fn entry(n: u8, payload: &[u8], codec: u16) -> Vec<u8> {
    let stored = if codec == 0 { payload.to_vec() } else { zstd::bulk::compress(payload, 3).unwrap() };
    let mut out = b"\x93QKVE\r\n\x1a".to_vec();
    out.extend(1u16.to_le_bytes());
    out.extend(0u16.to_le_bytes());
    out.extend((136u32 + 32).to_le_bytes());
    out.push(1);
    out.extend(codec.to_le_bytes());
    out.extend([0; 5]);
    out.extend((stored.len() as u64).to_le_bytes());
    out.extend((payload.len() as u64).to_le_bytes());
    out.extend([n; 32]);
    out.extend(blake3::hash(payload).as_bytes());
    out.extend(blake3::hash(&stored).as_bytes());
    let checksum = blake3::hash(&out);
    out.extend(checksum.as_bytes());
    out.extend(stored);
    out
}

/// A pack of these entries with every checksum right.
fn pack(entries: &[Vec<u8>], window: u32) -> Vec<u8> {
    let mut manifest = Vec::new();
    let mut body = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    body.window_log(window).unwrap();
    for entry in entries {
        manifest.extend(&entry[40..72]);
        manifest.extend([1, 0, 0, 0]);
        manifest.extend((entry.len() as u64).to_le_bytes());
        body.write_all(entry).unwrap();
    }
    let body = body.finish().unwrap();
    let mut out = b"\x93QKVP\r\n\x1a".to_vec();
    out.extend(STORE_FORMAT.to_le_bytes());
    out.extend(0u16.to_le_bytes());
    out.extend((entries.len() as u32).to_le_bytes());
    let plain: usize = entries.iter().map(Vec::len).sum();
    for len in [manifest.len(), body.len(), plain] {
        out.extend((len as u64).to_le_bytes());
    }
    out.extend(blake3::hash(&manifest).as_bytes());
    out.extend(blake3::hash(&body).as_bytes());
    out.extend([0; 32]);
    let checksum = blake3::hash(&out);
    out.extend(checksum.as_bytes());
    [out, manifest, body].concat()
}

/// A line of `/proc/self/status`, in bytes.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap() * 1024
}

/// The most memory that `run` takes beyond what is in use before.
fn peak<T>(run: impl FnOnce() -> T) -> (T, u64) {
    // Makes the peak what is in use now.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS:");
    let result = run();
    (result, status("VmHWM:").saturating_sub(before))
}

/// A pack of 7 KB took 420 MB.
#[test]
fn audit_12_a_small_pack_takes_little_memory() {
    let limit = |pack: &[u8]| 64_000_000 + 20 * pack.len() as u64;
    let zeros = vec![0; 250 << 20];
    let hostile = [
        ("one large entry", pack(&[entry(1, &zeros, 0)], 27)),
        ("one that is compressed again", pack(&[entry(1, &zeros, 1)], 27)),
        ("a large window", pack(&(0..100).map(|n| entry(n, &zeros[..2 << 20], 0)).collect::<Vec<_>>(), 27)),
    ];
    drop(zeros);
    for (name, pack) in &hostile {
        assert!(pack.len() < 40_000, "{name}: {}", pack.len());
        let (found, bytes) = peak(|| verify_pack(&pack[..], &UnpackOptions::default()));
        let error = found.expect_err(name);
        assert!(bytes <= limit(pack), "{name}: {bytes} bytes for a pack of {}: {error}", pack.len());
        let compressed_twice = matches!(&error, PackError::EntryDiffers { field: "codec", .. });
        assert!(compressed_twice || error.to_string().contains(&limit(pack).to_string()), "{name}: {error}");
    }
    // The largest that the limits allow is stored within them.
    let honest = pack(&(0..20).map(|n| entry(n, &vec![n; 20 << 20], 0)).collect::<Vec<_>>(), 25);
    let folder = tempfile::tempdir().unwrap();
    let options = VaultOptions::in_folder(folder.path()).without_environment();
    let vault = Vault::open(options).unwrap();
    let (report, bytes) = peak(|| vault.unpack(&honest[..], |_| true, &UnpackOptions::default()).unwrap());
    assert_eq!(report.stored, 20);
    assert!(bytes <= limit(&honest), "{bytes} bytes for a pack of {}", honest.len());
}
