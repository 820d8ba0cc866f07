//! `warm`: compiles the plans that models need into the vault. The target GPU need not be present.

use std::time::Instant;

use indicatif::{ParallelProgressIterator as _, ProgressBar, ProgressStyle};
use qkvault_cache::{Source, StoreError};
use qkvault_compile::{Compiler, OnMiss, PlanError, Planner, Resolution};
use qkvault_graph::{CompileOptions, QuirkSet, Refusal};
use rayon::prelude::*;
use serde_json::json;

use crate::jobs::{self, Job, ModelArgs};
use crate::target::{LibraryArgs, TargetArgs};
use crate::{Globals, Outcome, flush_remote, older, open_vault, out, rejections};

/// Options of `warm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    pub(super) library: LibraryArgs,
    /// Number of compiling threads (default: one per core)
    #[arg(long, short, value_name = "N")]
    jobs: Option<usize>,
    /// If the plan of the first engine needs more workspace than this many bytes, use the engine that needs the least
    #[arg(long, value_name = "BYTES")]
    workspace_limit: Option<u64>,
    /// Codes of quirks to accept (see docs/reasons.md)
    #[arg(long, value_name = "CODE", value_delimiter = ',')]
    allow: Vec<QuirkSet>,
}

/// The result of one job.
struct Row {
    job: Job,
    result: Result<Resolution, PlanError>,
}

impl Row {
    /// `built`, `hit`, `refused` or `failed`.
    fn status(&self) -> &'static str {
        match &self.result {
            Ok(Resolution { outcome: Err(_), .. }) => "refused",
            Ok(Resolution { source: Source::Built, .. }) => "built",
            Ok(_) => "hit",
            Err(_) => "failed",
        }
    }

    fn what(&self) -> String {
        let first = self.job.uses[0].label();
        match self.job.uses.len() {
            1 => first,
            n => format!("{first} (+{} alike)", n - 1),
        }
    }

    /// The error that kept the answer from being stored, if any.
    fn unstored(&self) -> Option<&StoreError> {
        self.result.as_ref().ok()?.unstored.as_deref()
    }

    fn refusal(&self) -> Option<&Refusal> {
        self.result.as_ref().ok().and_then(|a| a.outcome.as_ref().err())
    }
}

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &Args) -> anyhow::Result<Outcome> {
    let jobs::Jobs { jobs, mut notes } = jobs::plan(&args.model)?;
    if jobs.is_empty() {
        notes.iter().for_each(|n| out::note(&format!("note: {n}")));
        return Err(jobs::nothing().into());
    }
    let vault = open_vault(globals)?;
    let compiler = Compiler::open_compile_only(&args.library.search()?)?;
    let target = args.target.target(&compiler)?;
    notes.extend(target.toolchain.environment.notes());
    notes.extend(older::notes(&vault));
    let planner = Planner::new(vault, Some(compiler));
    let allowed = args.allow.iter().fold(QuirkSet::NONE, |all, one| all.with(*one));
    let policy = CompileOptions { workspace_limit: args.workspace_limit, allowed, ..CompileOptions::default() };
    let s = if jobs.len() == 1 { "" } else { "s" };
    out::note(&format!("{} attention{s} for {target}", jobs.len()));
    let started = Instant::now();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.jobs.unwrap_or(0)).build()?;
    let bar = progress(jobs.len() as u64);
    let rows: Vec<Row> = pool.install(|| {
        jobs.into_par_iter()
            .progress_with(bar.clone())
            .map(|job| {
                let result = match &job.attention {
                    Ok(attention) => planner.plan(attention, &target, &policy, OnMiss::Compile),
                    Err(refusal) => Ok(undescribed(refusal)),
                };
                if bar.is_hidden() && matches!(&result, Ok(a) if a.source == Source::Built && a.outcome.is_ok()) {
                    out::note(&format!("built {}", job.uses[0].label()));
                }
                Row { job, result }
            })
            .collect()
    });
    bar.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    let count = |status| rows.iter().filter(|r| r.status() == status).count();
    let (built, hits, refused, failed) = (count("built"), count("hit"), count("refused"), count("failed"));
    notes.extend(rejections::note(planner.vault()));
    notes.extend(flush_remote(planner.vault()));
    if globals.json {
        out::json(&json!({
            "target": target.label(),
            "cudnn": target.cudnn.to_string(),
            "toolchain": target.toolchain,
            "vault": planner.vault().folder(),
            "plans": rows.iter().map(entry).collect::<Vec<_>>(),
            "built": built,
            "hits": hits,
            "refused": refused,
            "failed": failed,
            "unstored": rows.iter().filter(|r| r.unstored().is_some()).count(),
            "rejected": planner.vault().stats().rejected(),
            "remote_hits": planner.vault().stats().hits_remote,
            "uploads": planner.vault().stats().uploads,
            "seconds": seconds,
            "notes": notes,
        }));
    } else {
        print(&rows);
        notes.iter().for_each(|n| out::line(&format!("note: {n}")));
        out::line(&format!("{built} built, {hits} hit, {refused} refused, {failed} failed in {seconds:.2} s"));
        if let Some(folder) = planner.vault().folder() {
            out::line(&format!("vault: {}", folder.display()));
        }
    }
    // Plans that are not stored are lost when the process ends, so this is an error.
    let lost = unstored(&rows);
    if let Some(text) = &lost {
        out::problem(&format!("error: {text}"));
    }
    Ok(if refused + failed == 0 && lost.is_none() { Outcome::Good } else { Outcome::Bad })
}

/// The number of answers that are not in the vault, and the first error.
fn unstored(rows: &[Row]) -> Option<String> {
    let lost: Vec<&StoreError> = rows.iter().filter_map(Row::unstored).collect();
    let first = lost.first()?;
    Some(format!("{} of {} answers could not be stored and must be built again: {first}", lost.len(), rows.len()))
}

/// The result for a description that is refused before it has a key.
fn undescribed(refusal: &Refusal) -> Resolution {
    Resolution {
        key: None,
        graph_key: qkvault_graph::GraphKey::from_bytes([0; 32]),
        source: Source::Built,
        unstored: None,
        outcome: Err(refusal.clone()),
        milliseconds: 0.0,
    }
}

fn progress(len: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} compiled, {elapsed} elapsed, {eta} left");
    let bar = ProgressBar::new(len);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn entry(row: &Row) -> serde_json::Value {
    let uses: Vec<String> = row.job.uses.iter().map(jobs::Use::label).collect();
    let mut value = json!({ "what": row.what(), "uses": uses, "status": row.status(), "reasons": [] });
    if let Ok(attention) = &row.job.attention {
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
            match &answer.outcome {
                Ok(plan) => {
                    value["engine"] = plan.facts.engine.clone().into();
                    value["bytes"] = plan.facts.blob_bytes.into();
                    value["workspace"] = plan.facts.scratch().bytes.into();
                    value["compile_ms"] = plan.facts.compile_ms.into();
                    if !plan.facts.passed_over.is_empty() {
                        value["passed_over"] = json!(plan.facts.passed_over);
                    }
                }
                Err(refusal) => value["reasons"] = json!(refusal),
            }
        }
        Err(error) => {
            value["key"] = serde_json::Value::Null;
            value["reasons"] = json!([{ "code": "failed", "given": error.to_string() }]);
        }
    }
    value
}

fn print(rows: &[Row]) {
    let columns = ["what", "key", "engine", ">bytes", ">workspace", ">compile ms", "status"];
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let dash = || "-".to_owned();
            let plan = row.result.as_ref().ok().and_then(|a| a.outcome.as_ref().ok());
            let key = row.result.as_ref().ok().and_then(|a| a.key).filter(|_| plan.is_some());
            let key = key.map_or_else(dash, |key| key.short());
            vec![
                row.what(),
                key,
                plan.map_or_else(dash, |p| p.facts.engine.clone()),
                plan.map_or_else(dash, |p| p.facts.blob_bytes.to_string()),
                plan.map_or_else(dash, |p| p.facts.scratch().bytes.to_string()),
                plan.map_or_else(dash, |p| p.facts.compile_ms.to_string()),
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
            (None, Err(error)) => error.to_string(),
            (None, Ok(_)) => continue,
        };
        match reasons.iter_mut().find(|(t, _)| *t == text) {
            Some((_, whats)) => whats.push(row.what()),
            None => reasons.push((text, vec![row.what()])),
        }
    }
    for (text, whats) in reasons {
        let more = if whats.len() > 1 { format!(" and {} more", whats.len() - 1) } else { String::new() };
        out::line(&format!("\n{}{more}:\n  {}", whats[0], text.replace('\n', "\n  ")));
    }
}
