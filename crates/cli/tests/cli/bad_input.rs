//! Wrong usage: the command prints one paragraph with a fix, returns the right exit code, and loses nothing.

use qkvault_skip::{Need, skip};

use crate::kit::Place;

const BERT: &str = "--model ../../models/bert-base.json --seq 128 --batch 1";

#[test]
fn files_that_are_not_model_configs() {
    let place = Place::new();
    let cases: [(&str, &str, &[&str]); 6] = [
        ("empty.json", "", &["empty.json", "model_type"]),
        ("toml.json", "[workspace]\nresolver = 3\n", &["toml.json", "line 1", "model_type"]),
        ("list.json", "[1, 2]", &["list.json", "model_type"]),
        ("untyped.json", "{}", &["model_type", "llama"]),
        ("mamba.json", r#"{"model_type":"mamba"}"#, &["mamba", "llama"]),
        (
            "headless.json",
            r#"{"model_type":"llama","num_hidden_layers":2,"hidden_size":4096}"#,
            &["num_attention_heads", "published"],
        ),
    ];
    for (name, text, words) in cases {
        let path = place.file(name, text);
        place.run(&format!("warm --model {path}")).failed(1, words);
        place.run(&format!("run --cpu --model {path}")).failed(1, words);
    }
    place.run("warm --model /nonexistent.json").failed(1, &["/nonexistent.json", "No such file"]);
    place.run("warm --model /").failed(1, &["could not be read"]);
    let (code, report) = place.json("warm --model /nonexistent.json");
    assert_eq!(code, 1);
    assert!(report["error"].as_str().unwrap().contains("/nonexistent.json"), "with --json too: {report}");
}

#[test]
fn options_with_invalid_values() {
    let place = Place::new();
    let bert = "--model ../../models/bert-base.json";
    for (words, expected) in [
        ("--seq 0".to_owned(), &["--seq", "1.."][..]),
        ("--seq=-5".to_owned(), &["-5", "1.."]),
        ("--batch 0".to_owned(), &["--batch"]),
        ("--phase nonsense".to_owned(), &["nonsense", "prefill", "decode"]),
        ("--dtype int3".to_owned(), &["int3"]),
        ("--cudnn nine".to_owned(), &["nine", "9.27"]),
        ("--target h2000".to_owned(), &["h2000", "h200", "profile capture"]),
        ("--seq 100000".to_owned(), &["no attention is left", "--seq"]),
        ("--no-such-option".to_owned(), &["--no-such-option"]),
    ] {
        place.run(&format!("warm {bert} {words}")).failed(2, expected);
    }
    place.run("warm").failed(2, &["--model"]);
    place.run("").failed_with_help();
    place.run("wram").failed(2, &["wram"]);
    let broken = place.file("broken.json", "{\"name\": \"x\"}");
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    place.run(&format!("warm {BERT} --target {broken}")).failed(1, &["broken.json", "profile"]);
}

#[test]
fn a_head_size_that_cudnn_refuses_is_reported_in_cudnns_words_beside_what_compiles() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let config = r#"{"model_type":"llama","num_attention_heads":41,"num_hidden_layers":2,"hidden_size":4100}"#;
    let refused = place.file("d100.json", config);
    let done = place.run(&format!("warm {BERT} --model {refused} --phase prefill"));
    assert_eq!(done.code, 1, "{}", done.err);
    for text in ["1 built", "1 refused", "multiple of 8", "d100 [full x2]"] {
        assert!(done.out.contains(text), "{text}: {}", done.out);
    }
}

#[test]
fn another_version_at_the_path_is_an_error_with_both_versions() {
    let (Some(newer), Some(_)) = (Place::with_cudnn("9.27.0"), Place::with_cudnn("9.19.0")) else { return };
    let older = qkvault_base::cudnn_dir().join("9.19.0.56-slim");
    let words = ["is cuDNN 9.19.0, not 9.27.0", "cargo xtask fetch", "9.19.0.56-slim"];
    let by_option = format!("warm {BERT} --cudnn 9.27 --cudnn-path {}", older.display());
    newer.run(&by_option).failed(1, &words);
    let by_variable = Place::new().set("QKVAULT_CUDNN_PATH", older.display().to_string());
    by_variable.run(&format!("warm {BERT} --cudnn 9.27")).failed(1, &words);
    newer.run(&format!("warm {BERT} --cudnn 9.99")).failed(1, &["not 9.99.0"]);
}

#[test]
fn nothing_fetched_and_no_cudnn_anywhere() {
    let empty = Place::new();
    let folder = empty.path("").display().to_string();
    // Neither the user's packages nor those of a Python count: only this folder does.
    let place = Place::new().set("QKVAULT_CACHE_DIR", &folder).set("HOME", &folder).set("PATH", &folder);
    let place = place.set("LD_LIBRARY_PATH", &folder);
    let done = place.run(&format!("warm {BERT}"));
    if done.code == 0 {
        return skip(Need::Bare, "a machine whose dynamic loader finds no cuDNN; this one's does");
    }
    let candidates = [
        "cargo xtask fetch",
        "QKVAULT_CUDNN_PATH: not set",
        "CUDNN_PATH: not set",
        "CUDNN_HOME: not set",
        "loaded in this process: none",
        "site-packages of VIRTUAL_ENV: not set",
        "site-packages of CONDA_PREFIX: not set",
        "fetched: ",
        "CUDA_HOME: ",
        "CUDA_PATH: ",
        "dynamic loader: ",
        "libraries/cudnn",
    ];
    done.failed(1, &candidates);
    assert!(!done.err.contains("\u{1b}["), "{}", done.err);
}

#[test]
fn run_refuses_training_and_serving_and_names_the_command_that_does_them() {
    let done = Place::new().run("run --model ../../models/llama-3.1-8b.json --phase train");
    assert_eq!(done.code, 2, "{}", done.err);
    assert!(done.err.contains("qkvault-lab bench"), "{}", done.err);
    let done = Place::new().run("run --model ../../models/llama-3.1-8b.json --phase serve");
    assert_eq!(done.code, 2, "{}", done.err);
    assert!(done.err.contains("selftest --serving"), "{}", done.err);
}
