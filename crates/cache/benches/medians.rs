//! The costs of `hits`, told as medians of single operations: `cargo bench -p qkvault-cache --bench medians`.
//!
//! On a machine that is busy with other work a mean counts the time for which this process had to wait for a core. An
//! operation is much shorter than a turn on a core, so the median over single ones does not.
#![allow(clippy::print_stdout, reason = "it reports to whoever runs it")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use qkvault_cache::{Vault, VaultOptions};

mod kit;

const PLAN: usize = 120_000;

fn median(mut times: Vec<Duration>, each: u32) -> Duration {
    times.sort_unstable();
    times[times.len() / 2] / each
}

fn told(what: &str, times: Vec<Duration>, each: u32) {
    println!("{what}: {:?}", median(times, each));
}

/// Times of single calls, the number of which is told to each.
fn timed<T>(count: u64, mut work: impl FnMut(u64) -> T) -> Vec<Duration> {
    let one = |n| {
        let start = Instant::now();
        black_box(work(n));
        start.elapsed()
    };
    (0..count).map(one).collect()
}

fn main() {
    // Cargo also runs benches as tests, with an argument of its own; then there is nothing to do.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let folder = || tempfile::tempdir().expect("a temporary folder");
    let open = |folder: &tempfile::TempDir, entries, bytes| {
        let options = VaultOptions::in_folder(folder.path()).without_environment().durable(false);
        Vault::open(options.memory(entries, bytes)).expect("a temporary folder can be used")
    };

    let place = folder();
    let vault = open(&place, 1024, 256 << 20);
    for n in 0..64 {
        vault.put(&kit::key(n), kit::plan(n, 4_000)).expect("stored");
    }
    const BATCH: u32 = 1_000;
    for (name, spread) in [("one key", 1), ("64 keys", 64)] {
        let batches: Vec<Duration> = std::thread::scope(|scope| {
            let hit = |thread: u64| {
                timed(2_000, |_| {
                    for n in 0..u64::from(BATCH) {
                        let _ = black_box(vault.get(&kit::key((n + thread * 7) % spread)));
                    }
                })
            };
            let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || hit(thread))).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("it ends")).collect()
        });
        told(&format!("memory hit, 8 threads, {name}"), batches, BATCH);
    }

    let place = folder();
    let vault = open(&place, 0, 0);
    for n in 0..64 {
        vault.put(&kit::key(n), kit::plan(n, PLAN)).expect("stored");
    }
    told("disk hit, 120 KB", timed(5_000, |n| vault.get(&kit::key(n % 64))), 1);
    assert_eq!(vault.stats().hits_memory, 0, "every hit was read from the disk");

    let place = folder();
    let vault = open(&place, 0, 0);
    for n in 0..100_000 {
        vault.put(&kit::key(n), kit::plan(0, 200)).expect("stored");
    }
    told("absent among 100,000", timed(20_000, |n| vault.get(&kit::key(1_000_000 + n))), 1);
}
