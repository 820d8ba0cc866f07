//! The example `train` on the CPU. The oracle replaces cuDNN; the rest of the model is the same as on a GPU.

use std::process::Command;

use serde_json::Value;

use crate::kit::{Place, fields};

const DATA: &str = "207478498";
const WEIGHTS: &str = "376616397227274206";

#[test]
fn the_example_learns_on_the_cpu_and_records_what_is_needed_to_repeat_it() {
    let place = Place::new();
    let out = place.path("train.json");
    // Cargo builds the examples with the tests, in a folder beside them.
    let tests = std::env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("examples/train");
    let words = "--cpu --steps 40 --batch 2 --seq 32 --width 32 --heads 2 --rate 0.01 --out";
    let done = Command::new(&program).args(words.split(' ')).arg(&out).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let record: Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    fields(&record, &["config", "checksums", "device", "seconds", "attention", "losses"]);
    // train.py computes the same checksums for these sizes.
    assert_eq!(record["checksums"]["data"], DATA);
    assert_eq!(record["checksums"]["weights"], WEIGHTS);
    let losses: Vec<f64> = record["losses"].as_array().unwrap().iter().map(|l| l.as_f64().unwrap()).collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let (first, last) = (mean(&losses[..5]), mean(&losses[35..]));
    assert!(losses.len() == 40 && last < first - 0.1, "{first} to {last}");
}
