//! The table of attentions drawn at random, forward and backward, put to cuDNN for three generations of GPUs.
//!
//! The attentions are a file (`goldens/generated.txt`), so that what is drawn and what is compared change apart. A run takes a part of
//! the rows, the same in every run; `QKVAULT_FULL_TABLE=1` takes all of them, in processes of its own, because a graph that ends
//! cuDNN's process is an answer too. `UPDATE_GOLDENS=1` with it writes the table.

use std::path::PathBuf;
use std::process::Command;

use qkvault_graph::{Attention, Layer, Policy, Refusal, lower, text, validate};
use qkvault_probe::{Compiler, Failure};
use rayon::prelude::*;

use crate::cudnn::{compiler, say, target};
use crate::golden;

/// One of each generation that the training issue of users names: sm_80, sm_90, sm_100.
const GPUS: [&str; 3] = ["a100", "h200", "b200"];

/// Rows that a run without `QKVAULT_FULL_TABLE` takes: every so many.
const PART: usize = 41;

/// Rows that one process of a whole table compiles.
const CHUNK: usize = 30;

/// For a process of its own: the first row, and the first after the last.
const ROWS: &str = "QKVAULT_TABLE_ROWS";

fn goldens() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("goldens")
}

/// The attentions of the table.
///
/// # Panics
///
/// When the file has one that cannot be read.
#[must_use]
pub fn attentions() -> Vec<Attention> {
    let text = std::fs::read_to_string(goldens().join("generated.txt")).unwrap();
    text.split("\n---").map(|part| text::parse(part).unwrap_or_else(|e| panic!("{e}\n{part}"))).collect()
}

/// Compiles a part of the table with the fetched slim cuDNN of this version, or all of it, and compares with the golden.
///
/// # Panics
///
/// When an answer is another one.
pub fn check(version: &str, test: &str) {
    let Some(compiler) = compiler(version) else { return };
    let attentions = attentions();
    let rows = attentions.len() * GPUS.len();
    if let Ok(range) = std::env::var(ROWS) {
        let (first, end) = range.split_once(' ').unwrap();
        for row in first.parse().unwrap()..end.parse().unwrap() {
            // The test harness begins a line of its own before the first.
            say(&format!("\nrow {}", line(&compiler, &attentions, row)));
        }
        return;
    }
    let name = format!("generated-{version}.txt");
    if std::env::var_os("QKVAULT_FULL_TABLE").is_some_and(|v| v == "1") {
        let firsts: Vec<usize> = (0..rows).step_by(CHUNK).collect();
        let lines: Vec<String> =
            firsts.par_iter().flat_map(|&first| chunk(test, first, rows.min(first + CHUNK))).collect();
        let refused = lines.iter().filter(|line| line.contains("| refused")).count();
        let head = format!(
            "# {} attentions put to cuDNN {version} (slim) without a GPU, for {}: {rows} rows, {refused} refused.\n\
             # Written by UPDATE_GOLDENS=1 QKVAULT_FULL_TABLE=1 cargo test -p qkvault-tests generated.\n",
            attentions.len(),
            GPUS.join(", ")
        );
        golden::check(&name, &format!("{head}{}\n", lines.join("\n")));
        return;
    }
    let golden = std::fs::read_to_string(goldens().join(&name)).unwrap();
    let known: Vec<&str> = golden.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(known.len(), rows, "{name} has another number of rows than the attentions; write it anew");
    let part: Vec<usize> = (0..rows).step_by(PART).filter(|&row| !known[row].ends_with("| ends the process")).collect();
    let wrong: Vec<String> = part
        .par_iter()
        .filter_map(|&row| {
            let came = line(&compiler, &attentions, row);
            (came != known[row]).then(|| format!("- {}\n+ {came}", known[row]))
        })
        .collect();
    assert!(wrong.is_empty(), "{name} is not what came:\n{}", wrong.join("\n"));
}

/// Rows compiled by a process of its own; where it does not come back, each by another.
fn chunk(test: &str, first: usize, end: usize) -> Vec<String> {
    let ended = |row: usize| vec![format!("{row:04} {} | ends the process", GPUS[row % GPUS.len()])];
    let out = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROWS, format!("{first} {end}"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let lines: Vec<String> = text.lines().filter_map(|line| line.strip_prefix("row ")).map(str::to_owned).collect();
    match lines.len() == end - first {
        true => lines,
        false if end - first == 1 => ended(first),
        false => (first..end).flat_map(|row| chunk(test, row, row + 1)).collect(),
    }
}

/// A row: its number, the GPU, the attention in short, and what cuDNN or qkvault says to it.
fn line(compiler: &Compiler, attentions: &[Attention], row: usize) -> String {
    let (attention, gpu) = (&attentions[row / GPUS.len()], GPUS[row % GPUS.len()]);
    format!("{row:04} {gpu} {attention} | {}", answer(compiler, attention, gpu))
}

fn answer(compiler: &Compiler, attention: &Attention, gpu: &str) -> String {
    let valid = validate(attention.clone()).unwrap_or_else(|e| panic!("{attention}: {e}"));
    let (target, policy) = (target(compiler, gpu), Policy::default());
    let graph = match lower(&valid, &target, &policy) {
        Ok(graph) => graph,
        Err(refusal) => return refused(&refusal),
    };
    match compiler.compile(&graph, &target, &policy) {
        Ok(plan) => format!("{}, workspace {}", plan.engine, plan.workspace),
        Err(Failure::Refused(refusal)) => refused(&refusal),
        Err(failure) => panic!("{attention} for {gpu} is neither compiled nor refused: {failure}"),
    }
}

fn refused(refusal: &Refusal) -> String {
    let reasons = refusal.reasons().iter().map(|reason| {
        let by = if reason.layer == Layer::Library { "cuDNN" } else { "qkvault" };
        format!("{by}, {}: {}", reason.code, reason.given.replace('\n', " "))
    });
    format!("refused by {}", reasons.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_five_hundred_sound_attentions_in_both_directions() {
        let list = attentions();
        let sound = list.iter().filter(|a| validate((*a).clone()).is_ok()).count();
        let backward = list.iter().filter(|a| a.is_backward()).count();
        assert!(list.len() >= 500 && sound == list.len(), "{sound} of {}", list.len());
        assert!((150..350).contains(&backward), "{backward} backwards");
    }
}
