//! What the tests share: entries, keys, vaults in temporary folders.

use std::path::{Path, PathBuf};

use qkvault_cache::{Entry, EntryKind, Key, Vault, VaultOptions};

/// The nth key, spread over the folders like a real one.
pub(crate) fn key(n: u64) -> Key {
    let mut bytes = [0; 32];
    bytes[24..].copy_from_slice(&n.to_le_bytes());
    // A cheap mix, so that neighbours land in different folders.
    let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995;
    bytes[..8].copy_from_slice(&mixed.to_be_bytes());
    Key(bytes)
}

/// A plan for the nth key; its payload tells which.
pub(crate) fn plan(n: u64) -> Entry {
    plan_of(n, 2_000)
}

/// A plan with a payload of about `len` bytes that compresses roughly like a real one.
pub(crate) fn plan_of(n: u64, len: usize) -> Entry {
    let mut state = n.wrapping_add(1);
    let mut payload = format!("plan {n} ").into_bytes();
    while payload.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = (state >> 33) as u32;
        payload.extend_from_slice(format!("{:06x}", word & 0x3f_ffff).as_bytes());
        if word.is_multiple_of(5) {
            payload.extend_from_slice(&[b'A'; 40]);
        }
    }
    payload.truncate(len);
    Entry {
        kind: EntryKind::Plan,
        target: format!("sm_{}", 80 + n % 3),
        what: format!("attention {n}"),
        library: "9.27.0".into(),
        meta: n.to_le_bytes().to_vec(),
        payload,
    }
}

/// Bytes of a kernel's text in these tests, as in a small real plan.
const TEXT: usize = 40_000;

/// The nth plan of a family: JSON of its own around the kernel of the family.
pub(crate) fn member(family: u64, n: u64) -> Entry {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut state = family + 1;
    let mut text = String::with_capacity(TEXT);
    while text.len() < TEXT {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push(DIGITS[(state >> 58) as usize] as char);
    }
    let own = (0..40)
        .map(|i| format!("{{\"dim\":[{n},32,{},128],\"stride\":[{i},1]}}", n * 512))
        .collect::<Vec<_>>()
        .join(",");
    let payload = format!("{{\"tensors\":[{own}],\"kernels\":[{{\"cubin\":\"{text}\"}}]}}").into_bytes();
    Entry { payload, ..plan(n) }
}

pub(crate) fn refusal(library: &str) -> Entry {
    Entry {
        kind: EntryKind::Refusal,
        library: library.into(),
        payload: b"head dim 257 is not supported".to_vec(),
        ..plan(0)
    }
}

/// Options for a folder that look at nothing else and do not sync, for speed.
pub(crate) fn options(folder: &Path) -> VaultOptions {
    VaultOptions::in_folder(folder).without_environment().durable(false)
}

pub(crate) fn open(folder: &Path) -> Vault {
    Vault::open(options(folder)).expect("the folder can be used")
}

/// The file of a key.
pub(crate) fn file_of(folder: &Path, key: &Key) -> PathBuf {
    let name = key.to_string();
    folder.join("vault/v2/entries").join(&name[..2]).join(format!("{name}.qkv"))
}

/// Names in the quarantine folder.
pub(crate) fn quarantined(folder: &Path) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(folder.join("vault/v2/quarantine")) else {
        return Vec::new();
    };
    files.map(|file| file.expect("listed").file_name().to_string_lossy().into_owned()).collect()
}

/// Names of unfinished files anywhere among the entries.
pub(crate) fn leftovers(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for part in std::fs::read_dir(folder.join("vault/v2/entries")).into_iter().flatten().flatten() {
        for file in std::fs::read_dir(part.path()).into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().starts_with(".tmp-") {
                found.push(file.path());
            }
        }
    }
    found
}
