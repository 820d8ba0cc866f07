//! Runs the example programs without a GPU: each fails by itself if its numbers are not candle's.

use std::process::Command;

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn a_llama_of_candle_transformers_has_the_same_logits_with_its_attention_replaced() {
    assert!(run(env!("CARGO_BIN_EXE_llama"), &["--cpu", "--tokens", "24"]).contains("logits of 24 tokens"));
}

#[test]
fn steps_over_a_cache_of_pages_have_the_logits_of_whole_texts() {
    assert!(run(env!("CARGO_BIN_EXE_generate"), &["--cpu"]).contains("logits over the cache"));
}

#[test]
fn two_layers_learn_as_with_candles_plain_attention() {
    let text = run(env!("CARGO_BIN_EXE_train"), &["--cpu", "--steps", "36", "--batch", "4", "--seq", "16"]);
    assert!(text.contains("step  35: loss"), "{text}");
}
