//! Who may write where the vault reads.
#![cfg(unix)]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use qkvault_cache::{Lookup, Mode, OpenError, Rejection, STORE_FORMAT, StoreError, Vault};

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
