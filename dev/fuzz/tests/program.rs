//! The program itself: an input that ends its process in whatever way is kept in a file and named, with the command
//! that replays it.

use std::path::Path;
use std::process::{Command, Output};

fn run(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qkvault-fuzz"));
    command.args(words).current_dir(folder).env_remove("PROPTEST_RNG_SEED");
    command.output().expect("the program starts")
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn an_input_that_fails_is_kept_and_replayed_whatever_the_end_is() {
    for (name, why) in [
        ("trial-panic", "there is an x"),
        ("trial-memory", "memory allocation"),
        ("trial-memory-asked", "times as many bytes"),
        ("trial-stack", "overflow"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let words = ["--target", name, "--seed", "1", "--runs", "500", "--seconds", "60", "--out", "out"];
        let output = run(folder.path(), &words);
        let text = said(&output);
        assert!(!output.status.success() && text.contains(why) && text.contains("seed 1"), "{name}: {text}");
        let replay = text.lines().find_map(|line| line.strip_prefix("replay: cargo xtask fuzz ")).expect("a command");
        let file = replay.rsplit(' ').next().expect("a file");
        assert!(std::fs::read(file).expect("the input is kept").contains(&b'x'), "{name}: {text}");
        let words: Vec<&str> = replay.split(' ').collect();
        let again = run(folder.path(), &words);
        assert!(!again.status.success() && said(&again).contains(why), "{name}: {}", said(&again));
    }
}

#[test]
fn an_endless_input_is_ended_and_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(folder.path(), &["--target", "trial-hang", "--runs", "9", "--longest", "1", "--out", "out"]);
    let text = said(&output);
    assert!(!output.status.success() && text.contains("longer than 1000 ms") && text.contains("replay: "), "{text}");
}

#[test]
fn a_run_follows_from_its_seed_and_leaves_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let words = ["--target", "entry", "--target", "recipe", "--runs", "400", "--seed", "7", "--jobs", "1"];
    let [first, second] = [(); 2].map(|()| {
        let output = run(folder.path(), &words);
        assert!(output.status.success(), "{}", said(&output));
        let text = said(&output);
        let counts = |line: &str| line.split(';').next().map(str::to_owned);
        text.lines().filter(|line| line.contains(" inputs, ")).filter_map(counts).collect::<Vec<_>>()
    });
    assert_eq!((first.len(), &first), (2, &second));
    assert!(first.iter().all(|line| line.contains("400 inputs")), "{first:?}");
    assert_eq!(std::fs::read_dir(folder.path().join("target/fuzz")).expect("the folder").count(), 0);
}

#[test]
fn unknown_targets_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(folder.path(), &["--target", "nothing"]);
    assert!(!output.status.success() && said(&output).contains("the targets are: entry, "), "{}", said(&output));
}
