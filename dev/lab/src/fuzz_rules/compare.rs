//! Compares the answers of the rules and of the library for one case.

use std::collections::BTreeMap;
use std::path::PathBuf;

use qkvault_compile::CUDNN;
use qkvault_cudnn::registry::codes;
use qkvault_graph::registry::Code;
use qkvault_graph::{Origin, Reason};
use qkvault_probe::{Request, check};

use super::worker::{self, LibraryAnswer};
use super::{RuleCase, own};
use crate::workers::Worker;

/// The result of a case.
pub(super) enum RuleVerdict {
    /// The library was not asked, because there is no graph or because its answer would mean nothing. Holds the code of
    /// the reason.
    NotAsked(String),
    /// Rules and library agree. Holds the codes of the rules that the library confirmed.
    Agreed { supported: bool, codes: Vec<String> },
    /// Rules and library differ.
    Differed(Box<RuleDifference>),
}

/// A difference between rules and library.
#[derive(Clone)]
pub(super) struct RuleDifference {
    pub(super) case: RuleCase,
    /// The reasons of the rules.
    pub(super) rules: Vec<String>,
    /// The reasons of the library; empty if it supports the case.
    pub(super) library: Vec<String>,
    pub(super) kind: &'static str,
}

impl RuleDifference {
    /// The key for counting: which side refuses, the first reason, the GPU and the version.
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

/// The compiler's refusal code for graphs that every supporting engine computes wrongly.
const ENGINES: &Code = &codes::ENGINE_WRONG;

/// Judges a case.
pub(super) fn judge(case: &RuleCase, workers: &mut BTreeMap<PathBuf, Worker>) -> anyhow::Result<RuleVerdict> {
    if case.options.engine != CUDNN.policy() {
        return Ok(own::judge(case));
    }
    let verdict = check(&Request::new(&case.attention, &case.target).with_policy(case.options));
    // The library cannot confirm that something is not built or computed wrongly.
    let beyond = |r: &&Reason| matches!(r.origin, Origin::NotBuilt | Origin::Quirk);
    if let Some(reason) = verdict.reasons.iter().find(beyond) {
        return Ok(RuleVerdict::NotAsked(reason.code.to_string()));
    }
    let Ok(graph) = qkvault_cudnn::lower(&case.attention, &case.target, &case.options) else {
        let code = verdict.reasons.first().map_or("lowering", |r| r.code.as_str());
        return Ok(RuleVerdict::NotAsked(code.to_owned()));
    };
    drop(graph);
    let rules: Vec<String> = verdict.reasons.iter().map(|r| format!("{}: {}", r.code, r.given)).collect();
    let differed = |kind, library| {
        Ok(RuleVerdict::Differed(Box::new(RuleDifference { case: case.clone(), rules: rules.clone(), library, kind })))
    };
    match worker::ask(workers, case)? {
        LibraryAnswer::Plan if rules.is_empty() => Ok(RuleVerdict::Agreed { supported: true, codes: Vec::new() }),
        LibraryAnswer::Plan => differed("too strict", Vec::new()),
        // Here the compiler refused engines that compute wrongly; that is not an answer of the library.
        LibraryAnswer::Refused(library) if library.iter().any(|why| why.starts_with(ENGINES.as_str())) => {
            Ok(RuleVerdict::NotAsked(ENGINES.to_string()))
        }
        LibraryAnswer::Refused(library) if rules.is_empty() => differed("no rule", library),
        LibraryAnswer::Uncompiled(why) if rules.is_empty() => differed("broken", vec![why]),
        LibraryAnswer::Refused(_) | LibraryAnswer::Uncompiled(_) => {
            let codes = verdict.reasons.iter().map(|r| r.code.to_string()).collect();
            Ok(RuleVerdict::Agreed { supported: false, codes })
        }
        LibraryAnswer::Broken(why) => differed("broken", vec![why]),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use qkvault_cudnn::Profile;
    use qkvault_graph::{CudnnVersion, LibrarySet, text, validate};

    use super::*;

    fn case() -> RuleCase {
        let profile = Profile::named("h200").expect("built in");
        let attention = text::parse("q: bf16 [1,2,256,64]").expect("written right");
        RuleCase {
            number: 0,
            attention: validate(attention).expect("valid"),
            target: profile.target(CudnnVersion::v9(27, 0), LibrarySet::Slim),
            profile: "h200".to_owned(),
            library: PathBuf::from("cudnn"),
            options: qkvault_cudnn::CompileOptions::cudnn(),
        }
    }

    /// The verdict on a worker that is a shell script.
    fn verdict(script: &str) -> RuleVerdict {
        let case = case();
        let worker = Worker::start(Command::new("sh").args(["-c", script])).expect("every machine has a shell");
        judge(&case, &mut BTreeMap::from([(case.library.clone(), worker)])).expect("the worker answers")
    }

    #[test]
    fn a_worker_that_died_or_could_not_compile_now_is_a_difference_and_not_a_refusal() {
        for script in ["read question; kill -9 $$", "read question; echo '{\"Uncompiled\":\"signal: 9\"}'"] {
            let RuleVerdict::Differed(difference) = verdict(script) else { panic!("{script}: no difference") };
            assert_eq!(difference.kind, "broken");
            assert!(difference.library[0].contains("signal: 9"), "{:?}", difference.library);
        }
        assert!(matches!(verdict("read question; echo '\"Plan\"'"), RuleVerdict::Agreed { supported: true, .. }));
    }
}
