//! The manual and the code must tell the same.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use qkvault_cache::{Entry, EntryKind, Key, RejectionCause, Vault, VaultOptions};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of variables in a text.
fn variables(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("QKVAULT_CACHE") || word.starts_with("QKVAULT_REMOTE")).collect()
}

#[test]
fn every_variable_that_is_read_is_in_the_table() {
    let manual = read("docs/vault.md");
    let table: String = manual.lines().filter(|line| line.starts_with("| `QKVAULT_")).collect();
    let code = read("crates/cache/src/env.rs") + &read("crates/cache/src/vault.rs");
    assert_eq!(variables(&table), variables(&code));
}

#[test]
fn every_cause_is_in_the_table_in_the_order_of_the_checks() {
    let format = read("docs/vault-format.md");
    let rows = format.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let mut told: Vec<&str> = rows.map(|(name, _)| name).collect();
    // One cause is met twice, with and without compression; the code lists it at its later place.
    let first = told.iter().position(|name| *name == "payload-length").unwrap();
    told.remove(first);
    assert_eq!(told, RejectionCause::ALL.map(RejectionCause::code));
}

#[test]
fn the_table_of_the_entry_has_the_fields_where_the_code_puts_them() {
    let (key, library) = (Key([0xab; 32]), "9.27.0");
    let entry = Entry {
        kind: EntryKind::Refusal,
        library: library.into(),
        target: "target".into(),
        what: "what it is".into(),
        meta: vec![1, 2, 3],
        payload: vec![b'x'; 5_000],
    };
    let folder = tempfile::tempdir().unwrap();
    let vault = Vault::open(VaultOptions::in_folder(folder.path()).without_environment()).unwrap();
    vault.put(&key, entry.clone()).unwrap();
    let bytes = std::fs::read(vault.ls().next().unwrap().path).unwrap();
    let format = read("docs/vault-format.md");
    let section = format.split("## Entry").nth(1).unwrap().split("## Pack").next().unwrap();
    // A cell of the row of a field: 1 is the offset, 2 the length, 4 the value.
    let cell = |name: &str, n: usize| {
        let row = section.lines().find(|line| line.split('|').nth(3).is_some_and(|cell| cell.trim() == name));
        let row = row.unwrap_or_else(|| panic!("no row for {name}"));
        row.split('|').nth(n).unwrap().trim().parse::<usize>().unwrap()
    };
    let field = |name: &str| -> &[u8] { &bytes[cell(name, 1)..][..cell(name, 2)] };
    let number = |name: &str| {
        let mut wide = [0; 8];
        let bytes = field(name);
        wide[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(wide) as usize
    };
    assert_eq!(field("magic"), [0x93, b'Q', b'K', b'V', b'E', 0x0d, 0x0a, 0x1a]);
    assert_eq!((number("format version"), number("flags")), (cell("format version", 4), 0));
    assert_eq!((number("kind"), number("codec")), (2, 1));
    let lengths = ["library length", "target length", "what length", "meta length"].map(number);
    assert_eq!(lengths, [6, 6, 10, 3]);
    let header = number("header length");
    // The labels begin where the fixed part ends; a checksum ends the header.
    let (labels, checksum) = (cell("library", 1), cell("header checksum", 2));
    assert_eq!(header, labels + checksum + lengths.iter().sum::<usize>());
    assert!(section.contains(&format!("H = {} + L + T + W + M", labels + checksum)));
    assert_eq!(header + number("stored length"), bytes.len());
    assert_eq!(number("payload length"), 5_000);
    assert_eq!(field("key"), key.0);
    assert_eq!(field("payload hash"), blake3::hash(&entry.payload).as_bytes());
    assert_eq!(field("stored hash"), blake3::hash(&bytes[header..]).as_bytes());
    assert_eq!(&bytes[header - checksum..header], blake3::hash(&bytes[..header - checksum]).as_bytes());
    assert_eq!(&bytes[labels..][..library.len()], library.as_bytes());
}
