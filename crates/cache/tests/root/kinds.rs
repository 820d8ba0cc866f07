//! Entries of every kind under one key: what replaces what.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use qkvault_cache::{
    Entry, EntryKind, FolderRemote, Key, Lookup, PackOptions, Remote, RemoteError, RemoteOptions, UnpackOptions,
    UnpackReport, Vault,
};

use super::kit::*;

const KINDS: [EntryKind; 3] = [EntryKind::Plan, EntryKind::Refusal, EntryKind::Times];

/// An entry of a kind, by a library that nobody else uses.
fn of_kind(kind: EntryKind, library: &str) -> Entry {
    Entry { kind, library: library.into(), payload: format!("{kind} by {library}").into_bytes(), ..plan(1) }
}

/// Whether an entry of the second kind may take the place of one of the first.
fn may_replace(there: EntryKind, new: EntryKind) -> bool {
    there != EntryKind::Plan || new == EntryKind::Plan
}

fn found(vault: &Vault) -> Entry {
    match vault.get(&key(1)) {
        Lookup::Hit(entry) => Entry::clone(&entry),
        other => panic!("{other:?}"),
    }
}

fn pack_of(entry: &Entry) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    vault.put(&key(1), entry.clone()).unwrap();
    let mut bytes = Vec::new();
    vault.pack(|_| true, &PackOptions::default(), &mut bytes).unwrap();
    bytes
}

#[test]
fn audit_7_a_refusal_never_replaces_a_plan_when_unpacked() {
    for there in KINDS {
        for new in KINDS {
            let folder = tempfile::tempdir().unwrap();
            let vault = open(folder.path());
            let (first, second) = (of_kind(there, "1.0"), of_kind(new, "2.0"));
            vault.put(&key(1), first.clone()).unwrap();
            let report = vault.unpack(&pack_of(&second)[..], |_| true, &UnpackOptions::default()).unwrap();
            let UnpackReport { stored, already, kept, .. } = report;
            let replaced = may_replace(there, new);
            assert_eq!((stored, already, kept), if replaced { (1, 0, 0) } else { (0, 0, 1) }, "{there} then {new}");
            let left = if replaced { &second } else { &first };
            assert_eq!(found(&vault), *left, "{there} then {new}, in memory");
            assert_eq!(found(&open(folder.path())), *left, "{there} then {new}, in the folder");
        }
    }
}

#[test]
fn audit_7_a_refusal_never_replaces_a_plan_when_put() {
    for there in KINDS {
        for new in KINDS {
            let folder = tempfile::tempdir().unwrap();
            let (first, second) = (of_kind(there, "1.0"), of_kind(new, "2.0"));
            open(folder.path()).put(&key(1), first.clone()).unwrap();
            let vault = open(folder.path());
            let returned = vault.put(&key(1), second.clone()).unwrap();
            let left = if may_replace(there, new) { &second } else { &first };
            assert_eq!((&*returned, found(&vault), found(&open(folder.path()))), (left, left.clone(), left.clone()));
            // For a plan that its library does not load.
            vault.replace(&key(1), second.clone()).unwrap();
            assert_eq!((found(&vault), found(&open(folder.path()))), (second.clone(), second));
        }
    }
}

#[test]
fn audit_7_a_refusal_in_a_pack_does_not_hide_a_plan_of_a_layer() {
    for new in KINDS {
        let (top, low) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        open(low.path()).put(&key(1), of_kind(EntryKind::Plan, "1.0")).unwrap();
        let vault = Vault::open(options(top.path()).layers([low.path().to_owned()])).unwrap();
        vault.unpack(&pack_of(&of_kind(new, "2.0"))[..], |_| true, &UnpackOptions::default()).unwrap();
        assert_eq!(found(&vault).kind, EntryKind::Plan, "{new}");
    }
}

#[test]
fn audit_7_a_refusal_in_a_layer_does_not_replace_a_plan() {
    for there in KINDS {
        for below in KINDS {
            let (top, low) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            open(low.path()).put(&key(1), of_kind(below, "2.0")).unwrap();
            open(top.path()).put(&key(1), of_kind(there, "1.0")).unwrap();
            let vault = Vault::open(options(top.path()).layers([low.path().to_owned()])).unwrap();
            assert_eq!(found(&vault), of_kind(there, "1.0"), "the first folder answers");
            assert_eq!(found(&open(top.path())), of_kind(there, "1.0"), "and keeps its entry");
        }
    }
}

/// A remote folder that anyone could have filled.
fn remote(folder: &std::path::Path) -> RemoteOptions {
    RemoteOptions { deadline: Duration::from_secs(20), ..RemoteOptions::new(FolderRemote::new(folder, true)) }
}

#[test]
fn audit_7_a_refusal_of_a_remote_never_replaces_a_plan() {
    for there in KINDS {
        for new in KINDS {
            let (folder, store) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let (first, second) = (of_kind(there, "1.0"), of_kind(new, "2.0"));
            let sent = FolderRemote::new(store.path(), true);
            sent.store(&key(1), &file(&key(1), second.clone()), Duration::from_secs(20)).unwrap();
            open(folder.path()).put(&key(1), first.clone()).unwrap();
            let vault = Vault::open(options(folder.path()).remote(remote(store.path()))).unwrap();
            // Fetched without a look at the folder, as for several keys at once.
            let _ = vault.fetch(&[key(1)]);
            let left = if may_replace(there, new) { &second } else { &first };
            assert_eq!(found(&vault), *left, "{there} then {new}, in memory");
            assert_eq!(found(&open(folder.path())), *left, "{there} then {new}, in the folder");
        }
    }
}

/// Answers nothing before it is told to, as a store that is too slow for a look-up.
struct Slow(FolderRemote, Arc<Mutex<bool>>);

impl Remote for Slow {
    fn location(&self) -> String {
        self.0.location()
    }

    fn fetch(&self, key: &Key, within: Duration) -> Result<Option<Vec<u8>>, RemoteError> {
        if *self.1.lock().unwrap() { self.0.fetch(key, within) } else { Err(RemoteError::Timeout { within }) }
    }

    fn store(&self, key: &Key, bytes: &[u8], within: Duration) -> Result<(), RemoteError> {
        self.0.store(key, bytes, within)
    }
}

#[test]
fn audit_7_a_refusal_that_is_sent_to_a_remote_never_replaces_its_plan() {
    for there in KINDS {
        for new in KINDS {
            let (folder, store) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let (first, second) = (of_kind(there, "1.0"), of_kind(new, "2.0"));
            let direct = FolderRemote::new(store.path(), true);
            direct.store(&key(1), &file(&key(1), first.clone()), Duration::from_secs(20)).unwrap();
            let answers = Arc::new(Mutex::new(false));
            let slow = RemoteOptions::new(Slow(direct, Arc::clone(&answers)));
            let vault = Vault::open(options(folder.path()).remote(slow)).unwrap();
            assert!(matches!(vault.get(&key(1)), Lookup::Absent), "it does not answer in time");
            *answers.lock().unwrap() = true;
            vault.get_or_build(&key(1), || Ok::<_, String>(second.clone())).unwrap();
            assert!(vault.flush_remote(Duration::from_secs(60)));
            let other = tempfile::tempdir().unwrap();
            let reader = Vault::open(options(other.path()).remote(remote(store.path()))).unwrap();
            let left = if may_replace(there, new) { &second } else { &first };
            assert_eq!(found(&reader), *left, "{there} then {new}");
        }
    }
}
