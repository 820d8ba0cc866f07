//! Workers: processes with one cuDNN each, asked line by line. One that dies has answered too.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::Context as _;
use qkvault_graph::{OpGraph, Policy, Target, lower};
use qkvault_probe::{Compiler, Failure};
use qkvault_sys::Search;
use serde::{Deserialize, Serialize};

use super::Case;

/// What is asked: the op graph, so that nothing is derived twice.
#[derive(Serialize, Deserialize)]
struct Question {
    graph: OpGraph,
    target: Target,
}

/// What the library says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// There is a plan.
    Plan,
    /// The library's causes.
    Refused(Vec<String>),
    /// Neither: the library failed or the process died.
    Broken(String),
}

/// A process that compiles.
pub(super) struct Worker {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn start(library: &Path) -> anyhow::Result<Worker> {
        let program = std::env::current_exe().context("this program's own file is not known")?;
        Worker::of(Command::new(program).args(["hunt", "--worker"]).arg(library))
    }

    fn of(command: &mut Command) -> anyhow::Result<Worker> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("a worker could not be started")?;
        let (questions, answers) = (child.stdin.take(), child.stdout.take());
        let (Some(questions), Some(answers)) = (questions, answers) else {
            anyhow::bail!("a worker has no standard input or output");
        };
        Ok(Worker { child, questions, answers: BufReader::new(answers) })
    }

    /// Puts a case to the worker of its library, which is started where there is none.
    pub(super) fn ask(workers: &mut BTreeMap<PathBuf, Worker>, case: &Case) -> anyhow::Result<Answer> {
        let graph = lower(&case.attention, &case.target, &Policy::default())?;
        let question = serde_json::to_string(&Question { graph, target: case.target.clone() })?;
        if !workers.contains_key(&case.library) {
            workers.insert(case.library.clone(), Worker::start(&case.library)?);
        }
        let answer = workers.get_mut(&case.library).and_then(|worker| worker.exchange(&question));
        match answer {
            Some(answer) => Ok(answer),
            None => {
                let status = workers.remove(&case.library).map(|mut worker| worker.child.wait());
                Ok(Answer::Broken(format!("the worker ended: {status:?}")))
            }
        }
    }

    fn exchange(&mut self, question: &str) -> Option<Answer> {
        writeln!(self.questions, "{question}").ok()?;
        self.questions.flush().ok()?;
        let mut line = String::new();
        self.answers.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It ends by itself when its input does; one that hangs in the library is ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a worker does: opens the library and answers until its input ends.
pub(super) fn serve(library: &Path) -> anyhow::Result<()> {
    let compiler = Compiler::open(&Search::at(library))?;
    let mut output = std::io::stdout();
    for line in std::io::stdin().lines() {
        let Question { graph, target } = serde_json::from_str(&line?)?;
        let answer = match compiler.compile(&graph, &target, &Policy::default()) {
            Ok(_) => Answer::Plan,
            Err(Failure::Refused(refusal)) => {
                Answer::Refused(refusal.reasons().iter().map(|r| format!("{}: {}", r.code, r.given)).collect())
            }
            Err(other) => Answer::Broken(other.to_string()),
        };
        writeln!(output, "{}", serde_json::to_string(&answer)?)?;
        output.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an abort inside cuDNN looks like from outside: the process is gone before it has answered.
    #[test]
    fn a_worker_that_dies_has_answered_that() {
        let mut dying = Worker::of(&mut Command::new("true")).expect("every machine has it");
        assert!(dying.exchange("{}").is_none());
        let mut talking = Worker::of(Command::new("echo").arg("\"Plan\"")).expect("every machine has it");
        assert!(matches!(talking.exchange("{}"), Some(Answer::Plan) | None));
    }
}
