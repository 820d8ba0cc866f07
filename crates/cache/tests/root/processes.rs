//! Many processes and many threads on one folder.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use qkvault_cache::{Depth, Error, Source, Vault};

use super::child;
use super::kit::*;

const KEYS: u64 = 50;
const PROCESSES: usize = 16;

/// The job: gets or builds all keys from two threads, and tells how many it built.
pub(crate) fn warm(folder: &Path) {
    let vault = open(folder);
    let built: Vec<AtomicUsize> = (0..KEYS).map(|_| AtomicUsize::new(0)).collect();
    let start = u64::from(std::process::id());
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (vault, built) = (&vault, &built);
            scope.spawn(move || {
                for step in 0..KEYS {
                    let n = (start * 7 + thread * 13 + step * 3) % KEYS;
                    let got = vault.get_or_build(&key(n), || {
                        built[n as usize].fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(3));
                        Ok::<_, std::convert::Infallible>(plan(n))
                    });
                    let got = got.unwrap();
                    assert_eq!(*got.entry, plan(n));
                    assert!(got.unstored.is_none());
                }
            });
        }
    });
    let built: Vec<usize> = built.into_iter().map(AtomicUsize::into_inner).collect();
    assert!(built.iter().all(|count| *count <= 1), "at most one build per key and process: {built:?}");
    assert_eq!(vault.stats().rejected(), 0);
    println!("built={}", built.iter().sum::<usize>());
}

fn warm_together(folder: &Path) -> usize {
    let children: Vec<_> = (0..PROCESSES).map(|_| child::job("warm", folder).spawn().unwrap()).collect();
    let mut builds = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        let count = text.split("built=").nth(1).and_then(|rest| rest.split_whitespace().next());
        builds += count.unwrap().parse::<usize>().unwrap();
    }
    let report = open(folder).verify(Depth::Payload);
    assert_eq!((report.good, report.bad.len()), (KEYS, 0));
    assert!(quarantined(folder).is_empty() && leftovers(folder).is_empty());
    builds
}

#[test]
fn sixteen_processes_fifty_keys_fifty_builds() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(warm_together(folder.path()), KEYS as usize, "locks save double work");
    assert_eq!(std::fs::read_dir(inside(folder.path()).join("locks")).unwrap().count(), 0, "no lock stays behind");
}

#[test]
fn sixteen_processes_without_locks_do_more_work_and_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    // A file where the locks' folder was: no lock can be made.
    std::fs::remove_dir(inside(folder.path()).join("locks")).unwrap();
    std::fs::write(inside(folder.path()).join("locks"), b"").unwrap();
    let builds = warm_together(folder.path());
    assert!((KEYS as usize..=KEYS as usize * PROCESSES).contains(&builds), "{builds}");
}

#[test]
fn a_lock_held_for_too_long_is_passed_by() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    let lock = std::fs::File::create(inside(folder.path()).join(format!("locks/{}.lock", key(1)))).unwrap();
    lock.lock().unwrap();
    let vault = Vault::open(options(folder.path()).lock_wait(Duration::from_millis(60))).unwrap();
    let got = vault.get_or_build(&key(1), || Ok::<_, std::convert::Infallible>(plan(1))).unwrap();
    assert_eq!((got.source, vault.stats().locks_unavailable), (Source::Built, 1));
}

#[test]
fn a_waiter_across_processes_takes_what_appears() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    let lock = std::fs::File::create(inside(folder.path()).join(format!("locks/{}.lock", key(1)))).unwrap();
    lock.lock().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let never = || -> Result<_, std::convert::Infallible> { panic!("not built") };
            open(folder.path()).get_or_build(&key(1), never).unwrap().source
        });
        std::thread::sleep(Duration::from_millis(40));
        vault.put(&key(1), plan(1)).unwrap();
        assert_eq!(waiter.join().unwrap(), Source::Disk);
    });
    drop(lock);
}

#[test]
fn sixty_four_threads_share_one_failure_and_one_panic() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    for panics in [false, true] {
        let (builds, failures, panicked) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let gate = std::sync::Barrier::new(64);
        std::thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    gate.wait();
                    let got = std::panic::catch_unwind(|| {
                        vault.get_or_build(&key(1), || -> Result<qkvault_cache::Entry, String> {
                            builds.fetch_add(1, Ordering::SeqCst);
                            std::thread::sleep(Duration::from_millis(100));
                            if panics { std::panic::resume_unwind(Box::new("quietly")) } else { Err("refused".into()) }
                        })
                    });
                    match got {
                        Ok(Err(Error::Build(error))) if *error == "refused" => failures.fetch_add(1, Ordering::SeqCst),
                        Ok(Err(Error::Panicked { .. })) | Err(_) => panicked.fetch_add(1, Ordering::SeqCst),
                        other => panic!("{other:?}"),
                    };
                });
            }
        });
        let all = [builds, failures, panicked].map(AtomicUsize::into_inner);
        assert_eq!(all[1..], if panics { [0, 64] } else { [64, 0] });
        // Threads that a busy machine starts after the build is over try once more, one of them at a time.
        assert!(all[0] < 8, "{} builds", all[0]);
    }
    let built = vault.get_or_build(&key(1), || Ok::<_, String>(plan(1))).unwrap();
    assert_eq!(built.source, Source::Built);
}
