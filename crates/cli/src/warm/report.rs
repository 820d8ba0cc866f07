//! What `warm` prints: the rows of one target, as JSON or as a table.

use std::collections::BTreeMap;

use qkvault_base::on_one_line;
use qkvault_cache::{Source, StoreError};
use qkvault_compile::{Because, CUDNN, EngineChoice, OwnFacts, PlanError, PlanFacts, Resolution, Why};
use qkvault_cudnn::Target;
use qkvault_graph::{PlanKey, Refusal};
use serde_json::{Value, json};

use super::sharing::Sharing;
use super::{PlanPart, TargetJob};
use crate::{jobs, out};

/// The result of one job for one target. The plan's bytes are in the vault and not here: a run may have thousands.
pub(super) struct WarmRow<'j> {
    work: TargetJob<'j>,
    result: Result<JobAnswer, PlanError>,
}

struct JobAnswer {
    key: Option<PlanKey>,
    source: Source,
    unstored: Option<std::sync::Arc<StoreError>>,
    outcome: Result<PlanFacts, Refusal>,
    /// Whose answer it is, and why.
    engine: Option<EngineChoice>,
    milliseconds: f64,
}

impl<'j> WarmRow<'j> {
    pub(super) fn new(work: TargetJob<'j>, result: Result<Resolution, PlanError>) -> WarmRow<'j> {
        let result = result.map(|resolution| {
            let Resolution { key, graph_key: _, source, unstored, engine, outcome, milliseconds } = resolution;
            let outcome = outcome.map(|plan| plan.facts.clone());
            JobAnswer { key, source, unstored, outcome, engine: Some(engine), milliseconds }
        });
        WarmRow { work, result }
    }

    /// The row of what is refused before a plan is looked for.
    pub(super) fn refused(work: TargetJob<'j>, refusal: &Refusal) -> WarmRow<'j> {
        let outcome = Err(refusal.clone());
        let (source, unstored, engine) = (Source::Built, None, None);
        let answer = JobAnswer { key: None, source, unstored, outcome, engine, milliseconds: 0.0 };
        WarmRow { work, result: Ok(answer) }
    }

    pub(super) const fn target(&self) -> usize {
        self.work.target
    }

    /// Whether a plan was compiled.
    pub(super) fn is_built(&self) -> bool {
        self.status() == "built"
    }

    /// `built`, `hit`, `refused`, `missing` (of a dry run) or `failed`.
    fn status(&self) -> &'static str {
        match &self.result {
            Ok(JobAnswer { outcome: Err(_), .. }) => "refused",
            Ok(JobAnswer { source: Source::Built, .. }) => "built",
            Ok(_) => "hit",
            Err(PlanError::Missing { .. }) => "missing",
            Err(_) => "failed",
        }
    }

    fn what(&self) -> String {
        let uses = &self.work.job.uses;
        let first = uses[0].label();
        match uses.len() {
            1 => first,
            n => format!("{first} (+{} alike)", n - 1),
        }
    }

    fn key(&self) -> Option<PlanKey> {
        self.result.as_ref().map_or(self.work.key, |answer| answer.key)
    }

    fn facts(&self) -> Option<&PlanFacts> {
        self.result.as_ref().ok()?.outcome.as_ref().ok()
    }

    /// The error that kept the answer from being stored, if any.
    fn unstored(&self) -> Option<&StoreError> {
        self.result.as_ref().ok()?.unstored.as_deref()
    }

    fn refusal(&self) -> Option<&Refusal> {
        self.result.as_ref().ok().and_then(|a| a.outcome.as_ref().err())
    }
}

/// The results for one target.
pub(super) struct TargetReport<'r, 'j> {
    pub(super) target: &'r Target,
    pub(super) rows: Vec<&'r WarmRow<'j>>,
    pub(super) sharing: Sharing,
    pub(super) part: Option<PlanPart>,
    pub(super) seconds: f64,
}

impl TargetReport<'_, '_> {
    pub(super) fn count(&self, status: &str) -> usize {
        self.rows.iter().filter(|row| row.status() == status).count()
    }

    /// How many are refused though no other plan of their serving set holds their steps; a line about the others.
    pub(super) fn unserved(&self) -> (usize, Option<String>) {
        let refused: Vec<&WarmRow<'_>> = self.rows.iter().filter(|row| row.status() == "refused").copied().collect();
        let uses = |rows: &[&WarmRow<'_>]| rows.iter().flat_map(|row| row.work.job.uses.clone()).collect::<Vec<_>>();
        let others: Vec<&WarmRow<'_>> = self.rows.iter().filter(|row| row.key().is_some()).copied().collect();
        let served = uses(&others);
        let is_served = |row: &&WarmRow<'_>| {
            let uses = &row.work.job.uses;
            jobs::as_mixed(uses, &served).count() == uses.len()
        };
        let other_way = refused.iter().filter(|row| is_served(row)).count();
        let line = (other_way > 0).then(|| {
            format!("{other_way} decodes that are refused go another way: the set's plans of mixed steps serve them")
        });
        (refused.len() - other_way, line)
    }

    /// Bytes of the plans, and the milliseconds of one core that compiling them took, each plan once.
    fn cost(&self) -> (u64, u64) {
        let facts = self.rows.iter().filter_map(|row| row.facts());
        let plans: BTreeMap<PlanKey, (u64, u64)> =
            facts.map(|facts| (facts.key, (facts.blob_bytes, u64::from(facts.compile_ms)))).collect();
        plans.values().fold((0, 0), |(bytes, ms), plan| (bytes + plan.0, ms + plan.1))
    }

    /// The number of answers that are not in the vault, and the first error.
    pub(super) fn unstored(&self) -> Option<String> {
        let lost: Vec<&StoreError> = self.rows.iter().filter_map(|row| row.unstored()).collect();
        let (lost, all, first) = (lost.len(), self.rows.len(), lost.first()?);
        Some(format!("{lost} of {all} answers could not be stored and must be built again: {first}"))
    }

    /// The plans, each with its target.
    pub(super) fn plans(&self) -> impl Iterator<Item = Value> {
        self.rows.iter().map(|row| {
            let mut plan = entry(row);
            plan["target"] = self.target.label().into();
            plan
        })
    }

    /// What is said of the target beside its plans.
    pub(super) fn json(&self) -> Value {
        let (bytes, compile_ms) = self.cost();
        json!({
            "target": self.target.label(),
            "cudnn": self.target.cudnn.to_string(),
            "toolchain": self.target.toolchain,
            "part": self.part.map(|part| part.to_string()),
            "sharing": self.sharing.json(),
            "built": self.count("built"),
            "hits": self.count("hit"),
            "missing": self.count("missing"),
            "refused": self.count("refused"),
            "failed": self.count("failed"),
            "unstored": self.rows.iter().filter(|r| r.unstored().is_some()).count(),
            "bytes": bytes,
            "compile_ms": compile_ms,
        })
    }

    pub(super) fn print(&self) {
        print(&self.rows);
        if let Some(line) = self.sharing.line() {
            out::line(&line);
        }
    }

    /// What engines would have computed whose compilers are not installed, in a line each: it is the same for all rows.
    pub(super) fn uncompiled(&self) -> Vec<String> {
        let mut lacking: BTreeMap<&'static str, (usize, &str)> = BTreeMap::new();
        let choices = self.rows.iter().filter_map(|row| row.result.as_ref().ok()?.engine.as_ref());
        for passed in choices.flat_map(|choice| &choice.passed) {
            if let Because::NoCompiler(why) = &passed.because {
                lacking.entry(passed.engine.title()).or_insert((0, why)).0 += 1;
            }
        }
        let all = self.rows.len();
        let line =
            |(title, (n, why))| format!("{title} comes first for {n} of {all} attentions, and is not here: {why}");
        lacking.into_iter().map(line).collect()
    }

    /// The last line: how many of each status.
    pub(super) fn counts(&self) -> String {
        let [built, hits, missing, refused, failed] =
            ["built", "hit", "missing", "refused", "failed"].map(|status| self.count(status));
        let missing = if missing == 0 { String::new() } else { format!("{missing} missing, ") };
        let part = self.part.map_or_else(String::new, |part| format!("part {part}: "));
        format!("{part}{built} built, {hits} hit, {missing}{refused} refused, {failed} failed in {:.2} s", self.seconds)
    }
}

/// What the vault has counted, for all targets together.
pub(super) const OF_VAULT: [&str; 3] = ["rejected", "remote_hits", "uploads"];

/// The sum of a number of several reports.
pub(super) fn sum(of: &[Value], name: &str) -> u64 {
    of.iter().filter_map(|report| report[name].as_u64()).sum()
}

/// The reports of targets and versions as one, of the same form for one of them and for many. `rest` is what is said
/// once.
pub(super) fn whole(runs: Vec<Value>, plans: Vec<Value>, rest: Value) -> Value {
    let mut whole = rest;
    for name in ["built", "hits", "missing", "refused", "failed", "unstored", "bytes", "compile_ms"] {
        whole[name] = sum(&runs, name).into();
    }
    whole["errors"] = runs.iter().filter(|run| run.get("error").is_some()).count().into();
    whole["runs"] = runs.into();
    whole["plans"] = plans.into();
    whole
}

fn entry(row: &WarmRow<'_>) -> Value {
    let uses: Vec<String> = row.work.job.uses.iter().map(jobs::Use::label).collect();
    let mut value = json!({ "what": row.what(), "uses": uses, "status": row.status(), "reasons": [] });
    if let Ok(attention) = &row.work.job.attention {
        value["attention"] = attention.to_string().into();
        value["graph_key"] = attention.key().to_string().into();
    }
    match &row.result {
        Ok(answer) => {
            value["key"] = answer.key.map(|key| key.to_string()).into();
            value["milliseconds"] = answer.milliseconds.into();
            if let Some(why) = &answer.unstored {
                value["unstored"] = why.to_string().into();
            }
            if let Some(refusal) = answer.engine.as_ref().and_then(|choice| choice.refusal_of(CUDNN)) {
                value["instead"] = json!(refusal);
            }
            match &answer.outcome {
                Ok(facts) => {
                    value["engine"] = facts.engine.clone().into();
                    value["chosen"] = json!(answer.engine.as_ref().map(chosen));
                    value["bytes"] = facts.blob_bytes.into();
                    value["workspace"] = facts.scratch().bytes.into();
                    value["compile_ms"] = facts.compile_ms.into();
                    if let Some(own) = facts.cudnn().filter(|own| !own.passed_over.is_empty()) {
                        value["passed_over"] = json!(own.passed_over);
                    }
                }
                Err(refusal) => value["reasons"] = json!(refusal),
            }
        }
        Err(error) => {
            value["key"] = row.key().filter(|_| row.status() == "missing").map(|key| key.to_string()).into();
            if row.status() != "missing" {
                value["reasons"] = json!([{ "code": "failed", "given": error.to_string() }]);
            }
        }
    }
    value
}

/// The choice of an engine, as JSON.
pub(crate) fn chosen(choice: &EngineChoice) -> Value {
    json!(choice.explained())
}

/// What is told of a choice: another engine than cuDNN, or why it is cuDNN although another one comes first. Engines
/// that never take it are as usual.
fn worth_telling(choice: &EngineChoice) -> Option<String> {
    let mut choice = choice.clone();
    choice.passed.retain(|passed| passed.engine == CUDNN || matches!(passed.because, Because::Missing(_)));
    let told = choice.why != Why::Named && (choice.engine != CUDNN || !choice.passed.is_empty());
    told.then(|| choice.to_string())
}

/// What computes a plan, by a name that says whose engine it is.
pub(crate) fn computed_by(facts: &PlanFacts) -> String {
    match &facts.own {
        OwnFacts::Cudnn(_) => format!("cuDNN {}", facts.engine),
        OwnFacts::Kernels(_) | OwnFacts::Other(_) => facts.engine.clone(),
    }
}

fn print(rows: &[&WarmRow<'_>]) {
    let columns = ["what", "key", "engine", ">bytes", ">workspace", ">compile ms", "status"];
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let dash = || "-".to_owned();
            let plan = row.facts();
            let key = row.key().filter(|_| plan.is_some() || row.status() == "missing");
            let key = key.map_or_else(dash, |key| key.short());
            vec![
                row.what(),
                key,
                plan.map_or_else(dash, computed_by),
                plan.map_or_else(dash, |p| p.blob_bytes.to_string()),
                plan.map_or_else(dash, |p| p.scratch().bytes.to_string()),
                plan.map_or_else(dash, |p| p.compile_ms.to_string()),
                row.status().to_owned(),
            ]
        })
        .collect();
    out::table(&columns, &cells);
    // Each reason once, with the rows that it concerns.
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for row in rows {
        let text = match (row.refusal(), &row.result) {
            (Some(refusal), _) => refusal.to_string(),
            (None, Err(PlanError::Missing { .. })) => continue,
            (None, Err(error)) => on_one_line(&error.to_string()).into_owned(),
            (None, Ok(JobAnswer { engine, .. })) => match engine.as_ref().and_then(worth_telling) {
                Some(text) => text,
                None => continue,
            },
        };
        match reasons.iter_mut().find(|(t, _)| *t == text) {
            Some((_, whats)) => whats.push(row.what()),
            None => reasons.push((text, vec![row.what()])),
        }
    }
    for (text, whats) in reasons {
        let more = if whats.len() > 1 { format!(" and {} more", whats.len() - 1) } else { String::new() };
        out::line("");
        out::line(&format!("{}{more}:", whats[0]));
        text.lines().for_each(|line| out::line(&format!("  {line}")));
    }
}
