//! Who may write where the vault reads.
#![cfg(unix)]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use qkvault_cache::{Depth, Lookup, Mode, OpenError, Rejection, STORE_FORMAT, StoreError, Vault};

use super::kit::*;

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn what_the_vault_makes_is_private() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("a/b");
    let vault = open(&folder);
    vault.put(&key(1), plan(1)).unwrap();
    let file = file_of(&folder, &key(1));
    for path in [folder.clone(), folder.join("vault"), inside(&folder).join("entries"), file.parent().unwrap().into()] {
        assert_eq!(mode(&path), 0o700, "{}", path.display());
    }
    assert_eq!(mode(&file) & 0o077, 0);
    let tag = fs::read_to_string(folder.join("CACHEDIR.TAG")).unwrap();
    assert!(tag.starts_with("Signature: 8a477f597d28d172789f06886806bc55"));
}

#[test]
fn a_folder_that_others_can_write_to_is_refused_unless_asked() {
    let version = format!("vault/v{STORE_FORMAT}");
    for inner in ["", "vault", &version, &format!("{version}/entries")] {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path()).put(&key(1), plan(1)).unwrap();
        for open_to in [0o770, 0o702, 0o777] {
            chmod(&folder.path().join(inner), open_to);
            for mode in [Mode::ReadWrite, Mode::ReadOnly] {
                let error = Vault::open(options(folder.path()).mode(mode)).unwrap_err();
                assert!(matches!(&error, OpenError::Untrusted { .. }), "{inner}: {error}");
                let text = error.to_string();
                assert!(text.contains("chmod go-w") && text.contains("QKVAULT_CACHE_ALLOW_SHARED"), "{text}");
            }
            let top = tempfile::tempdir().unwrap();
            let layered = options(top.path()).layers([folder.path().to_owned()]);
            assert!(matches!(Vault::open(layered), Err(OpenError::Untrusted { .. })), "as a layer too");
            let asked = Vault::open(options(folder.path()).allow_shared_writable(true)).unwrap();
            assert!(matches!(asked.get(&key(1)), Lookup::Hit(_)));
        }
    }
}

#[test]
fn a_folder_under_one_that_everyone_can_change_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("inner");
    drop(open(&folder));
    chmod(parent.path(), 0o777);
    assert!(matches!(Vault::open(options(&folder)), Err(OpenError::Untrusted { .. })));
    // Sticky, like the system's temporary folder: nobody can rename what belongs to others.
    chmod(parent.path(), 0o1777);
    drop(open(&folder));
}

#[test]
fn a_part_or_file_that_others_can_write_to_is_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let vault = Vault::open(options(folder.path()).memory(0, 0)).unwrap();
    vault.put(&key(1), plan(1)).unwrap();
    let file = file_of(folder.path(), &key(1));
    chmod(&file, 0o666);
    assert!(matches!(vault.get(&key(1)), Lookup::Rejected(Rejection::Untrusted { .. })));
    assert!(file.exists(), "it may be a good entry, so it stays");
    chmod(&file, 0o644);
    assert!(matches!(vault.get(&key(1)), Lookup::Hit(_)));
    chmod(file.parent().unwrap(), 0o777);
    assert!(matches!(vault.get(&key(1)), Lookup::Rejected(Rejection::Untrusted { .. })));
    assert!(matches!(vault.put(&key(1), plan(1)), Err(StoreError::Untrusted { .. })));
    assert!(leftovers(folder.path()).is_empty());
}

#[test]
fn nothing_is_written_or_listed_through_a_link() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let vault = open(folder.path());
    let part = file_of(folder.path(), &key(1)).parent().unwrap().to_owned();
    symlink(elsewhere.path(), &part).unwrap();
    let error = vault.put(&key(1), plan(1)).unwrap_err();
    assert!(matches!(&error, StoreError::Untrusted { .. }), "{error}");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);

    // What lies behind the link is neither served, listed nor cleared.
    let other = tempfile::tempdir().unwrap();
    open(other.path()).put(&key(1), plan(1)).unwrap();
    let real = file_of(other.path(), &key(1));
    fs::copy(&real, elsewhere.path().join(real.file_name().unwrap())).unwrap();
    assert!(matches!(open(folder.path()).get(&key(1)), Lookup::Rejected(Rejection::Untrusted { .. })));
    assert_eq!(vault.ls().count(), 0);
    vault.clear().unwrap();
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
}

#[test]
fn a_shared_vault_is_left_to_the_umask() {
    let folder = tempfile::tempdir().unwrap();
    chmod(folder.path(), 0o777);
    let vault = Vault::open(options(folder.path()).allow_shared_writable(true)).unwrap();
    vault.put(&key(1), plan(1)).unwrap();
    let file = file_of(folder.path(), &key(1));
    assert_eq!(mode(&file) & 0o044, mode(file.parent().unwrap()) & 0o044, "readable as far as its folder is");
}

/// Spoils the entry of a key, and lets the vault find that.
fn reject(folder: &Path, n: u64) {
    let vault = Vault::open(options(folder).memory(0, 0)).unwrap();
    vault.put(&key(n), plan(n)).unwrap();
    fs::write(file_of(folder, &key(n)), b"spoiled").unwrap();
    assert!(matches!(vault.get(&key(n)), Lookup::Rejected(_)));
}

#[test]
fn audit_11_trimming_the_quarantine_touches_only_files_that_the_vault_moved_there() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    reject(folder.path(), 0);
    let aside = inside(folder.path()).join("quarantine");
    let old = std::time::SystemTime::UNIX_EPOCH;
    let mut foreign = vec![aside.join("notes.txt"), aside.join("0"), aside.join(format!("{}.qkv", key(1)))];
    foreign.extend((0..100).map(|n| aside.join(format!("{}.magic.{n}-0.bak", key(n)))));
    for path in &foreign {
        fs::write(path, b"foreign").unwrap();
        fs::File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
    }
    // A link and a folder under names that the vault gives.
    let target = elsewhere.path().join("target");
    fs::write(&target, b"foreign").unwrap();
    symlink(&target, aside.join(format!("{}.magic.1-1", key(1)))).unwrap();
    fs::create_dir(aside.join(format!("{}.magic.1-2", key(1)))).unwrap();
    for n in 1..=80 {
        reject(folder.path(), n);
    }
    let left = quarantined(folder.path()).len();
    assert_eq!(left, foreign.len() + 2 + 64, "its own 64 and every other file");
    assert!(foreign.iter().chain([&target]).all(|path| path.exists()));
    assert_eq!(open(folder.path()).usage().quarantined, 64);

    open(folder.path()).clear().unwrap();
    assert_eq!(quarantined(folder.path()).len(), foreign.len() + 2, "`clear` spares them too");
}

#[test]
fn audit_11_nothing_is_moved_or_deleted_through_a_link_in_place_of_the_quarantine() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(open(folder.path()));
    let aside = inside(folder.path()).join("quarantine");
    fs::remove_dir(&aside).unwrap();
    symlink(elsewhere.path(), &aside).unwrap();
    let victims: Vec<_> = (0..70).map(|n| elsewhere.path().join(format!("{}.magic.1-{n}", key(n)))).collect();
    victims.iter().for_each(|path| fs::write(path, b"foreign").unwrap());
    for n in 0..3 {
        reject(folder.path(), n);
    }
    assert!(file_of(folder.path(), &key(0)).exists(), "the bad entry stays in its place");
    assert_eq!(open(folder.path()).usage().quarantined, 0);
    open(folder.path()).clear().unwrap();
    assert!(victims.iter().all(|path| path.exists()));
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), victims.len());
}

#[test]
fn audit_11_a_collection_deletes_no_foreign_locks_and_writes_through_no_link() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let target = elsewhere.path().join("target");
    fs::write(&target, b"foreign").unwrap();
    symlink(&target, folder.path().join("CACHEDIR.TAG")).unwrap();
    let vault = open(folder.path());
    symlink(&target, inside(folder.path()).join("gc.stamp")).unwrap();
    let locks = inside(folder.path()).join("locks");
    let old = std::time::SystemTime::UNIX_EPOCH;
    for name in ["notes.txt".to_owned(), format!("{}.lock", key(1))] {
        fs::File::create(locks.join(name)).unwrap().set_modified(old).unwrap();
    }
    // The first write stamps.
    vault.put(&key(1), plan(1)).unwrap();
    assert_eq!(vault.gc(&qkvault_cache::DiskLimits::default()).unwrap().leftovers, 1);
    assert!(locks.join("notes.txt").exists());
    assert_eq!(fs::read(&target).unwrap(), b"foreign");
}

/// Everything that a writer of the folder can put where entries lie.
#[test]
fn a_check_of_a_hostile_store_is_total() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let vault = open(folder.path());
    for n in 0..9 {
        vault.put(&key(n), plan(n)).unwrap();
    }
    let place = |n| file_of(folder.path(), &key(n));
    let good = fs::read(place(0)).unwrap();
    (1..9).for_each(|n| fs::remove_file(place(n)).unwrap());
    fs::create_dir(place(1)).unwrap();
    symlink("/dev/zero", place(2)).unwrap();
    symlink(elsewhere.path().join("nowhere"), place(3)).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(place(4)).status().unwrap().success());
    fs::File::create(place(5)).unwrap().set_len(1 << 40).unwrap();
    for (n, bytes) in [(6, &b""[..]), (7, &good[..]), (8, &good[..good.len() / 2])] {
        fs::write(place(n), bytes).unwrap();
    }
    (5..9).for_each(|n| chmod(&place(n), 0o600));
    symlink(elsewhere.path(), inside(folder.path()).join("entries/zz")).unwrap();
    for depth in [Depth::Header, Depth::Stored, Depth::Payload] {
        let report = vault.verify(depth);
        // Links, pipes and folders are no entries. Of the files one is good.
        let bad: Vec<_> = report.bad.iter().map(|(listed, why)| (listed.key, why.cause())).collect();
        assert_eq!((report.good, bad.len(), report.unlisted.len()), (1, 4, 0), "{depth:?}: {bad:?}");
    }
    let fresh = open(folder.path());
    for n in 0..9 {
        assert_eq!(matches!(fresh.get(&key(n)), Lookup::Hit(_)), n == 0, "{n}");
    }
}
