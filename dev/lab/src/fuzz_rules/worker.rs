//! Questions and answers of a fuzzing worker: one cuDNN compiles one op graph.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use qkvault_compile::{Compiler, Failure};
use qkvault_cudnn::{CompileOptions, OpGraph, Target, lower};
use qkvault_sys::Search;
use serde::{Deserialize, Serialize};

use super::RuleCase;
use crate::workers::Worker;
use qkvault_cli::out;

/// Longest time for one answer. Compiling takes seconds, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// The question. It has the op graph, so that the worker need not lower again.
#[derive(Serialize, Deserialize)]
struct Question {
    graph: OpGraph,
    target: Target,
}

/// The answer of the library.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum LibraryAnswer {
    /// The library made a plan.
    Plan,
    /// The library refused, for these reasons.
    Refused(Vec<String>),
    /// NVIDIA's compiler did not compile the library's code, now or ever for this graph. Rules tell the two apart.
    Uncompiled(String),
    /// The library failed in another way, or the process died.
    Broken(String),
}

/// Asks the worker of the case's library, and starts it if necessary.
pub(super) fn ask(workers: &mut BTreeMap<PathBuf, Worker>, case: &RuleCase) -> anyhow::Result<LibraryAnswer> {
    let graph = lower(&case.attention, &case.target, &case.options)?;
    let question = serde_json::to_string(&Question { graph, target: case.target.clone() })?;
    if !workers.contains_key(&case.library) {
        let program = std::env::current_exe().context("this program's own file is not known")?;
        let mut command = Command::new(program);
        command.args(["fuzz-rules", "--worker"]).arg(&case.library).stderr(Stdio::null());
        workers.insert(case.library.clone(), Worker::start(&mut command)?);
    }
    let worker = workers.get_mut(&case.library).context("the worker was put there")?;
    let line = worker.ask(&question, LIMIT).map_err(|silence| silence.to_string());
    let answer =
        line.and_then(|line| serde_json::from_str::<LibraryAnswer>(&line).map_err(|error| format!("{error}: {line}")));
    Ok(answer.unwrap_or_else(|why| {
        workers.remove(&case.library);
        LibraryAnswer::Broken(why)
    }))
}

/// Runs a worker: opens the library and answers questions until standard input ends.
pub(super) fn serve(library: &Path) -> anyhow::Result<()> {
    let compiler = Compiler::open_compile_only(&Search::at(library))?;
    for line in std::io::stdin().lines() {
        let Question { graph, mut target } = serde_json::from_str(&line?)?;
        // The worker compiles with its own toolchain.
        target.toolchain = compiler.toolchain();
        let answer = match compiler.compile(&graph, &target, &CompileOptions::cudnn()) {
            Ok(_) => LibraryAnswer::Plan,
            Err(Failure::Refused(refusal)) => {
                LibraryAnswer::Refused(refusal.reasons().iter().map(|r| format!("{}: {}", r.code, r.given)).collect())
            }
            Err(failure) if failure.is_uncompiled() => LibraryAnswer::Uncompiled(failure.to_string()),
            Err(other) => LibraryAnswer::Broken(other.to_string()),
        };
        out::record(&serde_json::to_value(&answer)?);
    }
    Ok(())
}
