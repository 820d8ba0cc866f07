//! Packing a vault here and unpacking it there.

use std::io::Cursor;

use qkvault_cache::{
    DiskLimits, EntryKind, Header, Lookup, Mode, PackError, PackManifest, PackOptions, PackReport, SealKey, StoreError,
    UnpackOptions, Vault, verify_pack,
};

use super::kit::*;

fn sealed(key: u8) -> PackOptions {
    PackOptions { seal: Some(SealKey::new([key; 32])), ..PackOptions::default() }
}

fn opened(key: u8) -> UnpackOptions {
    UnpackOptions { seal: Some(SealKey::new([key; 32])), ..UnpackOptions::default() }
}

/// A pack of what `select` takes, as bytes.
fn pack_bytes(vault: &Vault, select: impl FnMut(&Header) -> bool, options: &PackOptions) -> (Vec<u8>, PackReport) {
    let mut bytes = Vec::new();
    let report = vault.pack(select, options, &mut bytes).unwrap();
    (bytes, report)
}

#[test]
fn a_vault_moves_whole_and_smaller() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let vault = open(from.path());
    let shared = plan_of(999, 60_000).payload;
    for n in 0..40 {
        let mut entry = plan(n);
        entry.payload.extend_from_slice(&shared);
        vault.put(&key(n), entry).unwrap();
    }
    vault.put(&key(99), refusal("9.27.0")).unwrap();
    let (pack, report) = pack_bytes(&vault, |_| true, &PackOptions::default());
    assert_eq!((report.entries, report.packed_bytes), (41, pack.len() as u64));
    assert!(report.packed_bytes * 5 < vault.usage().bytes, "{report:?} against {:?}", vault.usage());
    assert_eq!(pack_bytes(&vault, |_| true, &PackOptions::default()).0, pack, "the same bytes again");

    let other = open(to.path());
    let report = other.unpack(&pack[..], |_| true, &UnpackOptions::default()).unwrap();
    assert_eq!((report.entries, report.stored, report.already), (41, 41, 0));
    let fresh = open(to.path());
    for n in (0..40).chain([99]) {
        let (Lookup::Hit(here), Lookup::Hit(there)) = (vault.get(&key(n)), fresh.get(&key(n))) else { panic!("{n}") };
        assert_eq!(here, there);
    }
    let again = other.unpack(Cursor::new(&pack), |_| true, &UnpackOptions::default()).unwrap();
    assert_eq!((again.stored, again.already), (0, 41));
}

#[test]
fn selection_on_both_sides() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let vault = open(from.path());
    for n in 0..12 {
        vault.put(&key(n), plan(n)).unwrap();
    }
    let sm80 = |header: &Header| header.target == "sm_80";
    let (pack, report) = pack_bytes(&vault, sm80, &PackOptions::default());
    assert_eq!(report.entries, 4);
    let PackManifest { entries, .. } = verify_pack(&pack[..], &UnpackOptions::default()).unwrap();
    assert!(entries.iter().all(|line| line.target == "sm_80" && line.kind == EntryKind::Plan));
    let report = open(to.path()).unpack(&pack[..], |line| line.key == key(3), &UnpackOptions::default()).unwrap();
    assert_eq!((report.entries, report.selected, report.stored), (4, 1, 1));
    assert_eq!(open(to.path()).usage().entries, 1);
    let (empty, report) = pack_bytes(&vault, |_| false, &PackOptions::default());
    assert_eq!(report.entries, 0);
    assert!(verify_pack(&empty[..], &UnpackOptions::default()).unwrap().entries.is_empty());
}

#[test]
fn seals_are_demanded_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    vault.put(&key(1), plan(1)).unwrap();
    let (pack, _) = pack_bytes(&vault, |_| true, &sealed(1));
    verify_pack(&pack[..], &opened(1)).unwrap();
    assert!(matches!(verify_pack(&pack[..], &opened(2)), Err(PackError::Seal)));
    assert!(matches!(verify_pack(&pack[..], &UnpackOptions::default()), Err(PackError::SealKeyNeeded)));
    let (open_pack, _) = pack_bytes(&vault, |_| true, &PackOptions::default());
    assert!(matches!(verify_pack(&open_pack[..], &opened(1)), Err(PackError::NotSealed)));

    // The body of one sealed pack under the header of another.
    vault.put(&key(1), plan(2)).unwrap();
    let (other, _) = pack_bytes(&vault, |_| true, &sealed(1));
    let mixed = [&pack[..168], &other[168..]].concat();
    assert!(verify_pack(&mixed[..], &opened(1)).is_err());
}

#[test]
fn a_bad_pack_stores_nothing_at_all() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let vault = open(from.path());
    for n in 0..5 {
        vault.put(&key(n), plan(n)).unwrap();
    }
    let (mut pack, _) = pack_bytes(&vault, |_| true, &PackOptions::default());
    *pack.last_mut().unwrap() ^= 1;
    let other = open(to.path());
    assert!(other.unpack(&pack[..], |_| true, &UnpackOptions::default()).is_err());
    assert_eq!(other.usage().entries, 0);
}

#[test]
fn bad_entries_are_left_out_of_a_pack_and_told() {
    let (low, top) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    open(low.path()).put(&key(1), plan(1)).unwrap();
    let vault = Vault::open(options(top.path()).layers([low.path().to_owned()])).unwrap();
    vault.put(&key(1), plan(1)).unwrap();
    vault.put(&key(2), plan(2)).unwrap();
    // Good headers, bad payloads: found only when read in full.
    for n in [1, 2] {
        let path = file_of(top.path(), &key(n));
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(path, bytes).unwrap();
    }
    let (pack, report) = pack_bytes(&vault, |_| true, &PackOptions::default());
    assert_eq!((report.entries, report.skipped.len()), (1, 1), "{report:?}");
    let manifest = verify_pack(&pack[..], &UnpackOptions::default()).unwrap();
    assert_eq!(manifest.entries[0].key, key(1), "the good one below is packed");
}

#[test]
fn a_pack_file_appears_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    vault.put(&key(1), plan(1)).unwrap();
    let path = folder.path().join("out.qkvpack");
    let report = vault.pack_file(|_| true, &PackOptions::default(), &path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), report.packed_bytes);
    let missing = folder.path().join("no/such/folder/out.qkvpack");
    let error = vault.pack_file(|_| true, &PackOptions::default(), &missing).unwrap_err();
    assert!(matches!(error, PackError::Io { .. }), "{error}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().map(|file| file.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(".pack-")), "{left:?}");
}

#[test]
fn unpacking_needs_a_writable_vault_and_renews_what_memory_holds() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let vault = open(from.path());
    vault.put(&key(1), plan(1)).unwrap();
    let (pack, _) = pack_bytes(&vault, |_| true, &PackOptions::default());
    let ro = Vault::open(options(to.path()).mode(Mode::ReadOnly)).unwrap();
    let error = ro.unpack(&pack[..], |_| true, &UnpackOptions::default()).unwrap_err();
    assert!(matches!(error, PackError::Store(StoreError::NotWritable { mode: "ro" })), "{error}");

    let other = open(to.path());
    other.put(&key(1), refusal("9.27.0")).unwrap();
    let report = other.unpack(&pack[..], |_| true, &UnpackOptions::default()).unwrap();
    assert_eq!(report.stored, 1, "a plan replaces a refusal");
    assert!(matches!(other.get(&key(1)), Lookup::Hit(entry) if *entry == plan(1)));
    other.gc(&DiskLimits::default()).unwrap();
}
