//! Vaults of an older format: told, never read, deleted on demand.

use std::path::Path;

use qkvault_cache::{Depth, Lookup, Mode, STORE_FORMAT, Source, StoreError, Vault};

use super::kit::*;

/// A vault as a program of format 1 left it: entries that every check finds good, a lock, and a file of somebody's.
fn old(folder: &Path, entries: u64) {
    for n in 0..entries {
        open(folder).put(&key(n), plan(n)).unwrap();
    }
    std::fs::rename(inside(folder), folder.join("vault/v1")).unwrap();
    std::fs::write(folder.join("vault/v1/locks").join(format!("{}.lock", key(9))), b"").unwrap();
    std::fs::write(folder.join("vault/v1/entries/notes.txt"), b"somebody's own").unwrap();
}

#[test]
fn entries_of_an_older_format_are_a_miss_and_are_named() {
    let folder = tempfile::tempdir().unwrap();
    old(folder.path(), 3);
    let vault = open(folder.path());
    for n in 0..3 {
        assert!(matches!(vault.get(&key(n)), Lookup::Absent), "an old key is nobody's");
    }
    assert_eq!(vault.ls().count(), 0);
    assert_eq!((vault.verify(Depth::Payload).bad.len(), vault.stats().rejected()), (0, 0), "old is not bad");
    let older = vault.older();
    assert_eq!(older.len(), 1);
    assert_eq!((older[0].format, older[0].entries, older[0].source), (1, 3, Source::Disk));
    assert_eq!(older[0].path, folder.path().join("vault/v1"));
    assert!(older[0].bytes > 300, "{older:?}");
    let text = older[0].to_string();
    for part in ["vault/v1", "3 entries", "format 1", &format!("format {STORE_FORMAT}"), "qkvault cache gc"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // What is built now stands beside it.
    vault.put(&key(0), plan(0)).unwrap();
    assert!(matches!(open(folder.path()).get(&key(0)), Lookup::Hit(_)));
    assert_eq!(vault.older(), older, "and is not counted with it");
}

#[test]
fn what_an_older_format_left_is_deleted_on_demand_and_only_that() {
    let folder = tempfile::tempdir().unwrap();
    old(folder.path(), 4);
    let vault = open(folder.path());
    vault.put(&key(7), plan(7)).unwrap();
    let limits = vault.settings().limits;
    vault.gc(&limits).unwrap();
    assert_eq!(vault.older().len(), 1, "a collection by itself leaves it: an older program may be running");
    let gone = vault.clear_older().unwrap();
    assert_eq!((gone.len(), gone[0].entries), (1, 4));
    assert!(vault.older().iter().all(|older| older.entries == 0));
    assert_eq!(std::fs::read(folder.path().join("vault/v1/entries/notes.txt")).unwrap(), b"somebody's own");
    assert_eq!(std::fs::read_dir(folder.path().join("vault/v1")).unwrap().count(), 1, "the folders that are empty go");
    assert!(matches!(open(folder.path()).get(&key(7)), Lookup::Hit(_)));
    std::fs::remove_file(folder.path().join("vault/v1/entries/notes.txt")).unwrap();
    vault.clear_older().unwrap();
    assert!(!folder.path().join("vault/v1").exists());
}

/// Format 2 kept kernels in files of their own beside the entries.
#[test]
fn the_blobs_of_format_2_are_no_entries_and_are_cleared_with_them() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).put(&key(1), plan(1)).unwrap();
    let entry = std::fs::metadata(file_of(folder.path(), &key(1))).unwrap().len();
    let v2 = folder.path().join("vault/v2");
    std::fs::rename(inside(folder.path()), &v2).unwrap();
    let name = key(2).to_string();
    let blobs = v2.join("blobs").join(&name[..2]);
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join(format!("{name}.qkv")), [7; 1000]).unwrap();
    let vault = open(folder.path());
    assert!(matches!(vault.get(&key(1)), Lookup::Absent));
    let older = vault.older();
    assert_eq!((older.len(), older[0].format, older[0].entries, older[0].bytes), (1, 2, 1, entry + 1000));
    assert_eq!(vault.clear_older().unwrap(), older);
    assert!(!v2.exists());
}

#[test]
fn an_older_layer_is_named_and_never_written() {
    let (low, top) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    old(low.path(), 2);
    let vault = Vault::open(options(top.path()).layers([low.path().to_owned()])).unwrap();
    assert!(matches!(vault.get(&key(1)), Lookup::Absent));
    let older = vault.older();
    assert_eq!((older.len(), older[0].source, older[0].entries), (1, Source::Layer(0), 2));
    assert!(older[0].to_string().contains("warmed again"), "{}", older[0]);
    assert_eq!(vault.clear_older().unwrap(), []);
    assert_eq!(vault.older(), older);
    let read_only = Vault::open(options(low.path()).mode(Mode::ReadOnly)).unwrap();
    assert!(matches!(read_only.clear_older(), Err(StoreError::NotWritable { .. })));
}

#[test]
fn what_a_newer_version_left_is_not_touched_and_a_link_not_followed() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    old(folder.path(), 1);
    std::fs::rename(folder.path().join("vault/v1"), folder.path().join(format!("vault/v{}", STORE_FORMAT + 1)))
        .unwrap();
    open(elsewhere.path()).put(&key(1), plan(1)).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(inside(elsewhere.path()), folder.path().join("vault/v1")).unwrap();
    let vault = open(folder.path());
    assert_eq!(vault.older(), []);
    assert_eq!(vault.clear_older().unwrap(), []);
    assert!(matches!(open(elsewhere.path()).get(&key(1)), Lookup::Hit(_)));
}
