//! Bounds of memory and disk: nothing grows without end, nothing in use goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use qkvault_cache::{DiskLimits, Lookup, Vault};

use super::kit::*;

#[test]
fn memory_keeps_both_bounds_and_what_it_drops_is_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let vault = Vault::open(options(folder.path()).memory(10, 1 << 20)).unwrap();
    for n in 0..100 {
        vault.put(&key(n), plan(n)).unwrap();
        let stats = vault.stats();
        assert!(stats.memory_entries <= 10 && stats.memory_bytes <= 1 << 20, "{stats:?}");
    }
    assert!(vault.stats().evicted_memory >= 90);
    for n in 0..100 {
        assert!(matches!(vault.get(&key(n)), Lookup::Hit(entry) if *entry == plan(n)));
    }
    let stats = vault.stats();
    assert!(stats.hits_disk >= 90 && stats.builds == 0 && stats.memory_entries <= 10, "{stats:?}");
}

#[test]
fn a_plan_in_use_survives_eviction() {
    let folder = tempfile::tempdir().unwrap();
    let vault = Vault::open(options(folder.path()).memory(4, 1 << 20)).unwrap();
    vault.put(&key(0), plan(0)).unwrap();
    let Lookup::Hit(held) = vault.get(&key(0)) else { panic!() };
    for n in 1..200 {
        vault.put(&key(n), plan(n)).unwrap();
    }
    let Lookup::Hit(again) = vault.get(&key(0)) else { panic!() };
    assert!(Arc::ptr_eq(&held, &again), "the same plan, not a second copy");
    drop((held, again));
    for n in 200..400 {
        vault.put(&key(n), plan(n)).unwrap();
    }
    assert!(vault.stats().memory_entries <= 4);
}

#[test]
fn a_memory_of_nothing_and_an_entry_beyond_all_memory() {
    let folder = tempfile::tempdir().unwrap();
    for (entries, bytes) in [(0, 1 << 20), (10, 0), (10, 3_000)] {
        let vault = Vault::open(options(folder.path()).memory(entries, bytes)).unwrap();
        vault.put(&key(1), plan_of(1, 5_000)).unwrap();
        for _ in 0..2 {
            assert!(matches!(vault.get(&key(1)), Lookup::Hit(entry) if *entry == plan_of(1, 5_000)));
        }
        let stats = vault.stats();
        assert_eq!((stats.hits_disk, stats.memory_entries), (2, 0), "{entries} {bytes}");
    }
}

#[test]
fn an_entry_too_large_for_memory_does_not_leave_its_predecessor_there() {
    let folder = tempfile::tempdir().unwrap();
    let vault = Vault::open(options(folder.path()).memory(10, 6_000)).unwrap();
    vault.put(&key(1), plan_of(1, 1_000)).unwrap();
    vault.put(&key(1), plan_of(1, 9_000)).unwrap();
    assert!(matches!(vault.get(&key(1)), Lookup::Hit(entry) if entry.payload.len() == 9_000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_memory_bounds_hold(entries in 1usize..80, kib in 1u64..200, sizes in prop::collection::vec(0usize..9_000, 1..150)) {
        let vault = Vault::in_memory(qkvault_cache::VaultOptions::new().memory(entries, kib << 10));
        for (n, size) in sizes.iter().enumerate() {
            let _ = vault.put(&key(n as u64), plan_of(n as u64, *size));
            let stats = vault.stats();
            prop_assert!(stats.memory_entries <= entries as u64, "{stats:?}");
            prop_assert!(stats.memory_bytes <= kib << 10, "{stats:?}");
        }
    }
}

/// A clock that tests turn, in seconds after a fixed time.
fn clock() -> (Arc<AtomicU64>, impl Fn() -> SystemTime + Clone + Send + Sync + 'static) {
    let seconds = Arc::new(AtomicU64::new(0));
    let shared = Arc::clone(&seconds);
    let base = SystemTime::now();
    (seconds, move || base + Duration::from_secs(shared.load(Ordering::SeqCst)))
}

fn small(max_bytes: u64) -> DiskLimits {
    DiskLimits { max_bytes: Some(max_bytes), low_water: 0.5, ..DiskLimits::default() }
}

#[test]
fn gc_takes_the_longest_unused_and_spares_what_is_held() {
    let folder = tempfile::tempdir().unwrap();
    let (seconds, clock) = clock();
    let vault = Vault::open(options(folder.path()).clock(clock.clone()).memory(8, 1 << 20)).unwrap();
    for n in 0..8 {
        vault.put(&key(n), plan(n)).unwrap();
    }
    let Lookup::Hit(held) = vault.get(&key(7)) else { panic!() };
    let total = vault.usage().bytes;
    assert_eq!(vault.gc(&small(1)).unwrap().evicted, 0, "just written");

    // A day later another process uses two of them, and an hour after that the folder is over its limit.
    seconds.store(86_400, Ordering::SeqCst);
    let other = Vault::open(options(folder.path()).clock(clock)).unwrap();
    assert!(matches!(other.get(&key(0)), Lookup::Hit(_)) && matches!(other.get(&key(1)), Lookup::Hit(_)));
    drop(other);
    seconds.store(90_000, Ordering::SeqCst);
    let report = vault.gc(&small(total - 1)).unwrap();
    assert_eq!((report.entries, report.evicted), (8, 5), "{report:?}");
    for n in 0..8 {
        let spared = [0, 1, 7].contains(&n);
        assert!(file_of(folder.path(), &key(n)).exists() || !spared, "{n} was used lately, or is held");
    }
    let report = vault.gc(&small(1)).unwrap();
    assert!(file_of(folder.path(), &key(7)).exists(), "it is held: {report:?}");
    assert_eq!(vault.usage().entries, 1);
    drop(held);
}

#[test]
fn gc_by_age_and_a_clock_set_back() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    for n in 0..4 {
        vault.put(&key(n), plan(n)).unwrap();
        let days = [1, 40, 2, 50][n as usize];
        let file = std::fs::File::options().write(true).open(file_of(folder.path(), &key(n))).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(days * 86_400)).unwrap();
    }
    let month =
        DiskLimits { max_bytes: None, max_age: Some(Duration::from_secs(30 * 86_400)), ..DiskLimits::default() };
    // The clock was set back by ten years: every stamp lies in the future, and nothing may be lost for that.
    let past = || SystemTime::now() - Duration::from_secs(3650 * 86_400);
    let back = Vault::open(options(folder.path()).clock(past)).unwrap();
    assert_eq!(back.gc(&month).unwrap().evicted, 0);
    for n in 0..4 {
        assert!(matches!(back.get(&key(n)), Lookup::Hit(_)));
    }
    // Those reads stamped the entries with the wrong time; so age is told from that, not from the real use.
    let fresh = tempfile::tempdir().unwrap();
    let vault = open(fresh.path());
    for n in 0..4 {
        vault.put(&key(n), plan(n)).unwrap();
        let days = [1, 40, 2, 50][n as usize];
        let file = std::fs::File::options().write(true).open(file_of(fresh.path(), &key(n))).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(days * 86_400)).unwrap();
    }
    let report = open(fresh.path()).gc(&month).unwrap();
    assert_eq!(report.evicted, 2);
    assert!(file_of(fresh.path(), &key(0)).exists() && file_of(fresh.path(), &key(2)).exists());
}

#[test]
fn a_disk_hit_stamps_once_per_process_and_key() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).put(&key(1), plan(1)).unwrap();
    let path = file_of(folder.path(), &key(1));
    let old = SystemTime::now() - Duration::from_secs(90_000);
    let stamp = |time| std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    let stamped = || std::fs::metadata(&path).unwrap().modified().unwrap();
    stamp(old);
    // No memory, so that every look-up goes to the disk.
    let vault = Vault::open(options(folder.path()).memory(0, 0)).unwrap();
    assert!(matches!(vault.get(&key(1)), Lookup::Hit(_)));
    assert!(stamped() > old + Duration::from_secs(80_000));
    stamp(old);
    assert!(matches!(vault.get(&key(1)), Lookup::Hit(_)));
    assert!(stamped() < old + Duration::from_secs(10));
}

#[test]
fn gc_clears_what_dead_writers_left_and_nothing_foreign() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    vault.put(&key(1), plan(1)).unwrap();
    let part = file_of(folder.path(), &key(1)).parent().unwrap().to_owned();
    let old = SystemTime::now() - Duration::from_secs(7200);
    for (name, time) in [(".tmp-old", old), (".tmp-new", SystemTime::now()), ("notes.txt", old)] {
        std::fs::File::create(part.join(name)).unwrap().set_modified(time).unwrap();
    }
    let locks = inside(folder.path()).join("locks");
    let [held_lock, dead_lock] = [2, 3].map(|n| locks.join(format!("{}.lock", key(n))));
    let held = std::fs::File::create(&held_lock).unwrap();
    held.lock().unwrap();
    held.set_modified(old).unwrap();
    std::fs::File::create(&dead_lock).unwrap().set_modified(old).unwrap();
    let report = vault.gc(&DiskLimits::default()).unwrap();
    assert_eq!((report.leftovers, report.evicted), (2, 0), "{report:?}");
    for (name, there) in [(".tmp-old", false), (".tmp-new", true), ("notes.txt", true)] {
        assert_eq!(part.join(name).exists(), there, "{name}");
    }
    assert!(held_lock.exists() && !dead_lock.exists());
}

/// A host whose clock was two hours ahead deleted the files that others were writing.
#[test]
fn a_collector_ahead_of_time_leaves_files_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let ahead = || SystemTime::now() + Duration::from_secs(7200);
    let vault = Vault::open(options(folder.path()).clock(ahead)).unwrap();
    vault.put(&key(1), plan(1)).unwrap();
    let in_flight = file_of(folder.path(), &key(1)).with_file_name(".tmp-now");
    std::fs::write(&in_flight, b"half an entry").unwrap();
    let report = vault.gc(&DiskLimits::default()).unwrap();
    assert_eq!(report.leftovers, 0, "{report:?}");
    assert!(in_flight.exists());
}

#[test]
fn the_vault_collects_by_itself_when_it_grows() {
    let folder = tempfile::tempdir().unwrap();
    let limits = DiskLimits { max_bytes: Some(60_000), grace: Duration::ZERO, ..DiskLimits::default() };
    let vault = Vault::open(options(folder.path()).limits(limits).memory(0, 0)).unwrap();
    let end = std::time::Instant::now() + Duration::from_secs(20);
    let mut n = 0;
    while vault.stats().evicted_disk == 0 {
        assert!(std::time::Instant::now() < end, "nothing was collected: {:?}", vault.usage());
        vault.put(&key(n), plan_of(n, 10_000)).unwrap();
        // Older than now by more than the resolution of any clock.
        let file = std::fs::File::options().write(true).open(file_of(folder.path(), &key(n)));
        if let Ok(file) = file {
            file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
        }
        n += 1;
    }
}
