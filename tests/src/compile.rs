//! Compiles a table of attentions with a cuDNN, and writes the results as text.

use std::fmt::Write as _;

use qkvault_compile::{Compiler, Failure};
use qkvault_cudnn::{CompileOptions, Form, lower};
use qkvault_graph::{Attention, Origin, Refusal, validate};
use rayon::prelude::*;

use crate::case::Case;
use crate::cudnn::{compiler, target};
use crate::serving_case::{self, Extent};
use crate::{golden, table, uncompiled};

/// Compiles every row of the table with the fetched slim cuDNN of this version and compares the results with the
/// golden.
///
/// # Panics
///
/// Panics if a result differs from the golden, or is neither a plan nor a refusal.
pub fn check(version: &str) {
    let rows = table::rows(version.parse().unwrap()).iter().map(Row::of).collect();
    check_rows(version, "forward", "Forwards", "tests/src/table.rs", rows);
}

/// Does the same as [`check`] for the rows of serving.
///
/// # Panics
///
/// Panics in the same cases as [`check`].
pub fn check_serving(version: &str, extent: Extent) {
    let name = match extent {
        Extent::Usual => "serving",
        Extent::Full => "serving-full",
    };
    check_rows(version, name, "Varlen and paged attentions", "tests/src/serving_case.rs", serving_case::rows(extent));
}

/// One row of a table: a named attention for a GPU.
pub struct Row {
    /// The name in goldens.
    pub name: String,
    /// The attention.
    pub attention: Attention,
    /// Profile of the target GPU.
    pub gpu: &'static str,
    /// Form of the op graph.
    pub form: Form,
}

impl Row {
    fn of(case: &Case) -> Row {
        Row { name: case.to_string(), attention: case.attention(), gpu: case.gpu, form: case.form }
    }
}

/// A run without `QKVAULT_FULL_TABLE` compiles every tenth row, of each version others, and compares all names.
const PART: usize = 10;

fn check_rows(version: &str, name: &str, what: &str, file: &str, rows: Vec<Row>) {
    let Some(compiler) = compiler(version) else { return };
    let golden = format!("{name}-{version}.txt");
    if !golden::is_whole() {
        golden::check_names(&golden, &rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>());
        let first = compiler.library().version().minor as usize % PART;
        let part: Vec<Row> = rows.into_iter().skip(first).step_by(PART).collect();
        let answers = answers(&compiler, &part);
        golden::check_part(
            &golden,
            &part.iter().zip(&answers).map(|(row, answer)| entry(row, answer)).collect::<Vec<_>>(),
        );
        return;
    }
    let answers = answers(&compiler, &rows);
    golden::check(&golden, &text([what, version, file], &rows, &answers));
}

/// The answers to rows, none of which is neither a plan nor a refusal.
fn answers(compiler: &Compiler, rows: &[Row]) -> Vec<Answer> {
    let answers: Vec<Answer> = rows.par_iter().map(|row| answer(compiler, row)).collect();
    let broken: Vec<String> = rows
        .iter()
        .zip(&answers)
        .filter_map(|(row, answer)| match answer {
            Answer::Broken(why) => Some(format!("{}: {why}", row.name)),
            Answer::Plan(_) | Answer::Refused(_) | Answer::Uncompiled(_) => None,
        })
        .collect();
    assert!(broken.is_empty(), "neither plan nor refusal:\n{}", broken.join("\n"));
    answers
}

enum Answer {
    Plan(String),
    Refused(Refusal),
    Uncompiled(String),
    Broken(String),
}

fn answer(compiler: &Compiler, row: &Row) -> Answer {
    let attention = validate(row.attention.clone()).unwrap_or_else(|e| panic!("{}: {e}", row.name));
    let target = target(compiler, row.gpu);
    let policy = CompileOptions { lab: qkvault_cudnn::LabOptions::form(row.form), ..CompileOptions::cudnn() };
    let graph = match lower(&attention, &target, &policy) {
        Ok(graph) => graph,
        Err(refusal) => return Answer::Refused(refusal),
    };
    match compiler.compile(&graph, &target, &policy) {
        Ok(plan) => Answer::Plan(format!("{}, workspace {}", plan.engine, plan.workspace)),
        Err(Failure::Refused(refusal)) => Answer::Refused(refusal),
        Err(failure) if failure.is_uncompiled() => Answer::Uncompiled(uncompiled::known(&attention, &target)),
        Err(failure) => Answer::Broken(failure.to_string()),
    }
}

fn text([what, version, file]: [&str; 3], rows: &[Row], answers: &[Answer]) -> String {
    let refused = answers.iter().filter(|a| matches!(a, Answer::Refused(_) | Answer::Uncompiled(_))).count();
    let mut text = format!(
        "# {what} compiled with cuDNN {version} (slim) without a GPU: {} rows, {refused} refused.\n\
         # Written by UPDATE_GOLDENS=1 cargo test -p qkvault-tests; the rows are in {file}.\n",
        rows.len()
    );
    rows.iter().zip(answers).for_each(|(row, answer)| text.push_str(&entry(row, answer)));
    text
}

/// What a golden has of a row.
fn entry(row: &Row, answer: &Answer) -> String {
    let mut text = format!("{}\n", row.name);
    match answer {
        Answer::Plan(plan) => {
            let _ = writeln!(text, "    plan: {plan}");
        }
        Answer::Refused(refusal) => {
            for reason in refusal.reasons() {
                let by = if reason.origin == Origin::Library { "cuDNN" } else { "qkvault" };
                let _ = writeln!(text, "    refused by {by}, {}: {}: {}", reason.code, reason.field, reason.given);
            }
        }
        Answer::Uncompiled(rules) => {
            let _ = writeln!(text, "    {rules}");
        }
        Answer::Broken(why) => {
            let _ = writeln!(text, "    broken: {why}");
        }
    }
    text
}
