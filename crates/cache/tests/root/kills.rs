//! A writing process killed at random moments, a thousand times.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use qkvault_cache::{Depth, DiskLimits, Key, Lookup, Vault};

use super::child;
use super::kit::*;

const KEYS: u64 = 24;
/// The keys below this one are never deleted: once there, they must stay.
const KEPT: u64 = 12;
const KILLS: u32 = 1_000;

/// The job: writes the same keys over and over, with changing contents, until killed.
pub(crate) fn write_for_ever(folder: &Path) {
    let vault = Vault::open(options(folder).memory(0, 0)).unwrap();
    // Where in the round it starts differs, so that short lives reach every key.
    let start = u64::from(std::process::id());
    for n in start.. {
        let mut entry = plan_of(n % KEYS, 400 + (n % 7) as usize * 300);
        if n % 4 == 1 {
            // Some are as long as a real plan.
            entry.payload = plan_of(n, 40_000).payload;
        }
        entry.what = format!("attention {}", n % KEYS);
        if n % 3 == 0 {
            let built = vault.get_or_build(&key(n % KEYS), || Ok::<_, std::convert::Infallible>(entry));
            drop(built.unwrap());
        } else {
            vault.put(&key(n % KEYS), entry).unwrap();
        }
        if n % 50 == 0 {
            // Deletes some keys now and then, so that files also appear anew.
            let _ = std::fs::remove_file(file_of(folder, &key(KEPT + n / 50 % (KEYS - KEPT))));
        }
    }
}

#[test]
fn a_thousand_kills_lose_and_tear_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let vault = Vault::open(options(folder.path()).memory(0, 0)).unwrap();
    // An entry that no writer touches.
    let apart = Key([0xee; 32]);
    vault.put(&apart, plan(77)).unwrap();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut seen = HashSet::new();
    let end = Instant::now() + Duration::from_secs(60);
    let mut kills = 0;
    while kills < KILLS && Instant::now() < end {
        // Several at once: more kills per second on a busy machine, and writers that meet.
        let mut writers: Vec<_> =
            (0..4).map(|_| child::job("write for ever", folder.path()).spawn().unwrap()).collect();
        for writer in &mut writers {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            std::thread::sleep(Duration::from_micros(2_000 + random % 16_000));
            writer.kill().unwrap();
            kills += 1;
        }
        for writer in writers {
            // Killed by us; a writer that ended by itself had a failure to tell.
            let output = writer.wait_with_output().unwrap();
            assert_eq!(output.status.code(), None, "{}", String::from_utf8_lossy(&output.stderr));
        }
        let report = vault.verify(Depth::Payload);
        assert!(report.bad.is_empty(), "after {kills} kills: {:?}", report.bad);
        let there: HashSet<Key> = vault.ls().map(|listed| listed.key).collect();
        let lost = (0..KEPT).find(|n| seen.contains(&key(*n)) && !there.contains(&key(*n)));
        assert_eq!(lost, None, "a good entry was lost after {kills} kills");
        for listed in vault.ls() {
            let n = (0..KEYS).find(|n| key(*n) == listed.key);
            let header = listed.header.unwrap();
            assert_eq!(Some(header.what), n.map(|n| format!("attention {n}")).or(Some("attention 77".into())));
            seen.insert(listed.key);
        }
        assert!(matches!(vault.get(&apart), Lookup::Hit(entry) if *entry == plan(77)));
    }
    assert!(quarantined(folder.path()).is_empty());
    assert_eq!(seen.len() as u64, KEYS + 1, "every key was written at some time");
    eprintln!("{kills} kills, {} unfinished files left", leftovers(folder.path()).len());
    assert!(kills >= KILLS / 2, "only {kills} kills in a minute: the machine is too busy for this test");

    // Two hours later the leftovers are cleared away, and only they.
    for path in leftovers(folder.path()) {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(7200)).unwrap();
    }
    let vault = open(folder.path());
    let before = vault.usage();
    let report = vault.gc(&DiskLimits::default()).unwrap();
    assert!(report.leftovers >= before.temporary, "{report:?}, {before:?}");
    assert!(leftovers(folder.path()).is_empty());
    assert_eq!(vault.usage().entries, before.entries);
}
