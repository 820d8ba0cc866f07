//! The adapter against the stores of `object_store`, and, with the feature `s3`, against a real server.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::convert::Infallible;
use std::time::Duration;

use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use qkvault_cache::{
    Entry, EntryKind, Key, Lookup, ObjectStoreError, ObjectStoreRemote, Remote, RemoteError, RemoteOptions, Source,
    Vault, VaultOptions,
};

const WITHIN: Duration = Duration::from_secs(20);

fn plan(n: u8) -> Entry {
    Entry {
        kind: EntryKind::Plan,
        target: "sm_90".into(),
        what: format!("attention {n}"),
        library: "9.27.0".into(),
        meta: vec![n],
        payload: vec![n; 50_000],
    }
}

fn vault(folder: &tempfile::TempDir, remote: RemoteOptions) -> Vault {
    Vault::open(VaultOptions::in_folder(folder.path()).without_environment().durable(false).remote(remote)).unwrap()
}

/// Stores and fetches through the trait; then one vault builds the entries and another fetches them.
fn exercise(open: impl Fn() -> ObjectStoreRemote) {
    let remote = open();
    let key = Key([9; 32]);
    assert_eq!(remote.fetch(&key, WITHIN), Ok(None));
    remote.store(&key, b"first", WITHIN).unwrap();
    remote.store(&key, b"second", WITHIN).unwrap();
    assert_eq!(remote.fetch(&key, WITHIN), Ok(Some(b"second".to_vec())));

    let with = || RemoteOptions { deadline: WITHIN, ..RemoteOptions::new(open()) };
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = vault(&here, with());
    for n in 0..8 {
        first.get_or_build(&Key([n; 32]), || Ok::<_, Infallible>(plan(n))).unwrap();
    }
    assert!(first.flush_remote(Duration::from_secs(60)));
    assert_eq!((first.stats().uploads, first.stats().remote_failures), (8, 0));
    let second = vault(&there, with());
    for n in 0..8 {
        let got = second.get_or_build(&Key([n; 32]), || -> Result<_, Infallible> { panic!("not built") }).unwrap();
        assert_eq!((got.source, &*got.entry), (Source::Remote, &plan(n)));
    }
    assert!(matches!(second.get(&key), Lookup::Rejected(_)), "what is no entry is not served");
}

#[test]
fn in_memory() {
    let shared = std::sync::Arc::new(InMemory::new());
    exercise(|| ObjectStoreRemote::new(std::sync::Arc::clone(&shared), "team/plans", "memory").unwrap());
}

#[test]
fn in_a_folder_and_the_same_names_as_a_folder_remote() {
    let folder = tempfile::tempdir().unwrap();
    exercise(|| {
        let store = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
        ObjectStoreRemote::new(store, "", "a folder").unwrap()
    });
    let plain = qkvault_cache::FolderRemote::new(folder.path(), true);
    assert!(plain.fetch(&Key([3; 32]), WITHIN).unwrap().is_some());
}

#[test]
fn a_slow_store_keeps_to_the_deadline() {
    let slow = ThrottleConfig { wait_get_per_call: Duration::from_secs(3600), ..ThrottleConfig::default() };
    let remote = ObjectStoreRemote::new(ThrottledStore::new(InMemory::new(), slow), "", "slow").unwrap();
    let within = Duration::from_millis(100);
    assert_eq!(remote.fetch(&Key([1; 32]), within), Err(RemoteError::Timeout { within }));
    let folder = tempfile::tempdir().unwrap();
    let vault = vault(&folder, RemoteOptions { deadline: within, ..RemoteOptions::new(remote) });
    let start = std::time::Instant::now();
    for n in 0..20 {
        vault.get_or_build(&Key([n; 32]), || Ok::<_, Infallible>(plan(n))).unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn it_can_be_dropped_within_async_code_and_asked_by_many_threads() {
    let remote = ObjectStoreRemote::new(InMemory::new(), "", "memory").unwrap();
    std::thread::scope(|scope| {
        for n in 0..8 {
            let remote = &remote;
            scope.spawn(move || {
                remote.store(&Key([n; 32]), &[n], WITHIN).unwrap();
                assert_eq!(remote.fetch(&Key([n; 32]), WITHIN), Ok(Some(vec![n])));
            });
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async move { drop(remote) });
}

#[test]
fn a_prefix_that_cannot_be_is_told() {
    let error = ObjectStoreRemote::new(InMemory::new(), "a/../b", "memory").unwrap_err();
    assert!(matches!(&error, ObjectStoreError::Prefix { prefix, .. } if prefix == "a/../b"), "{error}");
}

#[cfg(feature = "s3")]
#[path = "stores/s3.rs"]
mod s3;

#[test]
fn audit_9_the_location_is_told_without_its_secrets() {
    let location = "s3://key:hush@bucket/plans?token=hush#hush";
    let remote = ObjectStoreRemote::new(InMemory::new(), "plans", location).unwrap();
    assert_eq!(remote.location(), "s3://bucket/plans");
    assert!(!format!("{remote:?}").contains("hush"), "{remote:?}");
}
