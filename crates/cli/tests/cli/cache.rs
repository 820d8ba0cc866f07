//! `cache`: inspecting and maintaining the vault.

use std::fs::File;
use std::time::{Duration, SystemTime};

use qkvault_cache::{EntryKind, Lookup, Vault, VaultOptions};

use crate::kit::{Place, fields, numbers};

/// A vault with two plans and a refusal.
fn filled() -> Option<Place> {
    let place = Place::with_cudnn("9.27.0")?;
    let config = r#"{"model_type":"llama","num_attention_heads":5,"num_hidden_layers":2,"hidden_size":500}"#;
    let refused = place.file("refused.json", config);
    let words = format!("warm --model ../../models/llama-3.1-8b.json --model {refused} --seq 128 --batch 1");
    let (_, report) = place.json(&words);
    assert_eq!((&report["built"], &report["refused"]), (&2.into(), &2.into()), "{report:#}");
    Some(place)
}

#[test]
fn entries_are_listed_shown_and_counted() {
    let Some(place) = filled() else { return };
    assert_eq!(place.run("cache dir").good().trim(), place.path("").display().to_string().trim_end_matches('/'));
    let (_, dir) = place.json("cache dir");
    fields(&dir, &["folder"]);

    let (code, list) = place.json("cache ls");
    let entries = list["entries"].as_array().unwrap();
    assert_eq!((code, entries.len()), (0, 4));
    let text = place.run("cache ls");
    for entry in entries {
        let key = entry["key"].as_str().unwrap();
        assert!(text.good().contains(&key[..12]));
        let (code, mut shown) = place.json(&format!("cache show {key}"));
        assert_eq!(code, 0);
        if entry["kind"] == "refusal" {
            let reasons = shown.as_object_mut().unwrap().remove("reasons").unwrap();
            assert!(reasons.to_string().contains("multiple of 8"), "{reasons}");
        } else {
            assert_eq!(entry["facts"]["key"], entry["key"]);
        }
        assert_eq!(&shown, entry);
    }
    let (_, stats) = place.json("cache stats");
    let names = ["folder", "entries", "bytes", "plans", "refusals", "times", "bad"];
    fields(&stats, &[&names[..], &["quarantined", "temporary", "foreign", "targets"]].concat());
    assert_eq!(numbers(&stats, ["plans", "refusals", "times", "bad"]), [2, 2, 0, 0]);
    assert!(place.run("cache stats").good().contains("plans: 2, refusals: 2, times: 0, bad: 0"));
    for depth in ["", "--headers"] {
        let (code, report) = place.json(&format!("cache verify {depth}"));
        assert_eq!((code, &report["good"]), (0, &4.into()));
    }
    assert!(place.run("cache verify").good().starts_with("4 good"));

    place.run("cache show zz").failed(1, &["zz", "cache ls"]);
    place.run("cache show").failed(2, &["KEY"]);
}

/// A plan with right checksums and a changed kernel. Only a deep check can find it.
#[test]
fn a_deep_check_compiles_again_and_finds_a_kernel_that_was_changed() {
    let Some(place) = filled() else { return };
    let deep = "cache verify --deep";
    let (code, report) = place.json(deep);
    fields(&report, &["cudnn", "entries", "same", "skipped", "different", "failed", "bad"]);
    assert_eq!(
        (code, numbers(&report, ["same", "skipped", "different", "failed", "bad"])),
        (0, [4, 0, 0, 0, 0]),
        "refusals are asked for again too: {report:#}"
    );
    let text = place.run(deep);
    assert_eq!(text.good().lines().count(), 5, "one line per entry, and the counts: {}", text.out);

    let vault = Vault::open(VaultOptions::in_folder(place.path("")).without_environment()).unwrap();
    // A kernel of cuDNN's is in text, and those of other engines are not.
    let kernel = |payload: &[u8]| payload.windows(5).position(|text| text == b"f0VMR");
    let hit = |key| match vault.get(&key) {
        Lookup::Hit(entry) if kernel(&entry.payload).is_some() => Some((key, entry)),
        _ => None,
    };
    let (plan, entry) = vault.ls().find_map(|listed| hit(listed.key)).unwrap();
    let mut changed = (*entry).clone();
    let at = kernel(&changed.payload).unwrap() + 20_000;
    changed.payload[at] = if changed.payload[at] == b'A' { b'B' } else { b'A' };
    vault.put(&plan, changed).unwrap();
    assert_eq!(place.json("cache verify").0, 0, "nothing but a compiler can tell");
    let (code, report) = place.json(deep);
    assert_eq!((code, numbers(&report, ["same", "different"])), (1, [3, 1]), "{report:#}");
    assert!(report["entries"].to_string().contains("(1 kernels) are not those that cuDNN 9.27.0 gives"), "{report:#}");

    // A good plan under the key of another plan, with a header that matches that key.
    let other =
        vault.ls().find(|l| l.key != plan && l.header.as_ref().is_ok_and(|h| h.kind == EntryKind::Plan)).unwrap().key;
    let Lookup::Hit(good) = vault.get(&other) else { panic!("it is there") };
    vault.put(&plan, (*good).clone()).unwrap();
    let (code, report) = place.json(deep);
    assert_eq!((code, numbers(&report, ["same", "different"])), (1, [3, 1]), "{report:#}");
    place.run("cache verify --deep --headers").failed(2, &["--headers"]);
}

/// Once, `cache show` printed the first of several matching keys.
#[test]
fn digits_that_match_several_keys_are_refused() {
    let Some(place) = filled() else { return };
    let entries = place.entries();
    let name = entries[0].file_name().unwrap().to_string_lossy().into_owned();
    // A second file whose key begins with the same digits. It is not a good entry, but the list has it.
    let other = format!("{}{}.qkv", &name[..10], "0".repeat(54));
    std::fs::write(entries[0].with_file_name(other), "x").unwrap();
    place.run(&format!("cache show {}", &name[..10])).failed(1, &["2 keys", "more of its digits"]);
    place.run(&format!("cache show {}", &name[..64])).good();
}

#[test]
fn gc_keeps_recently_used_entries_and_clear_keeps_nothing() {
    let Some(place) = filled() else { return };
    let (code, report) = place.json("cache gc --max-bytes 0");
    let names = ["entries", "bytes", "evicted", "evicted_bytes", "leftovers", "failed", "spared", "over"];
    fields(&report, &[&names[..], &["older"]].concat());
    // Nothing is evicted: 0 means no limit, and all entries are new.
    assert_eq!((code, &report["evicted"]), (0, &0.into()), "{report:#}");
    assert_eq!(place.json("cache gc --max-bytes 1").1["evicted"], 0);
    let old = SystemTime::now() - Duration::from_secs(7200);
    for entry in &place.entries()[..2] {
        File::options().write(true).open(entry).unwrap().set_modified(old).unwrap();
    }
    let (_, report) = place.json("cache gc --max-bytes 1");
    assert_eq!(numbers(&report, ["entries", "evicted"]), [4, 2], "{report:#}");
    assert!(place.run("cache gc --max-bytes 10MB").good().starts_with("0 of 2 entries deleted"));
    place.run("cache gc --max-bytes lots").failed(2, &["lots", "500M"]);
    let (code, report) = place.json("cache clear");
    assert_eq!((code, &report["entries"]), (0, &2.into()));
    assert!(place.entries().is_empty());
    assert!(place.run("cache clear").good().starts_with("0 entries deleted"));
}
