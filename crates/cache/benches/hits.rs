//! What a look-up costs: `cargo bench -p qkvault-cache --bench hits`. The goals are told in `docs/vault.md`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use qkvault_cache::{Vault, VaultOptions};

mod kit;

fn vault(folder: &tempfile::TempDir, memory: bool) -> Vault {
    let options = VaultOptions::in_folder(folder.path()).without_environment().durable(false);
    let options = if memory { options } else { options.memory(0, 0) };
    Vault::open(options).expect("a temporary folder can be used")
}

fn memory(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let vault = vault(&folder, true);
    for n in 0..64 {
        vault.put(&kit::key(n), kit::plan(n, 4_000)).expect("stored");
    }
    let keys: Vec<_> = (0..64).map(kit::key).collect();
    criterion.bench_function("memory hit, 1 thread", |bencher| {
        let mut n = 0;
        bencher.iter(|| {
            n = (n + 1) % keys.len();
            black_box(vault.get(&keys[n]))
        });
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for (name, spread) in [("memory hit, 8 threads, 64 keys", 64), ("memory hit, 8 threads, one key", 1)] {
        // The time that a hit keeps one core busy: with fewer cores than threads, waiting for a turn is not counted.
        // Many hits to an iteration, so that starting eight threads does not count as hitting.
        const MANY: usize = 1_000;
        criterion.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                let start = Instant::now();
                std::thread::scope(|scope| {
                    for thread in 0..8 {
                        let (vault, keys) = (&vault, &keys);
                        scope.spawn(move || {
                            for n in 0..iterations as usize * MANY {
                                let _ = black_box(vault.get(&keys[(n + thread * 7) % spread]));
                            }
                        });
                    }
                });
                start.elapsed().mul_f64(cores.min(8) as f64 / (8 * MANY) as f64)
            });
        });
    }
}

fn disk(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let vault = vault(&folder, false);
    for n in 0..64 {
        vault.put(&kit::key(n), kit::plan(n, 120_000)).expect("stored");
    }
    let mut n = 0;
    criterion.bench_function("disk hit, 120 KB", |bencher| {
        bencher.iter(|| {
            n = (n + 1) % 64;
            black_box(vault.get(&kit::key(n)))
        });
    });
    let mut n = 0;
    criterion.bench_function("put, 120 KB, not synced", |bencher| {
        let plan = kit::plan(1, 120_000);
        bencher.iter(|| {
            n = (n + 1) % 64;
            black_box(vault.put(&kit::key(n), plan.clone()))
        });
    });
}

fn absent(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let vault = vault(&folder, false);
    let plan = kit::plan(0, 200);
    for n in 0..100_000 {
        vault.put(&kit::key(n), plan.clone()).expect("stored");
    }
    let mut n = 1_000_000;
    criterion.bench_function("absent among 100,000", |bencher| {
        bencher.iter(|| {
            n += 1;
            black_box(vault.get(&kit::key(n)))
        });
    });
}

criterion_group! {
    name = hits;
    config = Criterion::default().measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    targets = memory, disk, absent
}
criterion_main!(hits);
