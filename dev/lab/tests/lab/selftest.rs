//! `selftest` without a GPU, and the errors of commands that need one.

use crate::kit::{Place, fields};

#[test]
fn a_dry_self_test_of_serving_does_everything_but_the_launch() {
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
        "engine",
        "form",
        "without",
        "allowed",
        "serving",
        "tails",
        "worst_relative_error",
        "worst_of_roundings",
        "families",
    ];
    let isolation = ["isolated", "repeated_alone"];
    fields(&report, &[&counts[..], &place_of, &isolation].concat());
    assert_eq!((code, report["right"].as_u64().unwrap() + report["refused"].as_u64().unwrap()), (0, 3), "{report:#}");
    let kept: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(record).unwrap()).unwrap();
    assert_eq!(kept["cases"], 3);
}

/// 8-bit cases are judged by what their formats cost; a case about a code has what the code refuses.
#[test]
fn a_dry_self_test_of_8_bit_attention_does_everything_but_the_launch() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let (code, report) = place.json("selftest --fp8 --dry h200 --cases 4");
    let count = |report: &serde_json::Value, name: &str| report[name].as_u64().unwrap();
    assert_eq!((code, count(&report, "wrong"), count(&report, "failed")), (0, 0, 0), "{report:#}");
    assert!(count(&report, "right") >= 2 && report["amax_s"].is_object(), "{report:#}");
    let shown = place.run("selftest --fp8 --show --cases 4").out;
    assert_eq!(shown.matches("fp8: ").count(), 4, "{shown}");

    let about = "selftest --fp8 --cases 3 --about fp8.hopper-bottom-right --show";
    let corners = place.run(about).out.matches("bottom-right").count();
    assert!(corners == 3, "{corners} diagonals that end bottom right");
    let (code, report) = place.json("selftest --fp8 --cases 3 --about fp8.hopper-grouped-backward --dry h200");
    assert_eq!((code, report["about"].clone()), (0, serde_json::json!(["fp8.hopper-grouped-backward"])), "{report:#}");
    assert!(count(&report, "right") >= 1, "{report:#}");
    let about = "selftest --fp8 --cases 3 --about fp8.hopper-expression --show";
    let expressions = place.run(about).out.matches("score_mod: ").count();
    assert!(expressions >= 1, "{expressions} score expressions");
    place.run("selftest --fp8 --show --about fp8.split-zeros").failed(1, &["fp8.split-zeros", "fp8.hopper-varlen"]);
    assert_eq!(place.run("selftest --about fp8.expression --show").code, 2);
}

#[test]
fn an_isolated_self_test_has_the_same_result() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let run = |more: &str| {
        let (code, mut report) = place.json(&format!("selftest --dry h200 --seed 3 --cases 5 {more}"));
        let mut taken = ["seconds", "builds", "isolated"].map(|name| report.as_object_mut().unwrap().remove(name));
        (code, taken[1..].iter_mut().map(|value| value.take().unwrap()).collect::<Vec<_>>(), report)
    };
    let (together, apart) = (run(""), run("--isolate 2 --workers 2"));
    assert_eq!((together.0, together.2), (apart.0, apart.2));
    // Both runs share a vault, so the workers find the plans of the first run.
    assert_eq!(apart.1, [serde_json::json!(0), serde_json::json!({ "each": 2, "workers": 2 })]);
    // A case that takes too long is an error.
    place.run("selftest --dry h200 --cases 1 --isolate 1 --case-limit 0").failed(1, &["no answer within 0 s"]);
}

/// Once, strides of any remainder modulo 16 bytes were accepted. cuDNN computes them wrongly, so they run only with
/// `--allow`.
#[test]
fn a_self_test_accepts_odd_strides_only_by_their_code() {
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
fn an_attention_of_a_file_is_selected_by_its_number_and_a_missing_one_is_an_error() {
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
fn commands_that_need_a_gpu_fail_with_the_reason() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let done = place.run("bench launch");
    assert_ne!(done.code, 0);
    assert!(done.err.contains("driver") || done.err.contains("GPU"), "{}", done.err);
    // With --json, the error of a worker that does not start was once taken for an answer.
    let done = place.run("--json selftest --cases 1 --isolate 1");
    if done.code != 0 {
        assert!(done.err.contains("driver") || done.err.contains("GPU"), "{}", done.err);
        assert!(done.out.contains("the first worker does not start"), "{}", done.out);
    }
}
