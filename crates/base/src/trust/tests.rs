//! Folders and files with owners and modes of every kind.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::PathBuf;

use qkvault_skip::{Need, skip};

use super::*;

/// A folder with a library in `lib`, private to this user.
fn library() -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().expect("a temporary folder");
    let lib = root.path().join("lib");
    fs::create_dir(&lib).expect("is made");
    for name in ["libcudnn.so.9", "libcudnn_graph.so.9", "libother.so"] {
        fs::write(lib.join(name), "junk").expect("is written");
        chmod(&lib.join(name), 0o644);
    }
    chmod(&lib, 0o755);
    (root, lib.join("libcudnn.so.9"))
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("its owner may");
}

fn none(_: &str) -> Option<OsString> {
    None
}

fn allow(value: &'static str) -> impl Fn(&str) -> Option<OsString> {
    move |name| (name == LIBRARIES_ALLOW_SHARED_VARIABLE).then(|| OsString::from(value))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn audit_13_a_library_that_everyone_can_change_is_refused_with_reason_and_fix() {
    let (root, file) = library();
    assert_eq!(distrust_library(&file, none), None);
    let folder = file.parent().expect("lib").to_owned();
    let graph = folder.join("libcudnn_graph.so.9");
    for (place, open) in [(&file, 0o646), (&folder, 0o757), (&folder, 0o1777), (&graph, 0o666)] {
        let before = fs::metadata(place).expect("is there").permissions();
        chmod(place, open);
        let why = distrust_library(&file, none).expect("everyone can write there");
        for words in [&*place.to_string_lossy(), "everyone can write", "chmod -R go-w", "LIBRARIES_ALLOW_SHARED=1"] {
            assert!(why.contains(words), "'{words}' is not in: {why}");
        }
        assert_eq!(distrust_library(&file, allow("1")), None, "who trusts them may");
        assert!(distrust_library(&file, allow("0")).is_some());
        fs::set_permissions(place, before).expect("its owner may");
    }
    chmod(&folder.join("libother.so"), 0o666);
    assert_eq!(distrust_library(&file, none), None, "a file that the library does not load");
    chmod(root.path(), 0o777);
    let why = distrust_library(&file, none).expect("the folder can be renamed");
    assert!(why.contains("can rename what is in"), "{why}");
    chmod(root.path(), 0o1777);
    assert_eq!(distrust_library(&file, none), None, "sticky, as the system's temporary folder");
}

#[test]
fn audit_13_a_group_that_can_write_is_refused() {
    if !is_root() {
        // A user's own group may: see the test of `is_empty_group`.
        return skip(Need::Faults, "the tests run as root, who has no group of its own");
    }
    let (_root, file) = library();
    chmod(file.parent().expect("lib"), 0o775);
    let why = distrust_library(&file, none).expect("a group can write there");
    assert!(why.contains("its group can write"), "{why}");
}

#[test]
fn audit_13_a_library_of_another_user_is_refused_and_one_of_root_is_not() {
    if !is_root() {
        return skip(Need::Faults, "the tests run as root, who can give files away");
    }
    let (_root, file) = library();
    chown(&file, Some(12_345), None).expect("root may");
    let why = distrust_library(&file, none).expect("another user's");
    assert!(why.contains("belongs to user 12345"), "{why}");
    chown(&file, Some(0), Some(0)).expect("root may");
    assert_eq!(distrust_library(&file, none), None);
}

#[test]
fn audit_13_a_link_is_judged_where_it_lies_and_where_it_leads() {
    let (_real, file) = library();
    let (other, _) = library();
    let link = other.path().join("lib").join("libcudnn.so");
    symlink(&file, &link).expect("is made");
    assert_eq!(distrust_library(&link, none), None);
    chmod(&other.path().join("lib"), 0o777);
    assert!(distrust_library(&link, none).is_some(), "the link can be exchanged");
    chmod(&other.path().join("lib"), 0o755);
    chmod(&file, 0o666);
    assert!(distrust_library(&link, none).is_some(), "what it leads to can be changed");
}

#[test]
fn audit_13_every_folder_from_the_cache_folder_on_is_judged() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let site = cache.path().join("libraries/engines/fa4");
    fs::create_dir_all(&site).expect("is made");
    let at = cache.path().as_os_str().to_owned();
    let variable = move |name: &str| (name == crate::CACHE_DIR_VARIABLE).then(|| at.clone());
    for folder in ["libraries", "libraries/engines", "libraries/engines/fa4"] {
        chmod(&cache.path().join(folder), 0o755);
    }
    assert_eq!(distrust_library(&site, &variable), None);
    for folder in ["libraries", "libraries/engines", "libraries/engines/fa4"] {
        let folder = cache.path().join(folder);
        // Sticky: nobody renames what is there, but anybody adds to it.
        chmod(&folder, 0o1777);
        assert!(distrust_library(&site, &variable).is_some(), "{}", folder.display());
        chmod(&folder, 0o755);
    }
}

#[test]
fn a_value_that_cannot_be_understood_is_told() {
    let (_root, file) = library();
    let why = distrust_library(&file, allow("yes")).expect("neither 1 nor 0");
    assert!(why.contains("yes") && why.contains("expected 1 or 0"), "{why}");
}
