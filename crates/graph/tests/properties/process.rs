//! Keys are the same in another process: they do not depend on addresses, hash seeds or the environment.

use std::fmt::Write as _;
use std::process::Command;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use qkvault_graph::arbitrary::{self, Space};
use qkvault_graph::{Attention, codec, validate};

const VARIABLE: &str = "QKVAULT_TEST_CHILD";
const MARK: &str = "keys: ";

fn attentions() -> Vec<Attention> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = arbitrary::attention(Space::WIDE);
    (0..64).map(|_| strategy.new_tree(&mut runner).expect("a strategy without filters").current()).collect()
}

fn keys(attentions: Vec<Attention>) -> String {
    attentions.into_iter().fold(String::new(), |mut text, a| {
        let key = validate(a).expect("sound").key();
        write!(text, "{key} ").expect("writing to a string does not fail");
        text
    })
}

/// By hand it does nothing; the test below starts it with the variable set, and it prints the keys of its input.
#[test]
fn prints_keys_for_the_process_that_started_it() {
    let Ok(path) = std::env::var(VARIABLE) else { return };
    let bytes = std::fs::read(path).expect("the parent wrote it");
    let attentions: Vec<Attention> = codec::decode(&bytes).expect("the parent encoded it");
    println!("{MARK}{}", keys(attentions));
}

#[test]
fn another_process_gives_the_same_keys() {
    let attentions = attentions();
    let path = std::env::temp_dir().join(format!("qkvault-graph-keys-{}.msgpack", std::process::id()));
    std::fs::write(&path, codec::encode(&attentions)).expect("the temporary folder can be written");
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "process::prints_keys_for_the_process_that_started_it", "--nocapture"])
        .env(VARIABLE, &path)
        .output()
        .expect("this test starts");
    std::fs::remove_file(&path).expect("it was just written");
    let printed = String::from_utf8_lossy(&output.stdout);
    let line = printed.lines().find_map(|line| line.split_once(MARK)).map(|(_, keys)| keys);
    assert_eq!(line, Some(keys(attentions).as_str()), "{printed}{}", String::from_utf8_lossy(&output.stderr));
}
