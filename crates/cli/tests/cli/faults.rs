//! Vaults that are damaged, full, or not a vault: no wrong plan is served, no good plan is lost, and the command
//! reports it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use qkvault_skip::{Need, skip};
use serde_json::Value;

use crate::kit::{Done, Place, numbers};

/// Three plans.
const WARM: &str =
    "warm --model ../../models/llama-3.1-8b.json --model ../../models/bert-base.json --seq 128 --batch 1";

/// A change to the bytes of a file.
type Damage = fn(&[u8]) -> Vec<u8>;

fn contents(place: &Place) -> BTreeMap<PathBuf, Vec<u8>> {
    place.entries().into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn counts(report: &Value) -> [u64; 4] {
    numbers(report, ["built", "hits", "rejected", "unstored"])
}

#[test]
fn damaged_plan_files_are_rejected_set_aside_built_again_and_counted() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    assert_eq!(counts(&place.json(WARM).1), [3, 0, 0, 0]);
    let before = contents(&place);
    let entries = place.entries();
    let damages: [(&str, Damage); 6] = [
        ("empty", |_| Vec::new()),
        ("half", |b| b[..b.len() / 2].to_vec()),
        ("foreign", |_| b"{\"not\": \"a plan\"}".to_vec()),
        ("a flipped bit", |b| {
            let mut b = b.to_vec();
            let last = b.len() - 100;
            b[last] ^= 4;
            b
        }),
        ("longer", |b| [b, b"and more"].concat()),
        ("header alone", |b| b[..600].to_vec()),
    ];
    for (n, (name, damage)) in damages.into_iter().enumerate() {
        std::fs::write(&entries[0], damage(&before[&entries[0]])).unwrap();
        let (code, report) = place.json("cache verify");
        assert_eq!((code, &report["good"]), (1, &2.into()), "{name}");
        assert_eq!(report["bad"][0]["path"], entries[0].display().to_string());
        assert!(place.run("cache verify").out.contains("BAD"));
        // A list reads headers only.
        if name != "a flipped bit" {
            assert!(place.json("cache ls").1["entries"].to_string().contains("rejected"), "{name} is listed as bad");
        }

        let (code, report) = place.json(WARM);
        assert_eq!((code, counts(&report)), (0, [1, 2, 1, 0]), "{name}: {report:#}");
        let notes = report["notes"].to_string();
        assert!(notes.contains("1 stored entry was not sound") && notes.contains("quarantine"), "{name}: {notes}");
        assert_eq!(place.json("cache stats").1["quarantined"], n + 1, "{name}");
        assert_eq!(place.json("cache verify").0, 0, "{name}");
        let after = contents(&place);
        assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
        assert!(entries[1..].iter().all(|e| after[e] == before[e]), "{name}: a good entry was touched");
    }
}

#[test]
fn a_plan_under_the_key_of_another_is_not_served() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    place.run(WARM).good();
    let entries = place.entries();
    std::fs::copy(&entries[1], &entries[0]).unwrap();
    let (code, report) = place.json("cache verify");
    assert_eq!(code, 1);
    assert!(report["bad"][0]["why"].as_str().unwrap().contains("belongs to key"), "{report:#}");
    assert_eq!(counts(&place.json(WARM).1), [1, 2, 1, 0]);
    assert_eq!(place.json("cache verify").0, 0);
}

#[test]
fn files_that_are_not_the_vaults_are_left_alone() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    place.run(WARM).good();
    let strange = place.entries()[0].with_file_name("notes.txt");
    std::fs::write(&strange, "mine").unwrap();
    assert_eq!(place.json("cache stats").1["foreign"], 1);
    assert_eq!(counts(&place.json(WARM).1), [0, 3, 0, 0]);
    place.run("cache clear").good();
    assert_eq!(std::fs::read(&strange).unwrap(), b"mine");
}

#[test]
fn a_file_where_the_vault_should_be() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let file = PathBuf::from(place.file("occupied", "my thesis"));
    let words = ["occupied", "something else has that name"];
    place.run_in(&file, WARM).failed(1, &words);
    place.run_in(&file.join("below"), WARM).failed(1, &words);
    place.run_in(&file, "cache ls").failed(1, &["there is no vault at", "occupied"]);
    assert_eq!(std::fs::read(&file).unwrap(), b"my thesis");
}

/// Anyone who can write to the folder could run code on the GPU.
#[cfg(unix)]
#[test]
fn a_vault_that_everyone_can_write_to() {
    use std::os::unix::fs::PermissionsExt;
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let open = place.path("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    place.run_in(&open, WARM).failed(1, &["not trusted", "chmod go-w", "QKVAULT_CACHE_ALLOW_SHARED=1"]);
}

#[test]
fn a_read_only_vault_stores_nothing_and_reports_it() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    place.run(WARM).good();
    let place = place.set("QKVAULT_CACHE", "ro");
    assert_eq!(counts(&place.json(WARM).1), [0, 3, 0, 0], "what is there is served");
    let done = place.run(&format!("{WARM} --dtype f16"));
    done.failed(1, &["3 of 3", "QKVAULT_CACHE=rw"]);
    assert_eq!(place.entries().len(), 3);
}

#[test]
fn a_full_disk_loses_nothing_and_is_an_error() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let Some(disk) = Disk::new(place.path("disk"), "64k") else { return };
    let some = "warm --model ../../models/bert-base.json --seq 128 --batch 1";
    assert_eq!(place.run_in(&disk.0, some).code, 0, "there is room for one plan");
    let done: Done = place.run_in(&disk.0, &format!("{WARM} --model ../../models/gpt-oss-20b.json"));
    done.failed(1, &["could not be stored", "No space left", "free some space", "cache gc"]);
    assert!(done.out.contains("1 hit"), "what was there is still served: {}", done.out);
    let verify = place.run_in(&disk.0, "cache verify");
    assert!(verify.good().ends_with(" 0 bad\n"), "what was stored is whole: {}", verify.out);
    let again = place.run_in(&disk.0, some);
    assert!(again.good().contains("0 built, 1 hit"), "{}", again.out);
}

/// A small file system, unmounted on drop.
struct Disk(PathBuf);

impl Disk {
    /// `None` if mounting is not allowed; the test is then skipped.
    fn new(at: PathBuf, size: &str) -> Option<Disk> {
        std::fs::create_dir(&at).unwrap();
        let options = format!("size={size},mode=700");
        match mount(&["-t", "tmpfs", "-o", &options, "qkvault-test"], &at) {
            true => Some(Disk(at)),
            false => {
                skip(Need::Faults, "a small file system to fill; mounting one is not allowed here");
                None
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn mount(words: &[&str], at: &Path) -> bool {
    Command::new("mount").args(words).arg(at).output().is_ok_and(|done| done.status.success())
}
