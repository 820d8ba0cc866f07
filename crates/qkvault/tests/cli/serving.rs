//! `warm --phase serve`, `selftest --serving` without a GPU, and what `bench-serving` says where there is none.

use std::collections::BTreeSet;

use crate::kit::{Place, fields};

/// A set of four plans: two of decodes, two of mixed steps.
const SMALL: &str = "--max-batch 8 --max-new 256 --max-keys 1024 --page-size 64 --pages 64 --growth 8,0,0";

#[test]
fn warming_a_set_compiles_each_of_its_plans_once_and_says_how_much_is_padded() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let words = format!("warm --model ../../models/llama-3.1-8b.json --phase serve {SMALL}");
    let (code, report) = place.json(&words);
    assert_eq!((code, &report["built"], &report["refused"]), (0, &4.into(), &0.into()), "{report:#}");
    let uses: BTreeSet<&str> =
        report["plans"].as_array().unwrap().iter().map(|p| p["what"].as_str().unwrap()).collect();
    let each = ["decode b1 s1024", "decode b8 s1024", "mixed q256 b1 s1024", "mixed q256 b8 s1024"];
    for what in each {
        assert!(uses.iter().any(|u| u.contains(&format!("serve {what}"))), "{what}: {uses:?}");
    }
    assert!(report["notes"].to_string().contains("4 plans"), "{}", report["notes"]);
    let (_, again) = place.json(&words);
    assert_eq!((&again["built"], &again["hits"]), (&0.into(), &4.into()));
    // Another room for tokens is the same plan: it is no part of any key.
    let (_, tokens) = place.json(&format!("{words} --max-tokens 4096"));
    assert_eq!(&tokens["hits"], &4, "{tokens:#}");
}

#[test]
fn a_set_for_a_layer_with_sinks_has_its_decodes_refused_with_the_reason() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let words = format!("warm --model ../../models/gpt-oss-20b.json --phase serve {SMALL} --growth 0,0,0");
    let (code, report) = place.json(&words.replace("--growth 8,0,0 ", ""));
    assert_eq!(code, 1, "{report:#}");
    let refused = report["plans"].as_array().unwrap().iter().filter(|p| p["status"] == "refused");
    for plan in refused {
        assert!(plan["what"].as_str().unwrap().contains("decode"), "{plan:#}");
        assert_eq!(plan["reasons"][0]["code"], "storage.paged-one-query-sink");
    }
    assert_eq!((&report["built"], &report["refused"]), (&2.into(), &2.into()));
}

#[test]
fn bad_ranges_are_told_with_their_names() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let words = "warm --model ../../models/llama-3.1-8b.json --phase serve --growth 1,2,2";
    let (code, report) = place.json(words);
    assert_eq!(code, 1);
    assert_eq!(report["plans"][0]["reasons"][0]["code"], "serve.growth", "{report:#}");
}

#[test]
fn the_self_test_of_serving_does_all_but_the_launch_without_a_gpu() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let record = place.file("record.json", "");
    let (code, report) = place.json(&format!("selftest --serving --dry h200 --first 16 --cases 3 --record {record}"));
    let counts = ["seed", "first", "cases", "right", "refused", "wrong", "failed", "builds", "seconds", "not_right"];
    let place_of = [
        "device",
        "cudnn",
        "cudnn_set",
        "target",
        "driver",
        "form",
        "without",
        "allowed",
        "serving",
        "tails",
        "worst_relative_error",
    ];
    let isolation = ["isolated", "repeated_alone"];
    fields(&report, &[&counts[..], &place_of, &isolation].concat());
    assert_eq!((code, report["right"].as_u64().unwrap() + report["refused"].as_u64().unwrap()), (0, 3), "{report:#}");
    let kept: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(record).unwrap()).unwrap();
    assert_eq!(kept["cases"], 3);
}

#[test]
fn a_self_test_in_processes_of_its_own_comes_to_the_same() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let run = |more: &str| {
        let (code, mut report) = place.json(&format!("selftest --dry h200 --seed 3 --cases 5 {more}"));
        let mut taken = ["seconds", "builds", "isolated"].map(|name| report.as_object_mut().unwrap().remove(name));
        (code, taken[1..].iter_mut().map(|value| value.take().unwrap()).collect::<Vec<_>>(), report)
    };
    let (together, apart) = (run(""), run("--isolate 2 --workers 2"));
    assert_eq!((together.0, together.2), (apart.0, apart.2));
    // Both have one vault: what the first compiled the workers find.
    assert_eq!(apart.1, [serde_json::json!(0), serde_json::json!({ "each": 2, "workers": 2 })]);
    // A case that takes too long is told, and is not waited for.
    place.run("selftest --dry h200 --cases 1 --isolate 1 --case-limit 0").failed(1, &["no answer within 0 s"]);
}

/// Audit B6: strides of any remainder modulo 16 bytes were taken unseen. They are computed wrongly, and put to a card only by name.
#[test]
fn b6_a_self_test_takes_odd_strides_by_name_alone() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let others = "k: f16 [2,2,128,64] bshd\nv: f16 [2,2,128,64] bshd\no: f16 [2,2,128,64] bshd";
    let with = |row: i64| format!("q: f16 [2,2,128,64] strides [{},64,{row},1]\n{others}", 128 * row);
    let file = place.file("strides.txt", &format!("{}\n---\n{}", with(129), with(136)));
    let (code, report) = place.json(&format!("selftest --dry h200 --file {file}"));
    assert_eq!((code, report["right"].as_u64(), report["refused"].as_u64()), (0, Some(1), Some(1)), "{report:#}");
    assert!(report["not_right"][0]["why"].as_str().unwrap().contains("tensor.stride-alignment"), "{report:#}");
    let (code, report) = place.json(&format!("selftest --dry h200 --file {file} --allow tensor.stride-alignment"));
    assert_eq!((code, report["right"].as_u64()), (0, Some(2)), "{report:#}");
    assert_eq!(report["allowed"], serde_json::json!(["tensor.stride-alignment"]));
}

#[test]
fn one_attention_of_a_file_is_asked_again_by_its_number_and_one_that_is_not_there_is_told() {
    let place = Place::new();
    let each = |q: i64| format!("q: f16 [2,2,{q},64]");
    let file = place.file("several.txt", &[1, 2, 3].map(each).join("\n---\n"));
    let shown = |words: &str| {
        let done = place.run(&format!("selftest --show --file {file} {words}"));
        let rows = done.out.lines().filter_map(|line| line.strip_prefix("q: f16 [2,2,"));
        rows.filter_map(|rest| rest.split(',').next()?.parse().ok()).collect::<Vec<i64>>()
    };
    assert_eq!(shown(""), [1, 2, 3]);
    assert_eq!(shown("--first 1 --cases 1"), [2]);
    assert_eq!(shown("--first 1 --cases 9 --serving"), [2, 3]);
    let done = place.run(&format!("selftest --show --file {file} --first 3"));
    assert!(done.code != 0 && done.err.contains("3 attentions"), "{}", done.err);
}

#[test]
fn without_a_gpu_the_measurements_say_so() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let done = place.run("bench-serving decode");
    assert_ne!(done.code, 0);
    assert!(done.err.contains("driver") || done.err.contains("GPU"), "{}", done.err);
    // A worker that does not start says why, with --json too: its first line was taken for an answer once.
    let done = place.run("--json selftest --cases 1 --isolate 1");
    if done.code != 0 {
        assert!(done.err.contains("driver") || done.err.contains("GPU"), "{}", done.err);
        assert!(done.out.contains("the first worker does not start"), "{}", done.out);
    }
}
