//! Put and get, get or build, modes, layers, refusals.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use qkvault_cache::{Error, Lookup, Mode, Rejection, RejectionCause, Source, StoreError, Vault};

use super::kit::*;

fn never() -> Result<qkvault_cache::Entry, Infallible> {
    panic!("the builder must not be called")
}

#[test]
fn what_was_put_is_found_here_and_in_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    assert!(matches!(vault.get(&key(1)), Lookup::Absent));
    vault.put(&key(1), plan(1)).unwrap();
    let Lookup::Hit(entry) = vault.get(&key(1)) else { panic!() };
    assert_eq!(*entry, plan(1));

    let other = open(folder.path());
    let Lookup::Hit(entry) = other.get(&key(1)) else { panic!() };
    assert_eq!(*entry, plan(1));
    assert_eq!((other.stats().hits_disk, other.stats().hits_memory), (1, 0));
    assert!(matches!(other.get(&key(1)), Lookup::Hit(_)));
    assert_eq!((other.stats().hits_disk, other.stats().hits_memory), (1, 1));
}

#[test]
fn get_or_build_tells_where_from() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    let first = vault.get_or_build(&key(1), || Ok::<_, Infallible>(plan(1))).unwrap();
    assert_eq!(first.source, Source::Built);
    assert!(first.unstored.is_none());
    let second = vault.get_or_build(&key(1), never).unwrap();
    assert_eq!(second.source, Source::Memory);
    let third = open(folder.path()).get_or_build(&key(1), never).unwrap();
    assert_eq!(third.source, Source::Disk);
    assert_eq!(*third.entry, plan(1));
}

#[test]
fn a_bad_file_is_moved_aside_and_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).put(&key(1), plan(1)).unwrap();
    let path = file_of(folder.path(), &key(1));
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &bytes).unwrap();

    let vault = open(folder.path());
    assert!(matches!(vault.get(&key(1)), Lookup::Rejected(Rejection::StoredChecksum)));
    assert!(!path.exists());
    let names = quarantined(folder.path());
    assert!(names.len() == 1 && names[0].contains("stored-checksum"), "{names:?}");
    assert!(matches!(vault.get(&key(1)), Lookup::Absent));
    let built = vault.get_or_build(&key(1), || Ok::<_, Infallible>(plan(1))).unwrap();
    assert_eq!(built.source, Source::Built);
    let stats = vault.stats();
    assert_eq!(stats.rejections, vec![(RejectionCause::StoredChecksum, 1)]);
    assert_eq!((stats.quarantined, stats.builds), (1, 1));
}

#[test]
fn an_entry_under_another_name_is_not_served() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).put(&key(1), plan(1)).unwrap();
    let (from, to) = (file_of(folder.path(), &key(1)), file_of(folder.path(), &key(2)));
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy(from, to).unwrap();
    let found = open(folder.path()).get(&key(2));
    assert!(matches!(found, Lookup::Rejected(Rejection::KeyMismatch { .. })), "{found:?}");
}

#[test]
fn a_failed_build_can_be_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    let failed = vault.get_or_build(&key(1), || Err::<qkvault_cache::Entry, _>("no memory"));
    assert!(matches!(failed, Err(Error::Build(error)) if *error == "no memory"));
    let panicked = std::panic::catch_unwind(|| {
        let _ = vault.get_or_build(&key(1), || -> Result<_, Infallible> { panic!("in the builder") });
    });
    assert!(panicked.is_err());
    let built = vault.get_or_build(&key(1), || Ok::<_, Infallible>(plan(1))).unwrap();
    assert_eq!(built.source, Source::Built);
    let stats = vault.stats();
    assert_eq!((stats.builds, stats.build_failures), (3, 2));
}

#[test]
fn a_builder_may_use_the_vault_but_not_for_its_own_key() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    let outer = vault.get_or_build(&key(1), || {
        let inner = vault.get_or_build(&key(2), || Ok::<_, Infallible>(plan(2)))?;
        assert_eq!(inner.source, Source::Built);
        match vault.get_or_build(&key(1), never) {
            Err(Error::Reentrant { .. }) => Ok::<_, Error<Infallible>>(plan(1)),
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(outer.unwrap().source, Source::Built);
}

#[test]
fn sixty_four_threads_one_key_one_build() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    let builds = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                let got = vault.get_or_build(&key(1), || {
                    builds.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    Ok::<_, Infallible>(plan(1))
                });
                assert_eq!(*got.unwrap().entry, plan(1));
            });
        }
    });
    assert_eq!(builds.load(Ordering::SeqCst), 1);
}

#[test]
fn refusals_answer_for_their_library_only() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    vault.put(&key(1), refusal("9.19.0")).unwrap();
    assert!(matches!(vault.get(&key(1)), Lookup::Hit(_)));
    assert!(matches!(vault.for_library("9.19.0").get(&key(1)), Lookup::Hit(_)));
    for vault in [vault.for_library("9.27.0"), open(folder.path()).for_library("9.27.0")] {
        assert!(matches!(vault.get(&key(1)), Lookup::Absent));
        assert_eq!(vault.stats().refusals_expired, 1);
    }
    let newer = vault.for_library("9.27.0");
    let built = newer.get_or_build(&key(1), || Ok::<_, Infallible>(plan(1))).unwrap();
    assert_eq!(built.source, Source::Built);
    assert!(matches!(newer.get(&key(1)), Lookup::Hit(entry) if *entry == plan(1)));
}

#[test]
fn a_vault_can_be_copied_elsewhere() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    open(from.path()).put(&key(1), plan(1)).unwrap();
    let copied = to.path().join("copy");
    let status = std::process::Command::new("cp").arg("-r").args([from.path(), &copied]).status().unwrap();
    assert!(status.success());
    assert_eq!(open(&copied).get_or_build(&key(1), never).unwrap().source, Source::Disk);
}

#[test]
fn layers_answer_below_and_hits_are_copied_up() {
    let (low, top) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    open(low.path()).put(&key(1), plan(1)).unwrap();
    let layered = |copy: bool| {
        let layers = ["/nowhere".into(), low.path().to_owned()];
        Vault::open(options(top.path()).layers(layers).copy_up(copy)).unwrap()
    };
    let got = layered(false).get_or_build(&key(1), never).unwrap();
    assert_eq!(got.source, Source::Layer(1));
    assert!(!file_of(top.path(), &key(1)).exists());
    assert_eq!(layered(true).get_or_build(&key(1), never).unwrap().source, Source::Layer(1));
    assert_eq!(layered(true).get_or_build(&key(1), never).unwrap().source, Source::Disk);

    // A bad file on top does not hide the good one below.
    std::fs::write(file_of(top.path(), &key(1)), b"rubbish").unwrap();
    let vault = layered(true);
    assert_eq!(vault.get_or_build(&key(1), never).unwrap().source, Source::Layer(1));
    assert_eq!(vault.stats().rejected(), 1);
}

#[test]
fn a_bad_file_in_a_layer_stays_where_it_is() {
    let (low, top) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    open(low.path()).put(&key(1), plan(1)).unwrap();
    let path = file_of(low.path(), &key(1));
    std::fs::write(&path, b"rubbish").unwrap();
    let vault = Vault::open(options(top.path()).layers([low.path().to_owned()])).unwrap();
    assert!(matches!(vault.get(&key(1)), Lookup::Rejected(Rejection::Magic { .. })));
    assert!(path.exists());
}

#[test]
fn read_only_writes_nothing_and_off_reads_nothing() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).put(&key(1), plan(1)).unwrap();
    std::fs::write(file_of(folder.path(), &key(1)).with_file_name("x"), b"").unwrap();

    let ro = Vault::open(options(folder.path()).mode(Mode::ReadOnly)).unwrap();
    assert_eq!(ro.get_or_build(&key(1), never).unwrap().source, Source::Disk);
    let built = ro.get_or_build(&key(2), || Ok::<_, Infallible>(plan(2))).unwrap();
    assert!(matches!(built.unstored.as_deref(), Some(StoreError::NotWritable { mode: "ro" })));
    assert!(!file_of(folder.path(), &key(2)).exists());
    assert_eq!(ro.get_or_build(&key(2), never).unwrap().source, Source::Memory);
    std::fs::write(file_of(folder.path(), &key(1)), b"rubbish").unwrap();
    let ro = Vault::open(options(folder.path()).mode(Mode::ReadOnly)).unwrap();
    assert!(matches!(ro.get(&key(1)), Lookup::Rejected(_)));
    assert!(file_of(folder.path(), &key(1)).exists() && quarantined(folder.path()).is_empty());

    let off = Vault::open(options(folder.path()).mode(Mode::Off)).unwrap();
    assert!(matches!(off.get(&key(1)), Lookup::Absent));
    assert!(matches!(off.put(&key(1), plan(1)), Err(StoreError::NotWritable { mode: "off" })));
    assert!(matches!(off.get(&key(1)), Lookup::Hit(_)));
}

#[test]
fn read_only_of_a_folder_that_is_not_there_makes_none() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let vault = Vault::open(options(&missing).mode(Mode::ReadOnly)).unwrap();
    assert!(matches!(vault.get(&key(1)), Lookup::Absent));
    assert!(!missing.exists());
}
