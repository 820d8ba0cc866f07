//! What the tests share: entries, keys, vaults in temporary folders.

use std::path::{Path, PathBuf};

use qkvault_cache::{Entry, EntryKind, Key, STORE_FORMAT, Vault, VaultOptions};

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

/// What a vault keeps in this folder.
pub(crate) fn inside(folder: &Path) -> PathBuf {
    folder.join(format!("vault/v{STORE_FORMAT}"))
}

/// The file of a key.
pub(crate) fn file_of(folder: &Path, key: &Key) -> PathBuf {
    let name = key.to_string();
    inside(folder).join("entries").join(&name[..2]).join(format!("{name}.qkv"))
}

/// The bytes of the file that a vault writes for an entry.
pub(crate) fn file(key: &Key, entry: Entry) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).put(key, entry).unwrap();
    std::fs::read(file_of(folder.path(), key)).unwrap()
}

/// Names in the quarantine folder.
pub(crate) fn quarantined(folder: &Path) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(inside(folder).join("quarantine")) else {
        return Vec::new();
    };
    files.map(|file| file.expect("listed").file_name().to_string_lossy().into_owned()).collect()
}

/// Names of unfinished files anywhere among the entries.
pub(crate) fn leftovers(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for part in std::fs::read_dir(inside(folder).join("entries")).into_iter().flatten().flatten() {
        for file in std::fs::read_dir(part.path()).into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().starts_with(".tmp-") {
                found.push(file.path());
            }
        }
    }
    found
}
