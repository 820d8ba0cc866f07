//! `cache`: looking at the vault and keeping it in order.

use std::fs::File;
use std::time::{Duration, SystemTime};

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
fn what_is_kept_is_listed_shown_and_counted() {
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
    fields(
        &stats,
        &["folder", "entries", "bytes", "plans", "refusals", "bad", "quarantined", "temporary", "foreign", "targets"],
    );
    assert_eq!(numbers(&stats, ["plans", "refusals", "bad"]), [2, 2, 0]);
    assert!(place.run("cache stats").good().contains("plans: 2, refusals: 2, bad: 0"));
    for depth in ["", "--headers"] {
        let (code, report) = place.json(&format!("cache verify {depth}"));
        assert_eq!((code, &report["good"]), (0, &4.into()));
    }
    assert!(place.run("cache verify").good().starts_with("4 good"));

    place.run("cache show zz").failed(1, &["zz", "cache ls"]);
    place.run("cache show").failed(2, &["KEY"]);
}

/// The first of several keys was shown, whichever was meant.
#[test]
fn digits_that_several_keys_begin_with_are_not_enough() {
    let Some(place) = filled() else { return };
    let entries = place.entries();
    let name = entries[0].file_name().unwrap().to_string_lossy().into_owned();
    // A second file whose key begins the same: it is no good entry, but it is listed.
    let other = format!("{}{}.qkv", &name[..10], "0".repeat(54));
    std::fs::write(entries[0].with_file_name(other), "x").unwrap();
    place.run(&format!("cache show {}", &name[..10])).failed(1, &["2 keys", "more of its digits"]);
    place.run(&format!("cache show {}", &name[..64])).good();
}

#[test]
fn gc_keeps_what_was_used_of_late_and_clear_keeps_nothing() {
    let Some(place) = filled() else { return };
    let (code, report) = place.json("cache gc --max-bytes 0");
    fields(&report, &["entries", "bytes", "evicted", "evicted_bytes", "leftovers", "failed"]);
    // Nothing was evicted, because 0 means no limit; and because all of it was written just now.
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
