//! Full disks, read-only folders, folders that vanish, files that are no files.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::process::Command;

use qkvault_cache::{Lookup, Mode, OpenError, Rejection, Source, StoreError, Vault};
use qkvault_skip::{Need, skip};

use super::child;
use super::kit::*;

/// Runs a job that ends by itself; `None` when `script` could not prepare what it needs (exit code 77).
fn run(mut command: Command) -> Option<String> {
    let output = command.output().expect("sh runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        Some(77) => None,
        Some(0) => Some(text),
        code => panic!("code {code:?}\n{text}\n{}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// The job: fills the disk, and checks that nothing is harmed by it.
pub(crate) fn fill(folder: &Path) {
    let vault = Vault::open(options(folder).durable(true).memory(0, 0)).unwrap();
    let mut stored = 0;
    let error = loop {
        match vault.put(&key(stored), plan_of(stored, 20_000)) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 10_000, "the disk does not get full");
    };
    let StoreError::Io { path, source, .. } = &error else { panic!("{error}") };
    let full = [io::ErrorKind::StorageFull, io::ErrorKind::FileTooLarge, io::ErrorKind::QuotaExceeded];
    assert!(full.contains(&source.kind()) && path.starts_with(folder), "{error}");
    let text = error.to_string();
    assert!(text.contains("free some space") && text.contains(&path.display().to_string()), "{text}");
    assert!(leftovers(folder).is_empty(), "a failed write leaves nothing behind");

    // A build goes on without the disk, and says so.
    let got = vault.get_or_build(&key(90_000), || Ok::<_, Infallible>(plan_of(90_000, 200_000))).unwrap();
    assert_eq!(got.source, Source::Built);
    assert!(matches!(got.unstored.as_deref(), Some(StoreError::Io { .. })));
    for n in 0..stored {
        assert!(matches!(open(folder).get(&key(n)), Lookup::Hit(entry) if *entry == plan_of(n, 20_000)), "{n}");
    }
    // With room again, it stores again.
    if stored > 1 {
        std::fs::remove_file(file_of(folder, &key(0))).unwrap();
        std::fs::remove_file(file_of(folder, &key(1))).unwrap();
    }
    vault.put(&key(90_001), plan_of(90_001, 100)).unwrap();
    println!("stored={stored}");
}

#[test]
fn a_full_disk_harms_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"unshare -m true 2>/dev/null || exit 77
        exec unshare -m sh -c 'mount -t tmpfs -o size=512k,mode=700 tmpfs "$FOLDER" 2>/dev/null || exit 77; exec "$@"' sh "$@""#;
    match run(child::job_under(script, "fill", folder.path())) {
        Some(text) => assert!(!text.contains("stored=0"), "{text}"),
        None => skip(Need::Faults, "a small tmpfs can be mounted in a mount namespace of its own"),
    }
}

#[test]
fn a_limit_on_file_sizes_harms_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // Blocks of 512 bytes: entries of a few hundred bytes fit, larger ones do not.
    let script = r#"trap '' XFSZ; ulimit -f 8 || exit 77; exec "$@""#;
    match run(child::job_under(script, "fill", folder.path())) {
        Some(text) => assert!(text.contains("stored="), "{text}"),
        None => skip(Need::Faults, "the shell can limit the size of files"),
    }
}

/// The job: uses a vault that it cannot write to.
pub(crate) fn use_read_only(folder: &Path) {
    let vault = open(folder);
    assert!(matches!(vault.get(&key(1)), Lookup::Hit(entry) if *entry == plan(1)));
    let error = vault.put(&key(2), plan(2)).unwrap_err();
    let StoreError::Io { source, .. } = &error else { panic!("{error}") };
    let kinds = [io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::PermissionDenied];
    assert!(kinds.contains(&source.kind()), "{error}");
    assert!(error.to_string().contains("QKVAULT_CACHE_DIR"), "{error}");
    let got = vault.get_or_build(&key(3), || Ok::<_, Infallible>(plan(3))).unwrap();
    assert!(got.source == Source::Built && got.unstored.is_some());

    // A bad file cannot be moved aside here; it is rejected each time, and the build goes on.
    let found = open(folder).get(&key(4));
    assert!(matches!(found, Lookup::Rejected(Rejection::Magic { .. })), "{found:?}");
    let got = vault.get_or_build(&key(4), || Ok::<_, Infallible>(plan(4))).unwrap();
    assert_eq!(got.source, Source::Built);

    let error = Vault::open(options(&folder.join("new"))).unwrap_err();
    assert!(matches!(&error, OpenError::Folder { .. }), "{error}");
    assert!(error.to_string().contains("QKVAULT_CACHE_DIR"), "{error}");
    let vault = Vault::open_or_memory(options(&folder.join("new")));
    let _ = vault.put(&key(5), plan(5));
    assert!(matches!(vault.get(&key(5)), Lookup::Hit(_)));
}

fn prepared() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).put(&key(1), plan(1)).unwrap();
    let bad = file_of(folder.path(), &key(4));
    std::fs::create_dir_all(bad.parent().unwrap()).unwrap();
    std::fs::write(bad, b"rubbish").unwrap();
    folder
}

#[test]
fn a_read_only_mount_is_read() {
    let folder = prepared();
    let script = r#"unshare -m true 2>/dev/null || exit 77
        exec unshare -m sh -c 'mount --bind "$FOLDER" "$FOLDER" 2>/dev/null && mount -o remount,bind,ro "$FOLDER" 2>/dev/null || exit 77
        exec "$@"' sh "$@""#;
    if run(child::job_under(script, "read only", folder.path())).is_none() {
        skip(Need::Faults, "a folder can be mounted read-only in a mount namespace of its own");
    }
}

#[test]
fn a_folder_of_root_is_read_by_another_user() {
    let folder = prepared();
    // Everyone may read, as in an image built by root.
    let open_up = Command::new("chmod").args(["-R", "a+rX"]).arg(folder.path()).status().unwrap();
    assert!(open_up.success());
    // The other user must be able to run this binary at all.
    let script = r#"[ "$(id -u)" = 0 ] || exit 77
        setpriv --reuid=65534 --clear-groups "$1" --list >/dev/null 2>&1 || exit 77
        exec setpriv --reuid=65534 --clear-groups "$@""#;
    if run(child::job_under(script, "read only", folder.path())).is_none() {
        skip(Need::Faults, "the tests run as root, setpriv is there, and another user can run the test binary");
    }
}

#[test]
fn a_folder_removed_while_open_is_made_again() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("vault folder");
    let vault = Vault::open(options(&folder).memory(0, 0)).unwrap();
    vault.put(&key(1), plan(1)).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(matches!(vault.get(&key(1)), Lookup::Absent));
    assert_eq!(vault.ls().count(), 0);
    assert_eq!(vault.gc(&Default::default()).unwrap().entries, 0);
    let got = vault.get_or_build(&key(1), || Ok::<_, Infallible>(plan(1))).unwrap();
    assert!(got.source == Source::Built && got.unstored.is_none());
    assert!(matches!(vault.get(&key(1)), Lookup::Hit(_)));

    // Replaced by a file, nothing can be stored, and all goes on.
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, b"").unwrap();
    assert!(matches!(vault.get(&key(1)), Lookup::Absent));
    let got = vault.get_or_build(&key(1), || Ok::<_, Infallible>(plan(1))).unwrap();
    assert!(matches!(got.unstored.as_deref(), Some(StoreError::Io { .. })), "{got:?}");
}

#[test]
fn what_is_no_file_is_rejected_and_never_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    vault.put(&key(1), plan(1)).unwrap();
    let path = file_of(folder.path(), &key(1));
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let fresh = open(folder.path());
    assert!(matches!(fresh.get(&key(1)), Lookup::Rejected(Rejection::Unreadable { .. })));
    std::fs::remove_dir(&path).unwrap();
    // A link, even to a good entry.
    let elsewhere = folder.path().join("elsewhere.qkv");
    std::fs::write(&elsewhere, file(&key(1), plan(1))).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    assert!(matches!(fresh.get(&key(1)), Lookup::Rejected(Rejection::Unreadable { .. })));
    std::fs::remove_file(&path).unwrap();
    // A pipe with nobody at the other end.
    if Command::new("mkfifo").arg(&path).status().is_ok_and(|status| status.success()) {
        assert!(matches!(fresh.get(&key(1)), Lookup::Rejected(Rejection::Unreadable { .. })));
        assert_eq!(fresh.ls().count(), 0);
    } else {
        skip(Need::Faults, "mkfifo is there");
    }
}

#[test]
fn a_relative_folder_keeps_its_meaning_and_a_file_is_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    for mode in [Mode::ReadWrite, Mode::ReadOnly] {
        let error = Vault::open(options(&file).mode(mode)).unwrap_err();
        assert!(matches!(error, OpenError::Folder { .. }), "{error}");
    }
    let vault = Vault::open(options(Path::new("some/relative/folder")).mode(Mode::ReadOnly)).unwrap();
    assert!(vault.folder().unwrap().is_absolute());
}
