//! The table put to a cuDNN, and its answers as text.

use std::fmt::Write as _;

use qkvault_graph::{Layer, Policy, Refusal, lower, validate};
use qkvault_probe::{Compiler, Failure};
use rayon::prelude::*;

use crate::case::Case;
use crate::cudnn::{compiler, target};
use crate::{golden, table};

/// Compiles every row of the table with the fetched slim cuDNN of this version and compares the answers with the golden.
///
/// # Panics
///
/// When an answer is another one, and when a row is neither a plan nor a refusal.
pub fn check(version: &str) {
    let Some(compiler) = compiler(version) else { return };
    let rows = table::rows(version.parse().unwrap());
    let answers: Vec<Answer> = rows.par_iter().map(|row| answer(&compiler, row)).collect();
    let broken: Vec<String> = rows
        .iter()
        .zip(&answers)
        .filter_map(|(row, answer)| match answer {
            Answer::Broken(why) => Some(format!("{row}: {why}")),
            Answer::Plan(_) | Answer::Refused(_) => None,
        })
        .collect();
    assert!(broken.is_empty(), "neither plan nor refusal:\n{}", broken.join("\n"));
    golden::check(&format!("forward-{version}.txt"), &text(version, &rows, &answers));
}

enum Answer {
    Plan(String),
    Refused(Refusal),
    Broken(String),
}

fn answer(compiler: &Compiler, case: &Case) -> Answer {
    let attention = validate(case.attention()).unwrap_or_else(|e| panic!("{case}: {e}"));
    let target = target(compiler, case.gpu);
    let policy = Policy { form: case.form, ..Policy::default() };
    let graph = match lower(&attention, &target, &policy) {
        Ok(graph) => graph,
        Err(refusal) => return Answer::Refused(refusal),
    };
    match compiler.compile(&graph, &target, &policy) {
        Ok(plan) => Answer::Plan(format!("{}, workspace {}", plan.engine, plan.workspace)),
        Err(Failure::Refused(refusal)) => Answer::Refused(refusal),
        Err(failure @ (Failure::OtherLibrary { .. } | Failure::Broken(_) | Failure::StandIn(_))) => {
            Answer::Broken(failure.to_string())
        }
    }
}

fn text(version: &str, rows: &[Case], answers: &[Answer]) -> String {
    let refused = answers.iter().filter(|a| matches!(a, Answer::Refused(_))).count();
    let mut text = format!(
        "# Forwards put to cuDNN {version} (slim) without a GPU: {} rows, {refused} refused.\n\
         # Written by UPDATE_GOLDENS=1 cargo test -p qkvault-tests; the rows are those of tests/src/table.rs.\n",
        rows.len()
    );
    for (row, answer) in rows.iter().zip(answers) {
        let _ = writeln!(text, "{row}");
        match answer {
            Answer::Plan(plan) => {
                let _ = writeln!(text, "    plan: {plan}");
            }
            Answer::Refused(refusal) => {
                for reason in refusal.reasons() {
                    let by = if reason.layer == Layer::Library { "cuDNN" } else { "qkvault" };
                    let _ = writeln!(text, "    refused by {by}, {}: {}: {}", reason.code, reason.field, reason.given);
                }
            }
            Answer::Broken(why) => {
                let _ = writeln!(text, "    broken: {why}");
            }
        }
    }
    text
}
