//! The example `train` on the CPU. The oracle replaces cuDNN; the rest of the model is the same as on a GPU.

use std::process::Command;

use serde_json::Value;

use crate::kit::{Place, fields};

const DATA: &str = "207478498";
const WEIGHTS: &str = "376616397227274206";

/// What the example records when it runs on the CPU with these options.
fn trained(options: &str) -> Value {
    let place = Place::new();
    let out = place.path("train.json");
    // Cargo builds an example with the tests, in a folder beside them, unless the example has tests of its own.
    let tests = std::env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("examples/train");
    let done = Command::new(&program).args(["--cpu", "--out"]).arg(&out).args(options.split(' ')).output();
    let done = done.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap()
}

/// The mean loss of the first and of the last `steps`.
fn ends(record: &Value, steps: usize) -> [f64; 2] {
    let losses: Vec<f64> = record["losses"].as_array().unwrap().iter().map(|l| l.as_f64().unwrap()).collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    [mean(&losses[..steps]), mean(&losses[losses.len() - steps..])]
}

#[test]
fn the_example_learns_on_the_cpu_and_records_what_is_needed_to_repeat_it() {
    let record = trained("--steps 40 --batch 2 --seq 32 --width 32 --heads 2 --rate 0.01");
    fields(&record, &["config", "checksums", "device", "seconds", "attention", "losses"]);
    // train.py computes the same checksums for these sizes.
    assert_eq!(record["checksums"]["data"], DATA);
    assert_eq!(record["checksums"]["weights"], WEIGHTS);
    let [first, last] = ends(&record, 5);
    assert!(record["losses"].as_array().unwrap().len() == 40 && last < first - 0.1, "{first} to {last}");
}

/// The same model in bf16 and in FP8: both end at the same loss, as far as seeds let losses differ.
#[test]
fn training_in_8_bits_ends_within_the_noise_of_bf16() {
    let seeds = [1, 2, 3];
    let losses = |seed: i32, format: &str| {
        let sizes = "--vocabulary 8 --width 32 --heads 1 --batch 4 --seq 16 --steps 100 --rate 0.01";
        ends(&trained(&format!("{sizes} --seed {seed} {format}")), 10)
    };
    let sixteen = seeds.map(|seed| losses(seed, "--plain"));
    for [first, last] in sixteen {
        assert!(last < 0.6 * first, "nothing is learned: {first} to {last}");
    }
    let last = sixteen.map(|[_, last]| last);
    let noise = last.iter().copied().fold(f64::MIN, f64::max) - last.iter().copied().fold(f64::MAX, f64::min);
    for format in ["--fp8", "--fp8 --current"] {
        let off = seeds.iter().zip(last).map(|(&seed, last)| losses(seed, format)[1] - last);
        let mean = off.sum::<f64>() / seeds.len() as f64;
        assert!(mean.abs() < noise, "{format}: {mean} off, {noise} between seeds");
    }
}
