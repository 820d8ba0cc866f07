//! `warm` for many models: parts of several machines, runs that are stopped, several targets and versions at once.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::kit::{Place, fields, numbers};

/// Two models, with four plans each.
const MODELS: [&str; 2] = ["--model ../../models/llama-3.1-8b.json", "--model ../../models/qwen2.5-7b.json"];
const SIZES: &str = "--phase prefill,decode --seq 128,256 --batch 1";

fn keys(report: &Value) -> BTreeSet<String> {
    let plans = report["plans"].as_array().unwrap();
    plans.iter().map(|plan| plan["key"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn parts_are_disjoint_on_every_machine_and_come_together_as_the_whole() {
    let Some(one) = Place::with_cudnn("9.27.0") else { return };
    let [llama, qwen] = MODELS;
    let whole = one.json(&format!("warm {llama} {qwen} {SIZES} --dry-run")).1;
    assert_eq!(numbers(&whole, ["built", "hits", "missing", "refused"]), [0, 0, 8, 0], "{whole:#}");
    assert!(one.entries().is_empty(), "a dry run stores nothing");
    // What else a machine is given, and in which order, does not move a plan to another part.
    let part = |models: &str, part: &str| {
        let report = one.json(&format!("warm {models} {SIZES} --dry-run --shard {part}")).1;
        let [of_part, of_whole] = [&report, &whole].map(|report| &report["runs"][0]);
        assert_eq!(of_part["part"], part);
        assert!(
            !models.contains("llama") || of_part["sharing"] == of_whole["sharing"],
            "it counts all parts: {report:#}"
        );
        keys(&report)
    };
    let (both, turned) = (format!("{llama} {qwen}"), format!("{qwen} {llama}"));
    let mut all = BTreeSet::new();
    for at in ["1/3", "2/3", "3/3"] {
        let of_both = part(&both, at);
        assert_eq!(part(&turned, at), of_both);
        assert!(part(qwen, at).is_subset(&of_both) && all.is_disjoint(&of_both), "{at}");
        all.extend(of_both);
    }
    assert_eq!(all, keys(&whole));

    // Two machines compile a part each, and `unpack` brings them together.
    let other = Place::with_cudnn("9.27.0").unwrap();
    let warm = |place: &Place, at: &str| {
        let (code, report) = place.json(&format!("warm {both} {SIZES} {at}"));
        assert_eq!(code, 0, "{report:#}");
        numbers(&report, ["built", "hits"])
    };
    let ([first, 0], [second, 0]) = (warm(&one, "--shard 1/2"), warm(&other, "--shard 2/2")) else { panic!("no hits") };
    assert_eq!(first + second, 8);
    let pack = other.path("part.qkvpack").display().to_string();
    other.run(&format!("pack {pack}")).good();
    assert_eq!(one.json(&format!("unpack {pack}")).1["stored"], second);
    assert_eq!(warm(&one, ""), [0, 8], "both parts are the whole");
}

/// What a stopped run has stored is found by the next one.
#[test]
fn a_run_that_is_killed_goes_on_where_it_was() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let words = format!("warm {} {} {SIZES} --jobs 1", MODELS[0], MODELS[1]);
    let mut command = place.command(&place.path(""), &words);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let built = lines.filter(|line| line.starts_with("built ")).nth(1).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(built.contains("(2 of 8, about ") && built.ends_with(" left)"), "{built}");
    let (code, report) = place.json(&words);
    let [built, hits] = numbers(&report, ["built", "hits"]);
    assert!(code == 0 && hits >= 2 && built + hits == 8, "{report:#}");
    assert_eq!(place.json("cache verify").0, 0);
}

#[test]
fn several_targets_in_one_call_have_a_report_each() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let words = format!("warm {} --phase prefill --seq 128 --batch 1 --target", MODELS[0]);
    let (code, report) = place.json(&format!("{words} h200,b200,h200"));
    assert_eq!((code, numbers(&report, ["built", "hits", "errors"])), (0, [2, 0, 0]), "{report:#}");
    let [hopper, blackwell] = &report["runs"].as_array().unwrap()[..] else { panic!("{report:#}") };
    assert!(hopper["target"].as_str().unwrap().starts_with("sm_90"), "{hopper:#}");
    assert!(blackwell["target"].as_str().unwrap().starts_with("sm_100"), "{blackwell:#}");
    assert_eq!(
        report["bytes"].as_u64(),
        Some(hopper["bytes"].as_u64().unwrap() + blackwell["bytes"].as_u64().unwrap())
    );
    for (name, run) in [("h200", hopper), ("b200", blackwell)] {
        let alone = place.json(&format!("{words} {name}")).1;
        assert_eq!(numbers(&alone, ["built", "hits"]), [0, 1], "{name}");
        let of_run = report["plans"].as_array().unwrap().iter().filter(|plan| plan["target"] == run["target"]);
        let of_run: BTreeSet<String> = of_run.map(|plan| plan["key"].as_str().unwrap().to_owned()).collect();
        assert_eq!(keys(&alone), of_run);
    }
    let text = place.run(&format!("{words} h200,b200"));
    assert_eq!(text.good().matches("0 built, 1 hit").count(), 2, "{}", text.out);
    place.run(&format!("{words} h200,h2000")).failed(2, &["h2000", "the known GPUs are"]);
}

/// A process holds one cuDNN.
#[test]
fn several_versions_in_one_call_have_a_process_each() {
    let (Some(place), Some(_)) = (Place::with_cudnn("9.27.0"), Place::with_cudnn("9.19.0")) else { return };
    let words = format!("warm {} --phase prefill --seq 128 --batch 1 --engine cudnn", MODELS[0]);
    let (code, report) = place.json(&format!("{words} --cudnn 9.19,9.27,9.27.0 --target h200,b200"));
    assert_eq!((code, numbers(&report, ["built", "hits", "errors"])), (0, [4, 0, 0]), "{report:#}");
    let runs = report["runs"].as_array().unwrap();
    let versions: Vec<&str> = runs.iter().map(|run| run["cudnn"].as_str().unwrap()).collect();
    assert!(report["vault"].is_string() && report["seconds"].as_f64().unwrap() > 0.0, "{report:#}");
    assert_eq!(report["plans"].as_array().unwrap().len(), 4, "{report:#}");
    assert_eq!(versions, ["9.19.0", "9.19.0", "9.27.0", "9.27.0"]);
    for version in ["9.19", "9.27"] {
        assert_eq!(numbers(&place.json(&format!("{words} --cudnn {version}")).1, ["built", "hits"]), [0, 1]);
    }
    // A version that is not there is told, and does not keep the others from being compiled.
    let (code, report) = place.json(&format!("{words} --cudnn 9.3,9.27"));
    assert_eq!((code, numbers(&report, ["hits", "errors"])), (1, [1, 1]), "{report:#}");
    assert_eq!(report["runs"][0]["cudnn"], "9.3");
    assert!(report["runs"][0]["error"].as_str().unwrap().contains("9.3"), "{report:#}");
    let text = place.run(&format!("{words} --cudnn=9.19,9.27"));
    for part in ["cuDNN 9.19\n", "cuDNN 9.27\n", "0 built, 1 hit"] {
        assert!(text.good().contains(part), "{part}: {}", text.out);
    }
    place.run(&format!("{words} --cudnn 9.19,nine")).failed(2, &["nine"]);
}

#[test]
fn the_plans_that_models_share_are_counted() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    // At 128 tokens a window of 4096 hides nothing; Qwen has other heads.
    let models = format!("{} {} --model ../../models/mistral-7b-v0.1.json", MODELS[0], MODELS[1]);
    let words = format!("warm {models} --phase prefill --seq 128 --batch 1 --dry-run");
    let report = place.json(&words).1;
    let report = &report["runs"][0];
    fields(&report["sharing"], &["models", "uses", "plans", "shared"]);
    assert_eq!(numbers(&report["sharing"], ["models", "uses", "plans", "shared"]), [3, 3, 2, 1]);
    let text = place.run(&words);
    assert!(
        text.good().contains("3 attentions of 3 models come to 2 plans, 1 of them for several models"),
        "{}",
        text.out
    );
    assert!(text.out.contains("0 built, 0 hit, 2 missing"), "{}", text.out);
}

/// Once, a dry run counted head dims that cuDNN does not take among the plans to compile.
#[test]
fn a_dry_run_knows_what_cudnn_will_refuse() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let config = r#"{"model_type":"llama","num_attention_heads":96,"num_hidden_layers":2,"hidden_size":4032}"#;
    let odd = place.file("odd.json", config);
    let words = format!("warm {} --model {odd} --phase prefill --seq 128 --batch 1", MODELS[0]);
    let (code, dry) = place.json(&format!("{words} --dry-run"));
    assert_eq!((code, numbers(&dry, ["missing", "refused"])), (1, [1, 1]), "{dry:#}");
    assert_eq!(dry["plans"][1]["reasons"][0]["code"], "head-dim.multiple-of-8", "{dry:#}");
    let (_, real) = place.json(&words);
    assert_eq!(numbers(&real, ["built", "refused"]), [1, 1], "{real:#}");
    let (code, dry) = place.json(&format!("{words} --dry-run"));
    assert_eq!((code, numbers(&dry, ["hits", "missing", "refused"])), (1, [1, 0, 1]), "{dry:#}");
}

#[test]
fn a_part_that_does_not_exist_is_wrong_usage() {
    let place = Place::new();
    for part in ["0/2", "3/2", "1", "x/2", "1/0"] {
        place.run(&format!("warm {} --shard {part}", MODELS[0])).failed(2, &["I/N", part]);
    }
}
