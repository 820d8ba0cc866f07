//! Variables that change the compiled code, NVRTC, and entries of an older format.

use crate::kit::{Place, fields, numbers};

const WORDS: &str = "warm --model ../../models/llama-3.1-8b.json --phase prefill --seq 128 --batch 1 --engine cudnn";

/// Once, plans with and without the variable had one key, and the first one compiled was served for both.
#[test]
fn a_variable_that_changes_code_has_its_own_plans_and_a_note() {
    let Some(plain) = Place::with_cudnn("9.27.0") else { return };
    let Some(dbg) = Place::with_cudnn("9.27.0").map(|place| place.set("CUDNN_RESCALE_THRESHOLD", "0")) else { return };
    let Some(log) = Place::with_cudnn("9.27.0").map(|place| place.set("CUDNN_LOGLEVEL_DBG", "0")) else { return };
    let folder = plain.path("");
    let warm = |place: &Place| {
        let done = place.run_in(&folder, &format!("--json {WORDS}"));
        let report: serde_json::Value = serde_json::from_str(&done.out).unwrap();
        (numbers(&report, ["built", "hits"]), report["plans"][0]["key"].clone(), report)
    };
    let (built, plain_key, report) = warm(&plain);
    assert_eq!(built, [1, 0]);
    assert_eq!(report["runs"][0]["toolchain"]["environment"], serde_json::json!({}));
    let (built, dbg_key, report) = warm(&dbg);
    assert_eq!((built, dbg_key == plain_key), ([1, 0], false), "the plain plan is not served");
    assert!(
        report["notes"].to_string().contains("CUDNN_RESCALE_THRESHOLD=0 changes what cuDNN compiles"),
        "{report:#}"
    );
    assert!(report["runs"][0]["target"].as_str().unwrap().ends_with("with CUDNN_RESCALE_THRESHOLD=0"), "{report:#}");
    // Each finds its own plan again. A logging variable does not change the key.
    assert_eq!((warm(&plain).0, warm(&plain).1), ([0, 1], plain_key.clone()));
    assert_eq!((warm(&dbg).0, warm(&dbg).1), ([0, 1], dbg_key.clone()));
    assert_eq!((warm(&log).0, warm(&log).1), ([0, 1], plain_key));
    let (_, shown) = plain.json(&format!("cache show {}", dbg_key.as_str().unwrap()));
    assert_eq!(shown["facts"]["own"]["cudnn"]["toolchain"]["environment"]["CUDNN_RESCALE_THRESHOLD"], "0", "{shown:#}");
    // A deep check compiles a plan only if the environment has the variables that the plan names.
    let (code, deep) = plain.json("cache verify --deep");
    assert_eq!((code, numbers(&deep, ["same", "skipped", "different"])), (0, [1, 1, 0]), "{deep:#}");
    assert!(dbg.run("doctor").good().contains("note: CUDNN_RESCALE_THRESHOLD=0 changes"));
}

#[test]
fn doctor_names_the_nvrtc_that_is_used() {
    let Some(place) = Place::with_cudnn("9.19.0") else { return };
    let (_, report) = place.json("doctor");
    let cudnn = &report["findings"]["cudnn"];
    fields(&cudnn["nvrtc"], &["version", "path", "was_loaded", "others"]);
    assert_eq!((&cudnn["nvrtc"]["version"], &cudnn["toolchain"]["nvrtc"]), (&"13.0".into(), &"13.0".into()));
    assert!(place.run("doctor").good().contains("NVRTC 13.0 is used: "));
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let (_, report) = place.json("doctor");
    assert_eq!(report["findings"]["cudnn"]["nvrtc"], serde_json::Value::Null, "it is inside");
}

#[test]
fn entries_of_an_older_format_are_reported_and_gc_deletes_them() {
    let place = Place::new();
    let shard = place.path("vault/v1/entries/ab");
    std::fs::create_dir_all(&shard).unwrap();
    std::fs::write(shard.join(format!("{}.qkv", "ab".repeat(32))), b"an entry of format 1").unwrap();
    for command in ["cache ls", "cache verify", "doctor --cudnn-path /nonexistent"] {
        let done = place.run(command);
        for word in ["note: ", "vault/v1 holds 1 entry of format 1", "cache gc"] {
            assert!(done.out.contains(word), "{command}: {}", done.out);
        }
    }
    let (code, list) = place.json("cache ls");
    fields(&list, &["entries", "older"]);
    fields(&list["older"][0], &["path", "layer", "format", "entries", "bytes"]);
    assert_eq!((code, numbers(&list["older"][0], ["format", "entries"])), (0, [1, 1]));
    assert!(place.run("cache gc").good().contains("1 entry of the older format 1 deleted"));
    assert!(!place.path("vault/v1").exists());
    assert_eq!(place.json("cache ls").1["older"], serde_json::json!([]));
}
