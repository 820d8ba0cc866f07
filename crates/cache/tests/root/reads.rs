//! Many threads that look one key up at once, as the layers of a model do when it is loaded: one of them reads it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use qkvault_cache::{Key, Lookup, Remote, RemoteError, RemoteOptions, Vault};

use super::kit::*;

const THREADS: usize = 64;

/// What each of the threads is answered, all asking at the same moment.
fn together(vault: &Vault, key: &Key) -> Vec<Lookup> {
    let gate = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        let ask = || {
            gate.wait();
            vault.get(key)
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn sixty_four_threads_that_look_one_key_up_read_its_file_once() {
    let folder = tempfile::tempdir().unwrap();
    // Large enough that every thread asks before the first has read it.
    let entry = plan_of(1, 8 << 20);
    open(folder.path()).put(&key(1), entry.clone()).unwrap();
    let vault = open(folder.path());
    let answers = together(&vault, &key(1));
    assert!(answers.iter().all(|answer| matches!(answer, Lookup::Hit(found) if **found == entry)));
    let stats = vault.stats();
    assert_eq!(stats.bytes_read, std::fs::metadata(file_of(folder.path(), &key(1))).unwrap().len(), "{stats:?}");
    assert_eq!((stats.hits_disk, stats.hits(), stats.misses), (1, THREADS as u64, 0), "{stats:?}");
}

/// A store that takes its time, and has one entry or none.
struct Slow {
    entry: Option<Vec<u8>>,
    asked: Arc<AtomicUsize>,
}

impl Remote for Slow {
    fn location(&self) -> String {
        "slow".to_owned()
    }

    fn fetch(&self, _: &Key, _: Duration) -> Result<Option<Vec<u8>>, RemoteError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        Ok(self.entry.clone())
    }

    fn store(&self, _: &Key, _: &[u8], _: Duration) -> Result<(), RemoteError> {
        Ok(())
    }
}

fn slow(folder: &std::path::Path, entry: Option<Vec<u8>>) -> (Vault, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let remote = RemoteOptions {
        deadline: Duration::from_secs(20),
        ..RemoteOptions::new(Slow { entry, asked: Arc::clone(&asked) })
    };
    (Vault::open(options(folder).remote(remote)).unwrap(), asked)
}

#[test]
fn sixty_four_threads_that_look_one_key_up_ask_a_remote_once() {
    let folder = tempfile::tempdir().unwrap();
    let (vault, asked) = slow(folder.path(), Some(file(&key(1), plan(1))));
    let answers = together(&vault, &key(1));
    assert!(answers.iter().all(|answer| matches!(answer, Lookup::Hit(found) if **found == plan(1))));
    let stats = vault.stats();
    assert_eq!((asked.load(Ordering::SeqCst), stats.hits_remote), (1, 1), "{stats:?}");
    assert_eq!((stats.hits(), stats.stores, stats.bytes_read), (THREADS as u64, 1, 0), "{stats:?}");
}

/// Who waited for a look-up that found nothing is told so too, and nothing of it stays: the next one looks again.
#[test]
fn what_is_in_no_place_is_absent_for_all_who_ask_and_found_once_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    assert!(together(&vault, &key(1)).iter().all(|answer| matches!(answer, Lookup::Absent)));
    assert_eq!(vault.stats().misses, THREADS as u64);
    open(folder.path()).put(&key(1), plan(1)).unwrap();
    assert!(together(&vault, &key(1)).iter().all(|answer| matches!(answer, Lookup::Hit(_))));
}

/// A look-up waits for no builder: it may be on a path that must not wait for a compiler.
#[test]
fn a_look_up_does_not_wait_for_a_build_of_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    let (building, looked) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            vault.get_or_build(&key(1), || {
                building.wait();
                looked.wait();
                Ok::<_, std::convert::Infallible>(plan(1))
            })
        });
        building.wait();
        assert!(matches!(vault.get(&key(1)), Lookup::Absent));
        looked.wait();
    });
}

/// A refusal answers for one version of the library alone, whoever read it.
#[test]
fn a_refusal_that_another_handle_reads_does_not_answer_for_its_library() {
    let folder = tempfile::tempdir().unwrap();
    let refused = refusal("9.27.0");
    open(folder.path()).put(&key(1), refused.clone()).unwrap();
    let vault = open(folder.path());
    let (same, other) = (vault.for_library("9.27.0"), vault.for_library("9.28.0"));
    let gate = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for n in 0..THREADS {
            let (same, other, gate, refused) = (&same, &other, &gate, &refused);
            scope.spawn(move || {
                gate.wait();
                match n % 2 {
                    0 => assert!(matches!(same.get(&key(1)), Lookup::Hit(found) if *found == *refused)),
                    _ => assert!(matches!(other.get(&key(1)), Lookup::Absent)),
                }
            });
        }
    });
}
