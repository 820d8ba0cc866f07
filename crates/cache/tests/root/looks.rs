//! Lists, shows, checks and clears.

use qkvault_cache::{Depth, Lookup, Mode, RejectionCause, Source, StoreError, Vault};

use super::kit::*;

#[test]
fn lists_read_headers_only_and_change_nothing() {
    let (low, top) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for n in 0..5 {
        open(low.path()).put(&key(n), plan(n)).unwrap();
    }
    let vault = Vault::open(options(top.path()).layers([low.path().to_owned()]).copy_up(false)).unwrap();
    for n in 3..8 {
        vault.put(&key(n), plan(n)).unwrap();
    }
    // A bad payload under a good header: a list does not see it.
    let path = file_of(top.path(), &key(7));
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    std::fs::write(file_of(top.path(), &key(6)), b"rubbish").unwrap();

    let listed: Vec<_> = vault.ls().collect();
    assert_eq!(listed.len(), 10);
    assert_eq!(listed.iter().filter(|listed| listed.source == Source::Layer(0)).count(), 5);
    assert_eq!(listed.iter().filter(|listed| listed.shadowed).count(), 2);
    let bad: Vec<_> = listed.iter().filter(|listed| listed.header.is_err()).collect();
    assert!(bad.len() == 1 && bad[0].key == key(6), "{bad:?}");
    let header = listed[0].header.as_ref().unwrap();
    assert_eq!(header.payload_len, 2_000);
    assert_eq!(listed[0].file_bytes, std::fs::metadata(&listed[0].path).unwrap().len());
    let keys: Vec<_> = listed.iter().filter(|l| l.source == Source::Disk).map(|l| l.key).collect();
    assert!(keys.is_sorted(), "by key");
    assert_eq!(vault.stats().rejected(), 0, "looking counts nothing");
    assert!(quarantined(top.path()).is_empty());

    let report = vault.verify(Depth::Header);
    assert_eq!((report.good, report.bad.len()), (9, 1));
    for depth in [Depth::Stored, Depth::Payload] {
        let report = vault.verify(depth);
        let causes: Vec<_> = report.bad.iter().map(|(listed, why)| (listed.key, why.cause())).collect();
        assert_eq!(report.good, 8);
        assert!(
            causes.contains(&(key(6), RejectionCause::Magic))
                && causes.contains(&(key(7), RejectionCause::StoredChecksum)),
            "{causes:?}"
        );
    }
}

#[test]
fn show_tells_every_place_of_a_key() {
    let (low, top) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    open(low.path()).put(&key(1), plan(1)).unwrap();
    let vault = Vault::open(options(top.path()).layers([low.path().to_owned()])).unwrap();
    assert!(vault.show(&key(2)).is_empty());
    vault.put(&key(1), plan(1)).unwrap();
    let shown = vault.show(&key(1));
    assert_eq!(shown.len(), 2);
    assert_eq!((shown[0].0.shadowed, shown[1].0.shadowed), (false, true));
    assert_eq!(shown[1].1.as_ref().unwrap(), &plan(1));
}

#[test]
fn a_long_header_is_listed_too() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(folder.path());
    let long = qkvault_cache::Entry { meta: vec![5; 60_000], ..plan(1) };
    vault.put(&key(1), long.clone()).unwrap();
    let listed: Vec<_> = vault.ls().collect();
    assert_eq!(listed[0].header.as_ref().unwrap().meta, long.meta);
}

#[test]
fn clear_empties_the_folder_and_memory_but_no_layer() {
    let (low, top) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    open(low.path()).put(&key(1), plan(1)).unwrap();
    let vault = Vault::open(options(top.path()).layers([low.path().to_owned()])).unwrap();
    for n in 2..5 {
        vault.put(&key(n), plan(n)).unwrap();
    }
    std::fs::write(top.path().join("mine.txt"), b"keep").unwrap();
    assert_eq!(vault.clear().unwrap().entries, 3);
    assert_eq!(vault.usage().entries, 0);
    assert!(matches!(vault.get(&key(2)), Lookup::Absent));
    assert!(matches!(vault.get(&key(1)), Lookup::Hit(_)));
    assert!(top.path().join("mine.txt").exists());
    let ro = Vault::open(options(top.path()).mode(Mode::ReadOnly)).unwrap();
    assert!(matches!(ro.clear(), Err(StoreError::NotWritable { mode: "ro" })));
}

#[test]
fn every_flipped_byte_of_a_file_is_survived_and_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).put(&key(1), plan_of(1, 600)).unwrap();
    open(folder.path()).put(&key(2), plan(2)).unwrap();
    let path = file_of(folder.path(), &key(1));
    let good = std::fs::read(&path).unwrap();
    let vault = Vault::open(options(folder.path()).memory(0, 0)).unwrap();
    let never = || -> Result<_, std::convert::Infallible> { panic!("not built") };
    for (n, at) in (0..good.len()).chain(0..good.len()).enumerate() {
        let mut bytes = good.clone();
        match n < good.len() {
            true => bytes[at] ^= 0x41,
            false => bytes.truncate(at),
        }
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(vault.get(&key(1)), Lookup::Rejected(_)), "case {n} at {at} was served");
        let build = || Ok::<_, std::convert::Infallible>(plan_of(1, 600));
        assert_eq!(*vault.get_or_build(&key(1), build).unwrap().entry, plan_of(1, 600));
        assert_eq!(*vault.get_or_build(&key(1), never).unwrap().entry, plan_of(1, 600));
    }
    assert!(matches!(vault.get(&key(2)), Lookup::Hit(entry) if *entry == plan(2)));
    assert!(quarantined(folder.path()).len() <= 64, "the quarantine is bounded");
    let stats = vault.stats();
    assert_eq!(stats.rejected(), 2 * good.len() as u64);
    assert_eq!((stats.builds, stats.quarantined), (stats.rejected(), stats.rejected()));
}
