//! Compiles tables of random attentions for several generations of GPUs: dense ones, forward and backward, varlen and
//! paged ones for serving, and 8-bit ones.
//!
//! The attentions are in files (`goldens/generated.txt`, `goldens/generated-serving.txt`), so that a change of the
//! generator does not change the table. A run compiles a part of the rows, the same in every run.
//! `QKVAULT_FULL_TABLE=1` compiles all rows, in child processes, because ending cuDNN's process is also a possible
//! result. With `UPDATE_GOLDENS=1` as well it writes the table.

use std::path::PathBuf;
use std::process::Command;

use qkvault_compile::{Compiler, Failure};
use qkvault_cudnn::{CompileOptions, lower};
use qkvault_graph::{Attention, Origin, Refusal, text, validate};
use rayon::prelude::*;

use crate::cudnn::{compiler, say, target};
use crate::{golden, uncompiled};

/// A file of attentions, and the GPUs to compile them for.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// The name of the file, and of the results' file before the version.
    name: &'static str,
    gpus: &'static [&'static str],
    /// A run without `QKVAULT_FULL_TABLE` compiles every `part`-th row.
    part: usize,
}

/// Dense attentions, for one GPU of each generation for training: sm_80, sm_90, sm_100.
pub const TRAINING: Table = Table { name: "generated", gpus: &["a100", "h200", "b200"], part: 73 };

/// Varlen and paged attentions, for one GPU of each generation for serving: sm_80, sm_89, sm_90, sm_100, sm_120.
pub const SERVING: Table =
    Table { name: "generated-serving", gpus: &["a100", "l40s", "h200", "b200", "rtx-pro-6000"], part: 97 };

/// Attentions whose operands and gradients each have their own layout.
pub const LAYOUTS: Table = Table { name: "generated-layouts", gpus: &["a100", "h200", "b200"], part: 31 };

/// 8-bit attentions with one scale per tensor and with block scales, for one GPU of each generation: sm_89, sm_90,
/// sm_100, sm_103 and sm_120.
pub const EIGHT_BITS: Table =
    Table { name: "generated-fp8", gpus: &["l40s", "h200", "b200", "sm_103", "rtx-pro-6000"], part: 23 };

/// Rows that one child process compiles.
const CHUNK: usize = 30;

/// The rows of a child process: the first row, and the end.
const ROWS: &str = "QKVAULT_TEST_CHILD";

fn goldens() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("goldens")
}

impl Table {
    /// The attentions of the table.
    ///
    /// # Panics
    ///
    /// Panics if the file has an attention that cannot be read.
    #[must_use]
    pub fn attentions(&self) -> Vec<Attention> {
        let text = std::fs::read_to_string(goldens().join(format!("{}.txt", self.name))).unwrap();
        text.split("\n---").map(|part| text::parse(part).unwrap_or_else(|e| panic!("{e}\n{part}"))).collect()
    }
}

/// Compiles a part of the table with the fetched slim cuDNN of this version, or all of it, and compares with the
/// golden.
///
/// # Panics
///
/// Panics if a result differs from the golden.
pub fn check(table: Table, version: &str, test: &str) {
    let Some(compiler) = compiler(version) else { return };
    let Table { name, gpus, part } = table;
    let attentions = table.attentions();
    let rows = attentions.len() * gpus.len();
    if let Ok(range) = std::env::var(ROWS) {
        let (first, end) = range.split_once(' ').unwrap();
        for row in first.parse().unwrap()..end.parse().unwrap() {
            // Begins with a line break, because the test harness leaves its first line open.
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
            "# {} attentions compiled with cuDNN {version} (slim) without a GPU, for {}: {rows} rows, {refused} refused.\n\
             # Written by UPDATE_GOLDENS=1 QKVAULT_FULL_TABLE=1 cargo test -p qkvault-tests generated.\n",
            attentions.len(),
            gpus.join(", ")
        );
        golden::check(&name, &format!("{head}{}\n", lines.join("\n")));
        return;
    }
    let golden = std::fs::read_to_string(goldens().join(&name)).unwrap();
    let known: Vec<&str> = golden.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(
        known.len(),
        rows,
        "{name} has another number of rows than the table; write it again with UPDATE_GOLDENS=1 QKVAULT_FULL_TABLE=1"
    );
    let part: Vec<usize> = (0..rows).step_by(part).filter(|&row| !known[row].ends_with("| ends the process")).collect();
    let wrong: Vec<String> = part
        .par_iter()
        .filter_map(|&row| {
            let actual = line(&compiler, gpus, &attentions, row);
            (actual != known[row]).then(|| format!("- {}\n+ {actual}", known[row]))
        })
        .collect();
    assert!(wrong.is_empty(), "the results differ from {name}:\n{}", wrong.join("\n"));
}

/// Compiles rows in a child process. If the process does not finish, compiles each row in its own process.
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

/// The line of a row: its number, the GPU, the attention, and the result.
fn line(compiler: &Compiler, gpus: &[&str], attentions: &[Attention], row: usize) -> String {
    let (attention, gpu) = (&attentions[row / gpus.len()], gpus[row % gpus.len()]);
    format!("{row:04} {gpu} {attention} | {}", answer(compiler, attention, gpu))
}

fn answer(compiler: &Compiler, attention: &Attention, gpu: &str) -> String {
    let valid = validate(attention.clone()).unwrap_or_else(|e| panic!("{attention}: {e}"));
    let (target, policy) = (target(compiler, gpu), CompileOptions::cudnn());
    let graph = match lower(&valid, &target, &policy) {
        Ok(graph) => graph,
        Err(refusal) => return refused(&refusal),
    };
    match compiler.compile(&graph, &target, &policy) {
        Ok(plan) => format!("{}, workspace {}", plan.engine, plan.workspace),
        Err(Failure::Refused(refusal)) => refused(&refusal),
        // The planner refuses it by a rule, and there must be one.
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
    use qkvault_graph::{Fp8, Storage};

    use super::*;

    #[test]
    fn the_table_has_five_hundred_valid_attentions_in_both_directions() {
        let list = TRAINING.attentions();
        let valid = list.iter().filter(|a| validate((*a).clone()).is_ok()).count();
        let backward = list.iter().filter(|a| a.is_backward()).count();
        assert!(list.len() >= 500 && valid == list.len(), "{valid} of {}", list.len());
        assert!((150..350).contains(&backward), "{backward} backwards");
    }

    #[test]
    fn the_table_of_8_bits_has_both_directions_with_every_kind_of_scales() {
        let list = EIGHT_BITS.attentions();
        assert!(list.iter().all(|a| validate(a.clone()).is_ok()), "{} attentions", list.len());
        for scaling in [Fp8::Delayed, Fp8::Current, Fp8::Block] {
            let of = |backward| list.iter().filter(|a| a.fp8 == Some(scaling) && a.is_backward() == backward).count();
            assert!(of(false) >= 5 && of(true) >= 5, "{scaling:?}: {} and {}", of(false), of(true));
        }
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
