//! Entries and packs of a vault. The functions of bytes are those of `qkvault_cache`, which sees its own checks; what a
//! pack does to a vault is seen here from outside, with packs of the real writer.

use std::sync::LazyLock;

use qkvault_cache::{
    Entry, EntryKind, Key, Lookup, PackLimits, PackManifest, PackOptions, SealKey, UnpackOptions, Vault, VaultOptions,
    fuzz, verify_pack,
};

use super::{FuzzOutcome, FuzzTarget, none};

/// An entry's file.
pub(super) const ENTRY: FuzzTarget = FuzzTarget {
    name: "entry",
    about: "an entry's file",
    seeds: none,
    words: &["sm_90", "9.27.0"],
    check: |bytes| outcome(fuzz::entry(bytes)),
};

/// An entry's file behind its checksums.
pub(super) const ENTRY_SIGNED: FuzzTarget = FuzzTarget {
    name: "entry_signed",
    about: "an entry's file, with right checksums",
    seeds: none,
    words: &["sm_90", "9.27.0"],
    check: |bytes| outcome(fuzz::entry_signed(bytes)),
};

/// A pack.
pub(super) const PACK: FuzzTarget = FuzzTarget {
    name: "pack",
    about: "a pack, and what it does to a vault",
    seeds: || PACKS.unsealed.clone(),
    words: &["sm_90", "9.27.0"],
    check: |bytes| outcome(fuzz::pack(bytes).inspect(|manifest| unpacked(bytes, manifest, None))),
};

/// A pack behind its checksums.
pub(super) const PACK_SIGNED: FuzzTarget = FuzzTarget {
    name: "pack_signed",
    about: "a pack with right checksums, and what it does to a vault",
    seeds: none,
    words: &["sm_90", "9.27.0"],
    check: |bytes| {
        let Some(pack) = fuzz::signed_pack(bytes) else { return FuzzOutcome::refused("too short") };
        outcome(fuzz::pack(&pack).inspect(|manifest| unpacked(&pack, manifest, None)))
    },
};

/// A sealed pack: whoever has no secret makes none.
pub(super) const PACK_SEALED: FuzzTarget = FuzzTarget {
    name: "pack_sealed",
    about: "a sealed pack, read with the secret",
    seeds: || PACKS.sealed.clone(),
    words: &["sm_90", "9.27.0"],
    check: |bytes| {
        let options = UnpackOptions { seal: Some(seal()), ..options() };
        let found = verify_pack(bytes, &options);
        if let Ok(manifest) = &found {
            assert!(PACKS.sealed.iter().any(|pack| pack == bytes), "a pack that nobody sealed was accepted");
            unpacked(bytes, manifest, Some(seal()));
        }
        outcome(found.map(|manifest| manifest.entries.len()).map_err(|error| error.to_string()))
    },
};

fn outcome<T>(found: Result<T, String>) -> FuzzOutcome {
    found.map_or_else(|error| FuzzOutcome::refused(&error), |_| FuzzOutcome::taken("whole"))
}

/// Options for packs without a seal.
fn options() -> UnpackOptions {
    let limits = PackLimits { packed_bytes: 1 << 20, plain_bytes: 4 << 20, ..PackLimits::default() };
    UnpackOptions { limits, ..UnpackOptions::default() }
}

fn seal() -> SealKey {
    SealKey::new([7; 32])
}

/// Packs that the writer makes.
struct Packs {
    unsealed: Vec<Vec<u8>>,
    sealed: Vec<Vec<u8>>,
}

static PACKS: LazyLock<Packs> = LazyLock::new(|| {
    let with = |options: &PackOptions| [1, 3].map(|count| packed(count, options)).to_vec();
    Packs {
        unsealed: with(&PackOptions::default()),
        sealed: with(&PackOptions { seal: Some(seal()), ..PackOptions::default() }),
    }
});

fn entry(n: u8) -> Entry {
    let kind = if n == 2 { EntryKind::Refusal } else { EntryKind::Plan };
    let (what, payload) = (format!("attention {n}"), (0..400).map(|i| (i % 251) as u8 ^ n).collect());
    Entry { kind, target: "sm_90".into(), what, library: "9.27.0".into(), meta: vec![n; 9], payload }
}

/// A vault in a folder, which is looked at by nobody else.
fn vault(folder: &std::path::Path) -> Vault {
    let options = VaultOptions::in_folder(folder).without_environment().durable(false);
    Vault::open(options).expect("a vault in a new folder opens")
}

fn packed(count: u8, options: &PackOptions) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let vault = vault(folder.path());
    for n in 0..count {
        vault.put(&Key([n; 32]), entry(n)).expect("it is stored");
    }
    let mut bytes = Vec::new();
    vault.pack(|_| true, options, &mut bytes).expect("it is packed");
    bytes
}

/// Unpacks a pack that was accepted: the vault has exactly what the manifest says, and packs it again.
fn unpacked(pack: &[u8], manifest: &PackManifest, seal: Option<SealKey>) {
    let folder = tempfile::tempdir().expect("a folder");
    let report = vault(folder.path()).unpack(pack, |_| true, &UnpackOptions { seal, ..options() });
    let report = report.expect("an accepted pack unpacks");
    assert_eq!((report.entries, report.stored), (manifest.entries.len() as u64, manifest.entries.len() as u64));
    let fresh = vault(folder.path());
    assert_eq!(fresh.usage().entries, report.entries, "nothing else is there");
    for line in &manifest.entries {
        let Lookup::Hit(found) = fresh.get(&line.key) else { panic!("{} was packed and is not there", line.key) };
        let labels = (&found.library, &found.target, &found.what);
        assert_eq!((found.kind, labels), (line.kind, (&line.library, &line.target, &line.what)));
    }
    let mut again = Vec::new();
    fresh.pack(|_| true, &PackOptions::default(), &mut again).expect("it is packed again");
    let by_key = |mut manifest: PackManifest| {
        manifest.entries.sort_by_key(|line| line.key);
        manifest.entries
    };
    let again = verify_pack(&again[..], &options()).expect("what was packed is accepted");
    assert_eq!(by_key(again), by_key(manifest.clone()), "packed again, it is the same");
}
