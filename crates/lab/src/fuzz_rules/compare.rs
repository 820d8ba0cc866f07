//! One case put to the rules and to the library.

use std::collections::BTreeMap;
use std::path::PathBuf;

use qkvault_graph::{Origin, Reason};
use qkvault_probe::{Request, check};

use super::Case;
use super::worker::{self, Answer};
use crate::workers::Worker;

/// What came of a case.
pub(super) enum Verdict {
    /// There is nothing to put to the library, or its answer would say nothing: the code that says so.
    NotAsked(String),
    /// Both say the same; the codes of the rules that the library confirmed.
    Agreed { supported: bool, codes: Vec<String> },
    /// They differ.
    Differed(Box<Difference>),
}

/// A difference between rules and library.
#[derive(Clone)]
pub(super) struct Difference {
    pub(super) case: Case,
    /// What the rules say.
    pub(super) rules: Vec<String>,
    /// What the library says; nothing where it supports it.
    pub(super) library: Vec<String>,
    kind: &'static str,
}

impl Difference {
    /// What it is, for counting: who refuses, with the refusal's first words, on which GPU under which version.
    pub(super) fn signature(&self) -> String {
        let words = if self.kind == "too strict" { &self.rules } else { &self.library };
        let first = words.first().map_or("", String::as_str);
        let pass = if self.case.attention.is_backward() { "backward" } else { "forward" };
        let stored = match self.case.attention.q.storage {
            qkvault_graph::Storage::Dense => "",
            _ => " varlen",
        };
        let paged = if self.case.attention.k.is_paged() { " paged" } else { "" };
        let (sm, version) = (self.case.target.sm(), self.case.target.cudnn);
        format!("{} | {pass}{stored}{paged} | sm_{sm} {version} | {first}", self.kind)
    }
}

/// The code of refusals by the compiler: every engine that takes the graph computes it wrongly.
const ENGINES: &str = "engine.wrong";

/// Judges a case.
pub(super) fn judge(case: &Case, workers: &mut BTreeMap<PathBuf, Worker>) -> anyhow::Result<Verdict> {
    let verdict = check(&Request::new(&case.attention, &case.target));
    // Not built and computed wrongly: nothing that the library could confirm.
    let beyond = |r: &&Reason| matches!(r.origin, Origin::NotBuilt | Origin::Quirk);
    if let Some(reason) = verdict.reasons.iter().find(beyond) {
        return Ok(Verdict::NotAsked(reason.code.to_string()));
    }
    let Ok(graph) = qkvault_graph::lower(&case.attention, &case.target, &qkvault_graph::CompileOptions::default())
    else {
        let code = verdict.reasons.first().map_or("lowering", |r| r.code.as_ref());
        return Ok(Verdict::NotAsked(code.to_owned()));
    };
    drop(graph);
    let rules: Vec<String> = verdict.reasons.iter().map(|r| format!("{}: {}", r.code, r.given)).collect();
    let differed = |kind, library| {
        Ok(Verdict::Differed(Box::new(Difference { case: case.clone(), rules: rules.clone(), library, kind })))
    };
    match worker::ask(workers, case)? {
        Answer::Plan if rules.is_empty() => Ok(Verdict::Agreed { supported: true, codes: Vec::new() }),
        Answer::Plan => differed("too strict", Vec::new()),
        // What is passed over because it would compute wrongly is no answer of the library.
        Answer::Refused(library) if library.iter().any(|why| why.starts_with(ENGINES)) => {
            Ok(Verdict::NotAsked(ENGINES.to_owned()))
        }
        Answer::Refused(library) if rules.is_empty() => differed("no rule", library),
        Answer::Uncompiled(why) if rules.is_empty() => differed("broken", vec![why]),
        Answer::Refused(_) | Answer::Uncompiled(_) => {
            let codes = verdict.reasons.iter().map(|r| r.code.to_string()).collect();
            Ok(Verdict::Agreed { supported: false, codes })
        }
        Answer::Broken(why) => differed("broken", vec![why]),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use qkvault_graph::{CudnnVersion, LibrarySet, Profile, text, validate};

    use super::*;

    fn case() -> Case {
        let profile = Profile::named("h200").expect("built in");
        let attention = text::parse("q: bf16 [1,2,256,64]").expect("written right");
        Case {
            number: 0,
            attention: validate(attention).expect("valid"),
            target: profile.target(CudnnVersion::v9(27, 0), LibrarySet::Slim),
            profile: "h200".to_owned(),
            library: PathBuf::from("cudnn"),
        }
    }

    /// The verdict on what a worker does that a shell plays.
    fn verdict(script: &str) -> Verdict {
        let case = case();
        let worker = Worker::start(Command::new("sh").args(["-c", script])).expect("every machine has a shell");
        judge(&case, &mut BTreeMap::from([(case.library.clone(), worker)])).expect("it is judged")
    }

    #[test]
    fn b1_a_worker_that_died_or_could_not_compile_now_is_a_difference_and_no_refusal() {
        for script in ["read question; kill -9 $$", "read question; echo '{\"Uncompiled\":\"signal: 9\"}'"] {
            let Verdict::Differed(difference) = verdict(script) else { panic!("{script}: not told") };
            assert_eq!(difference.kind, "broken");
            assert!(difference.library[0].contains("signal: 9"), "{:?}", difference.library);
        }
        assert!(matches!(verdict("read question; echo '\"Plan\"'"), Verdict::Agreed { supported: true, .. }));
    }
}
