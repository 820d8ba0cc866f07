//! Packs that a stranger alters with all checksums made right again: whatever is altered, no entry is served that the
//! pack's maker did not put there under that key, nothing is stored of a pack that is refused, and the error names what
//! is wrong.
//!
//! The packs are those of the real writer. What is altered is found through the format's documented offsets
//! (`docs/vault-format.md`), written down here once more.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use blake3::hash;
use qkvault_cache::{
    Entry, EntryKind, Key, Lookup, PackError, PackOptions, SealKey, UnpackOptions, Vault, verify_pack,
};

use super::kit::*;

/// Bytes of a pack's header, and offsets in it.
const HEADER: usize = 168;
const ENTRIES: usize = 12;
const MANIFEST_LEN: usize = 16;
const BODY_LEN: usize = 24;
const PLAIN_LEN: usize = 32;
const MANIFEST_HASH: usize = 40;
const BODY_HASH: usize = 72;
const SEAL: usize = 104;
const CHECKSUM: usize = 136;

/// Bytes of an entry in a manifest before its labels, and offsets in them.
const LINE: usize = 44;
const KIND: usize = 32;
const LABELS: usize = 33;
const BYTES: usize = 36;

/// A pack taken apart.
#[derive(Clone)]
struct Parts {
    head: Vec<u8>,
    /// The lines of the manifest.
    lines: Vec<Vec<u8>>,
    /// The entries of the body, decompressed.
    entries: Vec<Vec<u8>>,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().unwrap()
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(number(bytes, at))
}

impl Parts {
    fn from_pack(pack: &[u8]) -> Parts {
        let (head, rest) = pack.split_at(HEADER);
        let (manifest, body) = rest.split_at(long(head, MANIFEST_LEN) as usize);
        let plain = zstd::stream::decode_all(body).unwrap();
        let count = u32::from_le_bytes(number(head, ENTRIES));
        let (mut lines, mut entries, mut left, mut rest) = (Vec::new(), Vec::new(), manifest, &plain[..]);
        for _ in 0..count {
            let labels: usize = left[LABELS..LABELS + 3].iter().map(|n| usize::from(*n)).sum();
            let (line, after) = left.split_at(LINE + labels);
            let (entry, more) = rest.split_at(long(line, BYTES) as usize);
            lines.push(line.to_vec());
            entries.push(entry.to_vec());
            (left, rest) = (after, more);
        }
        assert!(left.is_empty() && rest.is_empty());
        Parts { head: head.to_vec(), lines, entries }
    }

    /// The pack with every length, sum and checksum of an attentive writer.
    fn whole(&self) -> Vec<u8> {
        self.with_body(&compressed(&self.entries.concat()))
    }

    /// The same around another body.
    fn with_body(&self, body: &[u8]) -> Vec<u8> {
        let (mut head, manifest) = (self.head.clone(), self.lines.concat());
        let plain: u64 = self.lines.iter().fold(0, |sum, line| sum.wrapping_add(long(line, BYTES)));
        head[ENTRIES..ENTRIES + 4].copy_from_slice(&(self.lines.len() as u32).to_le_bytes());
        for (at, value) in [(MANIFEST_LEN, manifest.len() as u64), (BODY_LEN, body.len() as u64), (PLAIN_LEN, plain)] {
            head[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        head[MANIFEST_HASH..BODY_HASH].copy_from_slice(hash(&manifest).as_bytes());
        head[BODY_HASH..SEAL].copy_from_slice(hash(body).as_bytes());
        signed([head, manifest, body.to_vec()].concat())
    }
}

/// A pack with the checksum of its header made right.
fn signed(mut pack: Vec<u8>) -> Vec<u8> {
    let checksum = hash(&pack[..CHECKSUM]);
    pack[CHECKSUM..HEADER].copy_from_slice(checksum.as_bytes());
    pack
}

/// An entry's file with its checksums made right. The payload is not compressed, as in every pack.
fn signed_entry(mut file: Vec<u8>) -> Vec<u8> {
    let header = u32::from_le_bytes(number(&file, 12)) as usize;
    let payload = hash(&file[header..]);
    file[72..104].copy_from_slice(payload.as_bytes());
    file[104..136].copy_from_slice(payload.as_bytes());
    let checksum = hash(&file[..header - 32]);
    file[header - 32..header].copy_from_slice(checksum.as_bytes());
    file
}

fn compressed(plain: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    encoder.window_log(17).unwrap();
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// What the maker of the pack put into it.
fn honest() -> BTreeMap<Key, Entry> {
    (0..3).map(|n| (key(n), plan(n))).chain([(key(9), refusal("9.27.0"))]).collect()
}

fn packed(entries: &BTreeMap<Key, Entry>, options: &PackOptions) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let (vault, mut bytes) = (open(folder.path()), Vec::new());
    for (key, entry) in entries {
        vault.put(key, entry.clone()).unwrap();
    }
    vault.pack(|_| true, options, &mut bytes).unwrap();
    bytes
}

fn good() -> Parts {
    Parts::from_pack(&packed(&honest(), &PackOptions::default()))
}

fn line_of(parts: &Parts, key: &Key) -> usize {
    parts.lines.iter().position(|line| line[..32] == key.0).unwrap()
}

/// The entry that a vault serves under a key.
fn served(vault: &Vault, key: &Key) -> Option<Entry> {
    match vault.get(key) {
        Lookup::Hit(entry) => Some(Entry::clone(&entry)),
        _ => None,
    }
}

/// Every file below a folder, with its bytes.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match file.file_type().unwrap().is_dir() {
            true => found.extend(files(&file.path())),
            false => drop(found.insert(file.path(), std::fs::read(file.path()).unwrap())),
        }
    }
    found
}

/// A vault with two entries of its own, in a folder of another one.
struct Place {
    outer: tempfile::TempDir,
    vault: Vault,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Place {
    fn new() -> Place {
        let outer = tempfile::tempdir().unwrap();
        let vault = open(&outer.path().join("vault folder"));
        vault.put(&key(1), plan(1)).unwrap();
        vault.put(&key(50), plan(50)).unwrap();
        let files = files(outer.path());
        Place { outer, vault, files }
    }
}

/// Unpacks into a vault that has entries of its own already. A refused pack must change nothing; an accepted one may
/// only bring what `honest` has. Returns the error.
#[track_caller]
fn attempt(pack: &[u8], what: &str) -> Option<PackError> {
    thread_local! {
        // A refused pack changes nothing, so the next one may have the same vault.
        static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
    }
    let place = PLACE.take().unwrap_or_else(Place::new);
    let checked = verify_pack(pack, &UnpackOptions::default());
    let done = place.vault.unpack(pack, |_| true, &UnpackOptions::default());
    assert_eq!(checked.is_ok(), done.is_ok(), "{what}: checking and unpacking differ");
    let after = files(place.outer.path());
    let Err(error) = done else {
        let folder = place.outer.path().join("vault folder");
        let fresh = open(&folder);
        let expected: BTreeMap<Key, Entry> = honest().into_iter().chain([(key(50), plan(50))]).collect();
        for listed in fresh.ls() {
            let expected = expected.get(&listed.key);
            assert_eq!(served(&fresh, &listed.key).as_ref(), expected, "{what}: a wrong entry is served");
        }
        for own in [1, 50] {
            assert_eq!(served(&fresh, &key(own)), Some(plan(own)), "{what}: the vault's own entry");
        }
        assert!(after.keys().all(|file| file.starts_with(&folder)), "{what}: a file outside the folder");
        return None;
    };
    assert_eq!(after, place.files, "{what}: a refused pack changes a file");
    let text = error.to_string();
    assert!(text.len() > 20 && !text.contains('\u{1b}'), "{what}: {text}");
    PLACE.set(Some(place));
    Some(error)
}

/// Refused, with these words.
#[track_caller]
fn refused(pack: &[u8], what: &str, words: &str) {
    match attempt(pack, what) {
        None => panic!("{what}: accepted"),
        Some(error) => assert!(error.to_string().contains(words), "{what}: {error}"),
    }
}

#[test]
fn a_pack_that_is_taken_apart_and_put_together_is_the_same_to_a_reader() {
    assert!(attempt(&good().whole(), "nothing altered").is_none());
}

#[test]
fn every_field_of_the_header_with_every_kind_of_value_is_refused_or_changes_nothing() {
    let pack = packed(&honest(), &PackOptions::default());
    let fields = [(8, 2), (10, 2), (ENTRIES, 4), (MANIFEST_LEN, 8), (BODY_LEN, 8), (PLAIN_LEN, 8)];
    let hashes = [MANIFEST_HASH, BODY_HASH, SEAL].map(|at| (at, 32));
    for (at, width) in fields.into_iter().chain(hashes) {
        for value in [0_u64, 1, 2, 4, 168, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 40, i64::MAX as u64, u64::MAX] {
            for add in [false, true] {
                let mut altered = pack.clone();
                let there = u64::from_le_bytes(std::array::from_fn(|i| if i < width { pack[at + i] } else { 0 }));
                let number = if add { there.wrapping_add(value) } else { value };
                let part = number.to_le_bytes();
                altered[at..at + width.min(8)].copy_from_slice(&part[..width.min(8)]);
                let what = format!("byte {at} with {number}, add {add}");
                let error = attempt(&signed(altered.clone()), &what);
                // The seal's bytes of a pack without a seal mean nothing to a reader that takes such packs.
                assert!(error.is_some() || altered == pack || at == SEAL, "{what}: accepted");
            }
        }
    }
}

#[test]
fn every_byte_of_the_manifest_altered_is_refused() {
    let good = good();
    for (place, line) in good.lines.iter().enumerate() {
        for at in 0..line.len() {
            for flip in [1, 0x80] {
                let mut altered = good.clone();
                altered.lines[place][at] ^= flip;
                let what = format!("line {place}, byte {at}, flipped by {flip}");
                assert!(attempt(&altered.whole(), &what).is_some(), "{what}: accepted");
            }
        }
    }
}

/// Where the manifest lies about labels, the entry's own are compared with it; where both are altered alike, the entry
/// is another one, whose key does not name it: the key of a plan is a hash of what it is for, and the vault checks that
/// an entry lies under its own.
#[test]
fn an_entry_under_a_foreign_key_is_refused() {
    let good = good();
    let (one, two) = (line_of(&good, &key(0)), line_of(&good, &key(1)));
    let mut swapped = good.clone();
    swapped.lines[one][..32].copy_from_slice(&key(1).0);
    swapped.lines[two][..32].copy_from_slice(&key(0).0);
    refused(&swapped.whole(), "keys swapped in the manifest", "belongs to key");
    let mut foreign = good.clone();
    foreign.lines[one][..32].copy_from_slice(&[7; 32]);
    refused(&foreign.whole(), "a foreign key in the manifest", "belongs to key");
    let mut inside = good.clone();
    inside.entries[one][40..72].copy_from_slice(&[7; 32]);
    inside.entries[one] = signed_entry(inside.entries[one].clone());
    refused(&inside.whole(), "a foreign key in the entry", "belongs to key");
    let mut order = good;
    order.entries.swap(one, two);
    refused(&order.whole(), "entries in another order", "");
}

#[test]
fn an_entry_of_another_kind_than_the_manifest_says_is_refused() {
    let good = good();
    let (plan, refusal) = (line_of(&good, &key(0)), line_of(&good, &key(9)));
    let kind = |place: usize| good.lines[place][KIND];
    for place in [plan, refusal] {
        for code in (0..=255).filter(|code| *code != kind(place)) {
            let mut lines = good.clone();
            lines.lines[place][KIND] = code;
            assert!(attempt(&lines.whole(), "a kind in the manifest").is_some(), "kind {code}");
            let mut entries = good.clone();
            entries.entries[place][16] = code;
            entries.entries[place] = signed_entry(entries.entries[place].clone());
            assert!(attempt(&entries.whole(), "a kind in the entry").is_some(), "kind {code}");
        }
    }
}

#[test]
fn duplicated_missing_and_additional_entries_are_refused() {
    let good = good();
    let mut twice = good.clone();
    twice.lines.push(twice.lines[0].clone());
    twice.entries.push(twice.entries[0].clone());
    refused(&twice.whole(), "an entry twice", "twice");
    let mut listed = good.clone();
    listed.lines.push(listed.lines[0].clone());
    refused(&listed.whole(), "a line twice", "twice");
    let mut missing = good.clone();
    missing.entries.pop();
    refused(&missing.whole(), "an entry missing", "ends within the entry");
    let mut more = good.clone();
    more.entries.push(more.entries[0].clone());
    refused(&more.whole(), "an entry that is not listed", "more than the declared bytes");
    let mut longer = good;
    let bytes = long(&longer.lines[0], BYTES) + 1;
    longer.lines[0][BYTES..BYTES + 8].copy_from_slice(&bytes.to_le_bytes());
    refused(&longer.whole(), "a line that overlaps the next entry", "is bad");
}

#[test]
fn sizes_that_nothing_has_are_refused_before_they_are_believed() {
    let good = good();
    for bytes in [0, 1, 167, 300 << 20, 1 << 40, i64::MAX as u64, u64::MAX, u64::MAX - 100] {
        let mut altered = good.clone();
        altered.lines[0][BYTES..BYTES + 8].copy_from_slice(&bytes.to_le_bytes());
        refused(&altered.whole(), &format!("{bytes} bytes"), "");
    }
    // Both lines together are as long as both entries are: the sum is right, and no entry is.
    let mut shifted = good.clone();
    let sum = long(&good.lines[0], BYTES).wrapping_add(long(&good.lines[1], BYTES));
    shifted.lines[0][BYTES..BYTES + 8].copy_from_slice(&200_u64.to_le_bytes());
    shifted.lines[1][BYTES..BYTES + 8].copy_from_slice(&(sum - 200).to_le_bytes());
    refused(&shifted.whole(), "lengths shifted", "is bad");
    // A sum that wraps around to the right one.
    let mut wrapped = good;
    wrapped.lines[0][BYTES..BYTES + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    refused(&wrapped.whole(), "a sum that wraps", "no entry has 18446744073709551615 bytes");
}

/// Labels are shown to people and are no paths: whatever they are, a file is named by its key alone.
#[test]
fn labels_that_look_like_paths_or_are_no_text_name_no_file() {
    for label in ["../../../../tmp/escaped", "/etc/passwd", "..", "C:\\windows", "a/b/c", "link -> /etc/shadow"] {
        let entry = Entry { what: label.to_owned(), target: label.to_owned(), library: label.to_owned(), ..plan(0) };
        let pack = packed(&BTreeMap::from([(key(0), entry.clone())]), &PackOptions::default());
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("vault folder");
        let vault = open(&folder);
        vault.unpack(&pack[..], |_| true, &UnpackOptions::default()).unwrap();
        assert_eq!(served(&open(&folder), &key(0)), Some(entry), "{label}");
        let found: Vec<PathBuf> = files(outer.path()).into_keys().collect();
        let entries: Vec<&PathBuf> =
            found.iter().filter(|file| file.extension().is_some_and(|end| end == "qkv")).collect();
        assert_eq!(entries, [&file_of(&folder, &key(0))], "{label}");
        assert!(found.iter().all(|file| file.starts_with(&folder)), "{label}");
    }
    let good = good();
    let place = line_of(&good, &key(0));
    for (at, words) in [(LINE, "not UTF-8"), (good.lines[place].len() - 1, "not UTF-8")] {
        let mut altered = good.clone();
        altered.lines[place][at] = 0xff;
        refused(&altered.whole(), "a label that is no text", words);
    }
}

/// A vault's folder has no links and no names of the pack: an entry's file that is a link to another file is neither
/// followed nor written through.
#[test]
#[cfg(unix)]
fn a_link_at_the_place_of_an_entry_is_replaced_and_not_followed() {
    let outer = tempfile::tempdir().unwrap();
    let (folder, victim) = (outer.path().join("vault"), outer.path().join("victim"));
    std::fs::write(&victim, "untouched").unwrap();
    let vault = open(&folder);
    vault.put(&key(0), plan(0)).unwrap();
    let place = file_of(&folder, &key(0));
    std::fs::remove_file(&place).unwrap();
    std::os::unix::fs::symlink(&victim, &place).unwrap();
    let fresh = open(&folder);
    fresh.unpack(&packed(&honest(), &PackOptions::default())[..], |_| true, &UnpackOptions::default()).unwrap();
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
    assert!(!place.symlink_metadata().unwrap().is_symlink());
    assert_eq!(served(&open(&folder), &key(0)), Some(plan(0)));
}

/// Archives of other formats around or inside a pack, and parts that other readers skip.
#[test]
fn other_archives_and_what_they_allow_are_refused() {
    let pack = packed(&honest(), &PackOptions::default());
    // A zip with one file: encrypted, with a data descriptor, with sizes of zip64, with a comment, and plain.
    let zip = |flags: u16, size: u32| {
        let (name, data) = (b"../../escaped", b"data");
        let [flags, size, name_len] =
            [flags.to_le_bytes().to_vec(), size.to_le_bytes().to_vec(), (name.len() as u16).to_le_bytes().to_vec()];
        let common = [&[20, 0][..], &flags, &[0; 10], &size, &size, &name_len, &[0, 0]].concat();
        let local = [&b"PK\x03\x04"[..], &common, name, data].concat();
        let central = [&b"PK\x01\x02\x14\0"[..], &common, &[0; 14], name].concat();
        let at = (local.len() as u32).to_le_bytes();
        let size = (central.len() as u32).to_le_bytes();
        // A comment of 200 bytes makes it longer than a pack's header.
        let end = [&b"PK\x05\x06\0\0\0\0\x01\0\x01\0"[..], &size, &at, &[200, 0], &[b' '; 200]].concat();
        [local, central, end].concat()
    };
    for (flags, size) in [(0, 4), (1, 4), (8, 0), (0, u32::MAX), (0x41, 4)] {
        let archive = zip(flags, size);
        refused(&archive, "a zip", "not a pack");
        refused(&[&archive[..], &pack].concat(), "a pack behind a zip", "not a pack");
        refused(&[&pack[..], &archive].concat(), "a zip behind a pack", "bytes follow");
        let mut inside = good();
        let mut entry = inside.entries[0].clone();
        entry.extend(&archive);
        inside.entries[0] = entry;
        refused(&inside.whole(), "a zip behind an entry", "is bad");
    }
    for start in [&b"\x1f\x8b\x08\0"[..], b"\x28\xb5\x2f\xfd", b"ustar\0", b"!<arch>\n", b"\xfd7zXZ\0"] {
        refused(&[start, &[0; 512]].concat(), "another archive", "not a pack");
    }
    refused(&[&pack[..], b"a comment"].concat(), "bytes behind a pack", "bytes follow");
    refused(&[&pack[..], &pack].concat(), "two packs", "bytes follow");
    for cut in [0, 1, 100, HEADER - 1, HEADER, HEADER + 1, pack.len() - 1] {
        assert!(attempt(&pack[..cut], "cut off").is_some(), "cut to {cut}");
    }
}

/// What zstd allows and the format does not: parts that a decoder skips, several frames, a dictionary, other sizes.
#[test]
fn a_body_that_is_not_one_plain_frame_of_the_declared_length_is_refused() {
    let good = good();
    let plain = good.entries.concat();
    let frame = compressed(&plain);
    let skipped = [&0x184d_2a50_u32.to_le_bytes()[..], &4_u32.to_le_bytes(), b"skip"].concat();
    let (first, second) = plain.split_at(plain.len() / 2);
    let mut dictionary = zstd::stream::write::Encoder::with_dictionary(Vec::new(), 3, &plain[..200]).unwrap();
    dictionary.write_all(&plain).unwrap();
    for (what, body) in [
        ("nothing", Vec::new()),
        ("no frame", plain.clone()),
        ("a part to skip before", [&skipped[..], &frame].concat()),
        ("a part to skip behind", [&frame[..], &skipped].concat()),
        ("a part to skip alone", skipped.clone()),
        ("two frames", [compressed(first), compressed(second)].concat()),
        ("an empty frame before", [compressed(b""), frame.clone()].concat()),
        ("an empty frame behind", [frame.clone(), compressed(b"")].concat()),
        ("a byte behind", [&frame[..], &[0]].concat()),
        ("cut off", frame[..frame.len() - 1].to_vec()),
        ("a dictionary that nobody has", dictionary.finish().unwrap()),
        ("a byte more", compressed(&[&plain[..], &[0]].concat())),
        ("a byte less", compressed(&plain[..plain.len() - 1])),
        ("64 MiB more", compressed(&[&plain[..], &vec![0; 64 << 20]].concat())),
    ] {
        assert!(attempt(&good.with_body(&body), what).is_some(), "{what}: accepted");
    }
}

/// Whatever is altered in a sealed pack, and however well: only its maker's bytes are accepted.
#[test]
fn a_sealed_pack_that_is_altered_in_any_byte_is_refused_whatever_checksums_say() {
    let secret = SealKey::new([3; 32]);
    let sealed = packed(&honest(), &PackOptions { seal: Some(secret.clone()), ..PackOptions::default() });
    let options = UnpackOptions { seal: Some(secret), ..UnpackOptions::default() };
    assert!(verify_pack(&sealed[..], &options).is_ok());
    let parts = Parts::from_pack(&sealed);
    let mut altered = Vec::new();
    for at in (0..HEADER).filter(|at| !(CHECKSUM..).contains(at)) {
        let mut pack = sealed.clone();
        pack[at] ^= 1;
        altered.push(signed(pack));
    }
    for place in 0..parts.lines.len() {
        let mut other = parts.clone();
        other.entries[place].pop();
        other.lines.swap(0, place);
        altered.push(other.whole());
        let mut payload = parts.clone();
        *payload.entries[place].last_mut().unwrap() ^= 1;
        payload.entries[place] = signed_entry(payload.entries[place].clone());
        altered.push(payload.whole());
    }
    let mut open = Parts::from_pack(&packed(&honest(), &PackOptions::default()));
    open.head[SEAL..CHECKSUM].copy_from_slice(&sealed[SEAL..CHECKSUM]);
    open.head[10] = 1;
    altered.push(open.whole());
    for pack in altered {
        let error = verify_pack(&pack[..], &options).expect_err("altered");
        assert!(!error.to_string().is_empty());
        let folder = tempfile::tempdir().unwrap();
        assert!(super::kit::open(folder.path()).unpack(&pack[..], |_| true, &options).is_err());
        assert_eq!(super::kit::open(folder.path()).usage().entries, 0);
    }
}

/// Entries that a stranger makes wholly are accepted from a pack without a seal: nothing tells them from others. But
/// they lie under their own keys alone, and hide no entry of another library.
#[test]
fn an_entry_that_a_stranger_made_answers_under_its_own_key_alone() {
    let strange = Entry { payload: b"another plan".to_vec(), ..plan(0) };
    let pack = packed(&BTreeMap::from([(key(77), strange.clone())]), &PackOptions::default());
    let folder = tempfile::tempdir().unwrap();
    let vault: Vault = open(folder.path());
    for (key, entry) in honest() {
        vault.put(&key, entry).unwrap();
    }
    let report = vault.unpack(&pack[..], |_| true, &UnpackOptions::default()).unwrap();
    assert_eq!((report.entries, report.stored), (1, 1));
    let fresh = open(folder.path());
    for (key, entry) in honest() {
        assert_eq!(served(&fresh, &key), Some(entry));
    }
    assert_eq!(served(&fresh, &key(77)), Some(strange));
    // A plan of the same library is there: the stranger's does not replace it.
    let same = Entry { kind: EntryKind::Plan, payload: b"not the plan".to_vec(), ..plan(0) };
    let pack = packed(&BTreeMap::from([(key(0), same)]), &PackOptions::default());
    let report = vault.unpack(&pack[..], |_| true, &UnpackOptions::default()).unwrap();
    assert_eq!((report.stored, report.already), (0, 1));
    assert_eq!(served(&open(folder.path()), &key(0)), Some(plan(0)));
}
