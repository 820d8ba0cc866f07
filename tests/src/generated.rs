//! Tables of attentions drawn at random, put to cuDNN for several generations of GPUs: dense ones, forward and backward, and those
//! of serving, varlen and paged.
//!
//! The attentions are files (`goldens/generated.txt`, `goldens/generated-serving.txt`), so that what is drawn and what is compared
//! change apart. A run takes a part of the rows, the same in every run; `QKVAULT_FULL_TABLE=1` takes all of them, in processes of its
//! own, because a graph that ends cuDNN's process is an answer too. `UPDATE_GOLDENS=1` with it writes the table.

use std::path::PathBuf;
use std::process::Command;

use qkvault_compile::{Compiler, Failure};
use qkvault_graph::{Attention, CompileOptions, Origin, Refusal, lower, text, validate};
use rayon::prelude::*;

use crate::cudnn::{compiler, say, target};
use crate::{golden, uncompiled};

/// A file of attentions, and what it is put to.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// The file's name, and that of the answers before the version.
    name: &'static str,
    gpus: &'static [&'static str],
    /// Rows that a run without `QKVAULT_FULL_TABLE` takes: every so many.
    part: usize,
}

/// Dense attentions, for one GPU of each generation that people train on: sm_80, sm_90, sm_100.
pub const TRAINING: Table = Table { name: "generated", gpus: &["a100", "h200", "b200"], part: 41 };

/// Varlen and paged ones, for every generation that serves: sm_80, sm_89, sm_90, sm_100, sm_120.
pub const SERVING: Table =
    Table { name: "generated-serving", gpus: &["a100", "l40s", "h200", "b200", "rtx-pro-6000"], part: 53 };

/// Ones of which every operand is laid out by itself, gradients too.
pub const LAYOUTS: Table = Table { name: "generated-layouts", gpus: &["a100", "h200", "b200"], part: 17 };

/// Rows that one process of a whole table compiles.
const CHUNK: usize = 30;

/// For a process of its own: the first row, and the first after the last.
const ROWS: &str = "QKVAULT_TABLE_ROWS";

fn goldens() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("goldens")
}

impl Table {
    /// The attentions of the table.
    ///
    /// # Panics
    ///
    /// When the file has one that cannot be read.
    #[must_use]
    pub fn attentions(&self) -> Vec<Attention> {
        let text = std::fs::read_to_string(goldens().join(format!("{}.txt", self.name))).unwrap();
        text.split("\n---").map(|part| text::parse(part).unwrap_or_else(|e| panic!("{e}\n{part}"))).collect()
    }
}

/// Compiles a part of the table with the fetched slim cuDNN of this version, or all of it, and compares with the golden.
///
/// # Panics
///
/// When an answer is another one.
pub fn check(table: Table, version: &str, test: &str) {
    let Some(compiler) = compiler(version) else { return };
    let Table { name, gpus, part } = table;
    let attentions = table.attentions();
    let rows = attentions.len() * gpus.len();
    if let Ok(range) = std::env::var(ROWS) {
        let (first, end) = range.split_once(' ').unwrap();
        for row in first.parse().unwrap()..end.parse().unwrap() {
            // The test harness begins a line of its own before the first.
            say(&format!("\nrow {}", line(&compiler, gpus, &attentions, row)));
        }
        return;
    }
    let name = format!("{name}-{version}.txt");
    if std::env::var_os("QKVAULT_FULL_TABLE").is_some_and(|v| v == "1") {
        let firsts: Vec<usize> = (0..rows).step_by(CHUNK).collect();
        let lines: Vec<String> =
            firsts.par_iter().flat_map(|&first| chunk(gpus, test, first, rows.min(first + CHUNK))).collect();
        let refused =
            lines.iter().filter(|line| ["| refused", "| not compiled"].iter().any(|end| line.contains(end))).count();
        let head = format!(
            "# {} attentions put to cuDNN {version} (slim) without a GPU, for {}: {rows} rows, {refused} refused.\n\
             # Written by UPDATE_GOLDENS=1 QKVAULT_FULL_TABLE=1 cargo test -p qkvault-tests generated.\n",
            attentions.len(),
            gpus.join(", ")
        );
        golden::check(&name, &format!("{head}{}\n", lines.join("\n")));
        return;
    }
    let golden = std::fs::read_to_string(goldens().join(&name)).unwrap();
    let known: Vec<&str> = golden.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(known.len(), rows, "{name} has another number of rows than the attentions; write it anew");
    let part: Vec<usize> = (0..rows).step_by(part).filter(|&row| !known[row].ends_with("| ends the process")).collect();
    let wrong: Vec<String> = part
        .par_iter()
        .filter_map(|&row| {
            let came = line(&compiler, gpus, &attentions, row);
            (came != known[row]).then(|| format!("- {}\n+ {came}", known[row]))
        })
        .collect();
    assert!(wrong.is_empty(), "{name} is not what came:\n{}", wrong.join("\n"));
}

/// Rows compiled by a process of its own; where it does not come back, each by another.
fn chunk(gpus: &[&str], test: &str, first: usize, end: usize) -> Vec<String> {
    let ended = |row: usize| vec![format!("{row:04} {} | ends the process", gpus[row % gpus.len()])];
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
        false => (first..end).flat_map(|row| chunk(gpus, test, row, row + 1)).collect(),
    }
}

/// A row: its number, the GPU, the attention in short, and what cuDNN or qkvault says to it.
fn line(compiler: &Compiler, gpus: &[&str], attentions: &[Attention], row: usize) -> String {
    let (attention, gpu) = (&attentions[row / gpus.len()], gpus[row % gpus.len()]);
    format!("{row:04} {gpu} {attention} | {}", answer(compiler, attention, gpu))
}

fn answer(compiler: &Compiler, attention: &Attention, gpu: &str) -> String {
    let valid = validate(attention.clone()).unwrap_or_else(|e| panic!("{attention}: {e}"));
    let (target, policy) = (target(compiler, gpu), CompileOptions::default());
    let graph = match lower(&valid, &target, &policy) {
        Ok(graph) => graph,
        Err(refusal) => return refused(&refusal),
    };
    match compiler.compile(&graph, &target, &policy) {
        Ok(plan) => format!("{}, workspace {}", plan.engine, plan.workspace),
        Err(Failure::Refused(refusal)) => refused(&refusal),
        // The planner refuses it where rules say so, which they must.
        Err(failure) if failure.is_uncompiled() => uncompiled::known(&valid, &target),
        Err(failure) => panic!("{attention} for {gpu} is neither compiled nor refused: {failure}"),
    }
}

fn refused(refusal: &Refusal) -> String {
    let reasons = refusal.reasons().iter().map(|reason| {
        let by = if reason.origin == Origin::Library { "cuDNN" } else { "qkvault" };
        format!("{by}, {}: {}", reason.code, reason.given.replace('\n', " "))
    });
    format!("refused by {}", reasons.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use qkvault_graph::Storage;

    use super::*;

    #[test]
    fn the_table_has_five_hundred_sound_attentions_in_both_directions() {
        let list = TRAINING.attentions();
        let sound = list.iter().filter(|a| validate((*a).clone()).is_ok()).count();
        let backward = list.iter().filter(|a| a.is_backward()).count();
        assert!(list.len() >= 500 && sound == list.len(), "{sound} of {}", list.len());
        assert!((150..350).contains(&backward), "{backward} backwards");
    }

    #[test]
    fn the_table_of_serving_has_varlen_and_paged_attentions_of_every_kind() {
        let list = SERVING.attentions();
        assert!(list.len() >= 100 && list.iter().all(|a| validate(a.clone()).is_ok()), "{} attentions", list.len());
        let paged = |a: &&Attention| matches!(a.k.storage, Storage::Paged { .. });
        let varlen = |a: &&Attention| matches!(a.q.storage, Storage::Varlen { .. });
        let counts = [
            list.iter().filter(paged).filter(|a| a.seq().0 == 1).count(),
            list.iter().filter(paged).filter(varlen).count(),
            list.iter().filter(varlen).filter(|a| a.is_backward()).count(),
            list.iter().filter(|a| a.score_mod.is_some()).count(),
            list.iter().filter(|a| a.k.heads() == 1).count(),
        ];
        assert!(counts.iter().all(|&n| n >= 8), "{counts:?}");
    }
}
