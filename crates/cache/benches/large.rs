//! What large folders cost, each measured once: `cargo bench -p qkvault-cache --bench large`.
//!
//! Making a folder of 100,000 entries takes longer than collecting it, so these are not repeated as criterion would.
#![allow(clippy::print_stdout, reason = "it reports to whoever runs it")]

use std::time::{Duration, Instant, SystemTime};

use qkvault_cache::{Depth, DiskLimits, Vault, VaultOptions};

mod kit;

fn fill(count: u64, bytes: usize) -> (tempfile::TempDir, Vault) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let later = || SystemTime::now() + Duration::from_secs(3600);
    let limits = DiskLimits { max_bytes: None, ..DiskLimits::default() };
    let options = VaultOptions::in_folder(folder.path()).without_environment().durable(false).memory(0, 0);
    let vault = Vault::open(options.limits(limits).clock(later)).expect("it can be used");
    let plan = kit::plan(1, bytes);
    for n in 0..count {
        vault.put(&kit::key(n), plan.clone()).expect("stored");
    }
    (folder, vault)
}

fn time<T>(what: &str, work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    let took = start.elapsed();
    println!("{what}: {:.3} s", took.as_secs_f64());
    (result, took)
}

/// Empties the system's file cache, where that is allowed, so that the disk is read.
fn forget_files() -> bool {
    std::fs::write("/proc/sys/vm/drop_caches", b"3").is_ok()
}

fn main() {
    // Cargo also runs benches as tests, with an argument of its own; then there is nothing to do.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    // `-- gc` or `-- verify` runs one of the two.
    let asked: Vec<String> =
        std::env::args().filter(|argument| ["gc", "verify"].contains(&argument.as_str())).collect();
    let wants = |name: &str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    if wants("gc") {
        collect();
    }
    if wants("verify") {
        verify();
    }
}

fn collect() {
    let (_folder, vault) = fill(100_000, 200);
    let usage = vault.usage();
    println!("100,000 entries, {} bytes", usage.bytes);
    // With everything written out, deleting costs what it costs later in the life of a folder.
    let _ = std::process::Command::new("sync").status();
    let limit = |max_bytes| DiskLimits { max_bytes: Some(max_bytes), ..DiskLimits::default() };
    time("gc of 100,000 entries, nothing to evict", || vault.gc(&limit(u64::MAX)).expect("collected"));
    time("ls of 100,000 entries (every header)", || vault.ls().count());
    let (report, _) =
        time("gc of 100,000 entries, 60 % evicted", || vault.gc(&limit(usage.bytes / 2)).expect("collected"));
    println!("  evicted {} of {}", report.evicted, report.entries);
}

fn verify() {
    let (folder, vault) = fill(10_000, 120_000);
    let bytes = vault.usage().bytes;
    println!("10,000 entries, {:.0} MB on disk", bytes as f64 / 1e6);
    for cold in [false, true] {
        if cold && !forget_files() {
            println!("the file cache cannot be emptied here: only warm files are measured");
            break;
        }
        let state = if cold { "cold" } else { "warm" };
        let read =
            || vault.ls().filter_map(|listed| std::fs::read(listed.path).ok()).map(|bytes| bytes.len()).sum::<usize>();
        let (_, plain) = time(&format!("plain read of all files, one thread, {state}"), read);
        for depth in [Depth::Stored, Depth::Payload] {
            if cold {
                forget_files();
            }
            let (report, took) = time(&format!("verify of 10,000 entries, {depth:?}, {state}"), || vault.verify(depth));
            assert_eq!(report.good, 10_000);
            let speed = bytes as f64 / 1e6 / took.as_secs_f64();
            println!("  {speed:.0} MB/s of files, {:.2} of the plain read", plain.as_secs_f64() / took.as_secs_f64());
        }
    }
    drop(folder);
}
