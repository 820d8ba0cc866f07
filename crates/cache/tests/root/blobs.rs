//! Kernels that many plans share: stored once, never trusted, never taken away from who needs them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use qkvault_cache::{
    Cause, Clock, Codec, Depth, DiskLimits, Entry, Lookup, PackOptions, Rejection, UnpackOptions, Vault,
};

use super::kit::*;

/// A vault that forgets what it read, also of blobs.
fn forgetful(folder: &Path) -> Vault {
    Vault::open(options(folder).memory(0, 0)).unwrap()
}

fn blob_files(folder: &Path) -> Vec<PathBuf> {
    let parts = std::fs::read_dir(folder.join("vault/v2/blobs")).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> =
        parts.flat_map(|part| std::fs::read_dir(part.path()).unwrap().flatten()).map(|f| f.path()).collect();
    files.sort();
    files
}

fn never() -> Result<Entry, std::convert::Infallible> {
    panic!("not built")
}

#[test]
fn a_family_stores_its_kernel_once_and_takes_a_fraction() {
    let folder = tempfile::tempdir().unwrap();
    let vault = forgetful(folder.path());
    for n in 0..20 {
        vault.put(&key(n), member(0, n)).unwrap();
    }
    assert_eq!(blob_files(folder.path()).len(), 1);
    let usage = vault.usage();
    assert_eq!((usage.entries, usage.blobs), (20, 1));
    let alone: usize = (0..20).map(|n| qkvault_cache::encode(&key(n), &member(0, n), Codec::Zstd).unwrap().len()).sum();
    let shared = usage.bytes + usage.blob_bytes;
    assert!(shared * 8 < alone as u64, "{shared} bytes, and {alone} without sharing");
    for vault in [forgetful(folder.path()), open(folder.path())] {
        for n in 0..20 {
            assert_eq!(
                *vault.get_or_build(&key(n), never).unwrap().entry,
                member(0, n),
                "what comes back is what was given"
            );
        }
    }
    let header = vault.ls().next().unwrap().header.unwrap();
    assert_eq!((header.codec, header.shared.len()), (Codec::Shared, 1));
}

#[test]
fn every_flip_and_cut_of_a_blob_is_a_miss_with_a_reason_and_is_built_again() {
    let folder = tempfile::tempdir().unwrap();
    let vault = forgetful(folder.path());
    vault.put(&key(1), member(0, 1)).unwrap();
    vault.put(&key(2), member(0, 2)).unwrap();
    let path = blob_files(folder.path()).remove(0);
    let good = std::fs::read(&path).unwrap();
    // Every byte of the header, and some of the kernel; every length would take minutes.
    let places = (0..130).chain((130..good.len()).step_by(397));
    for at in places {
        for cut in [false, true] {
            let mut bytes = good.clone();
            if cut {
                bytes.truncate(at);
            } else {
                bytes[at] ^= 0x41;
            }
            std::fs::write(&path, &bytes).unwrap();
            for n in [1, 2] {
                let found = vault.get(&key(n));
                assert!(matches!(&found, Lookup::Rejected(Rejection::Blob { .. })), "{at} {cut}: {found:?}");
            }
            let built = vault.get_or_build(&key(1), || Ok::<_, String>(member(0, 1))).unwrap();
            assert!(built.unstored.is_none());
            assert_eq!(std::fs::read(&path).unwrap(), good, "the build has put the blob right");
            assert_eq!(*vault.get_or_build(&key(2), never).unwrap().entry, member(0, 2), "and with it the others");
        }
    }
    assert!(quarantined(folder.path()).is_empty(), "the entries were good all the time");
}

#[test]
fn a_missing_blob_is_told_by_every_way_of_looking() {
    let folder = tempfile::tempdir().unwrap();
    let vault = forgetful(folder.path());
    for n in 0..3 {
        vault.put(&key(n), member(0, n)).unwrap();
    }
    vault.put(&key(9), member(1, 9)).unwrap();
    let header = vault.show(&key(0)).remove(0).0.header.unwrap();
    let name = header.shared[0].to_string();
    let path = folder.path().join("vault/v2/blobs").join(&name[..2]).join(format!("{name}.qkv"));
    std::fs::remove_file(&path).unwrap();
    for depth in [Depth::Stored, Depth::Payload] {
        let report = vault.verify(depth);
        assert_eq!((report.good, report.good_blobs, report.bad.len()), (1, 1, 3), "{depth:?}");
        assert!(report.bad.iter().all(|(_, why)| why.cause() == Cause::Blob && why.to_string().contains("not there")));
    }
    let mut out = Vec::new();
    let report = vault.pack(|_| true, &PackOptions::default(), &mut out).unwrap();
    assert_eq!((report.entries, report.skipped.len()), (1, 3));
    // A torn one is told as itself, too.
    std::fs::write(&path, b"torn").unwrap();
    let report = vault.verify(Depth::Stored);
    assert!(report.bad_blobs.len() == 1 && report.bad.len() == 3, "{report:?}");
}

#[test]
fn a_pack_carries_the_kernels_and_unpacking_shares_them_again() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let vault = forgetful(from.path());
    for n in 0..10 {
        vault.put(&key(n), member(n / 5, n)).unwrap();
    }
    let mut pack = Vec::new();
    vault.pack(|_| true, &PackOptions::default(), &mut pack).unwrap();
    let there = forgetful(to.path());
    there.unpack(&pack[..], |_| true, &UnpackOptions::default()).unwrap();
    assert_eq!(blob_files(to.path()).len(), 2);
    for n in 0..10 {
        assert_eq!(*there.get_or_build(&key(n), never).unwrap().entry, member(n / 5, n));
    }
}

#[test]
fn layers_bring_their_own_blobs_and_a_copy_shares_above() {
    let (low, top) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    open(low.path()).put(&key(1), member(0, 1)).unwrap();
    open(low.path()).put(&key(2), member(0, 2)).unwrap();
    let vault = Vault::open(options(top.path()).layers([low.path().to_owned()]).memory(0, 0)).unwrap();
    for n in [1, 2] {
        assert_eq!(*vault.get_or_build(&key(n), never).unwrap().entry, member(0, n));
    }
    std::fs::remove_dir_all(low.path().join("vault")).unwrap();
    for n in [1, 2] {
        assert_eq!(*forgetful(top.path()).get_or_build(&key(n), never).unwrap().entry, member(0, n));
    }
}

#[test]
fn gc_removes_a_blob_with_its_last_entry_and_counts_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let vault = forgetful(folder.path());
    for n in 0..6 {
        vault.put(&key(n), member(n / 3, n)).unwrap();
    }
    let later = |hours: u64| -> Vault {
        let clock: Clock = Arc::new(move || SystemTime::now() + Duration::from_secs(3600 * hours));
        Vault::open(options(folder.path()).memory(0, 0).clock(clock)).unwrap()
    };
    // The entries of the second family are used later, so those of the first go.
    for n in 3..6 {
        std::fs::File::options()
            .write(true)
            .open(file_of(folder.path(), &key(n)))
            .unwrap()
            .set_modified(SystemTime::now() + Duration::from_secs(1800))
            .unwrap();
    }
    let usage = vault.usage();
    let all = usage.bytes + usage.blob_bytes;
    let limits = |max| DiskLimits { max_bytes: Some(max), low_water: 1.0, ..DiskLimits::default() };
    let report = later(2).gc(&limits(all)).unwrap();
    assert_eq!((report.bytes, report.blobs, report.evicted, report.removed_blobs), (all, 2, 0, 0));
    let report = later(2).gc(&limits(all - usage.bytes / 6 * 2)).unwrap();
    assert_eq!((report.evicted, report.removed_blobs), (2, 0), "one entry still needs the kernel: {report:?}");
    let report = later(2).gc(&limits(all / 2 + 100)).unwrap();
    assert_eq!((report.evicted, report.removed_blobs), (1, 1), "{report:?}");
    for n in 3..6 {
        assert_eq!(*forgetful(folder.path()).get_or_build(&key(n), never).unwrap().entry, member(1, n));
    }
    // A clear leaves nothing, and a blob that was left behind goes once it is old.
    std::fs::remove_file(file_of(folder.path(), &key(3))).unwrap();
    std::fs::remove_file(file_of(folder.path(), &key(4))).unwrap();
    std::fs::remove_file(file_of(folder.path(), &key(5))).unwrap();
    assert_eq!(vault.gc(&limits(0)).unwrap().removed_blobs, 0, "just written: its entry may be on its way");
    assert_eq!(later(2).gc(&limits(u64::MAX)).unwrap().removed_blobs, 1);
    vault.put(&key(1), member(0, 1)).unwrap();
    vault.clear().unwrap();
    assert!(blob_files(folder.path()).is_empty());
}

/// Entries in a part that cannot be read may need any blob.
#[test]
fn gc_keeps_every_blob_when_it_cannot_see_every_entry() {
    let folder = tempfile::tempdir().unwrap();
    let vault = forgetful(folder.path());
    vault.put(&key(1), member(0, 1)).unwrap();
    // Its header cannot be read for a reason that says nothing about it: others can write to it.
    let path = file_of(folder.path(), &key(1));
    let clock: Clock = Arc::new(|| SystemTime::now() + Duration::from_secs(1800));
    let later = Vault::open(options(folder.path()).memory(0, 0).clock(clock)).unwrap();
    let limits = DiskLimits { max_bytes: None, ..DiskLimits::default() };
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(later.gc(&limits).unwrap().removed_blobs, 0);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    assert_eq!(*forgetful(folder.path()).get_or_build(&key(1), never).unwrap().entry, member(0, 1));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(later.gc(&limits).unwrap().removed_blobs, 1);
}

/// A collector of another host, whose clock is half an hour ahead, removes what no entry needs while writers come and go.
#[test]
fn writers_and_collectors_never_part_an_entry_from_its_blob() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    let done = AtomicBool::new(false);
    let removed = std::thread::scope(|scope| {
        let collect = || {
            let clock: Clock = Arc::new(|| SystemTime::now() + Duration::from_secs(1800));
            let vault = Vault::open(options(folder.path()).memory(0, 0).clock(clock)).unwrap();
            let limits = DiskLimits { max_bytes: Some(0), grace: Duration::ZERO, ..DiskLimits::default() };
            let mut removed = 0;
            while !done.load(Ordering::Relaxed) {
                removed += vault.gc(&limits).unwrap().removed_blobs;
            }
            removed
        };
        let collectors = [(); 2].map(|()| scope.spawn(collect));
        let writers: Vec<_> = (0..3)
            .map(|thread| {
                let folder = folder.path();
                scope.spawn(move || {
                    let vault = forgetful(folder);
                    for round in 0..60 {
                        let n = thread * 1000 + round;
                        vault.put(&key(n), member(round % 2, n)).unwrap();
                        match vault.get(&key(n)) {
                            Lookup::Hit(entry) => assert_eq!(*entry, member(round % 2, n)),
                            // Collected since, entry first.
                            Lookup::Absent => {}
                            // Its blob was taken away and is being put back, or the entry went while it was read.
                            Lookup::Rejected(why) => assert_eq!(why.cause(), Cause::Blob, "{why}"),
                        }
                    }
                })
            })
            .collect();
        let writers: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        // Before a failure is passed on, or the collectors would go on for ever.
        done.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.unwrap());
        collectors.map(|collector| collector.join().unwrap()).iter().sum::<u64>()
    });
    assert!(removed > 0, "nothing was removed, so nothing was tried");
    let report = open(folder.path()).verify(Depth::Payload);
    assert!(report.bad.is_empty() && report.bad_blobs.is_empty(), "{report:?}");
    assert!(quarantined(folder.path()).is_empty() && leftovers(folder.path()).is_empty());
}
