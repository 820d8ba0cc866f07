//! `run`: runs a model's attentions on random data and compares the results with float64. It uses the GPU and plans
//! from the vault, or the CPU if there is no GPU.

mod cpu;
mod gpu;
mod pack;

use std::path::PathBuf;

use crate::codes;
use qkvault_compile::OnMiss;
use qkvault_cudnn::CompileOptions;
use qkvault_graph::Refusal;
use qkvault_models::Phase;
use serde_json::{Value, json};

use crate::jobs::{self, AttentionJob, ModelArgs};
use crate::target::LibraryArgs;
use crate::{Globals, Outcome, out};

/// Options of `run`.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    library: LibraryArgs,
    /// Compile plans that the vault lacks, instead of reporting them as missing
    #[arg(help_heading = "Running", long)]
    build: bool,
    /// Use no stored plan and store none: compile every attention, and report the time from the request for the plan to
    /// the end of its first launch
    #[arg(help_heading = "Running", long, conflicts_with_all = ["cpu", "pack"])]
    unforeseen: bool,
    /// The pack that the vault was unpacked from; the JSON output then counts the plans that came from the pack
    #[arg(help_heading = "Running", long, value_name = "FILE", conflicts_with = "cpu")]
    pack: Option<PathBuf>,
    /// Use the CPU even if there is a GPU
    #[arg(help_heading = "Running", long)]
    cpu: bool,
    /// The GPU's number
    #[arg(help_heading = "Running", long, default_value_t = 0)]
    device: usize,
    /// Rows of each output to check against float64
    #[arg(help_heading = "Running", long, value_name = "N", default_value_t = 96)]
    rows: usize,
    /// Rounds of timing; 0 disables timing
    #[arg(help_heading = "Running", long, value_name = "N", default_value_t = 9)]
    rounds: usize,
    /// Refuse plans that need more scratch memory than this many bytes
    #[arg(help_heading = "Running", long, value_name = "BYTES")]
    workspace_limit: Option<u64>,
    /// Seed of the random data
    #[arg(help_heading = "Running", long, default_value_t = 1)]
    seed: u64,
}

impl RunArgs {
    fn build_policy(&self) -> OnMiss {
        if self.build || self.unforeseen { OnMiss::Compile } else { OnMiss::Load }
    }
}

/// The result for one attention.
struct RunRow {
    what: String,
    /// `right`, `wrong`, `refused` or `failed`.
    status: &'static str,
    /// Cells of the table: error of O, error of Stats, milliseconds, rate.
    cells: [String; 4],
    facts: Value,
    /// The explanation, if the result is not right.
    why: Option<String>,
}

impl RunRow {
    fn failed(job: &AttentionJob, status: &'static str, why: String) -> RunRow {
        let dash = || "-".to_owned();
        let facts = json!({ "reasons": why });
        RunRow { what: job.uses[0].label(), status, cells: [dash(), dash(), dash(), dash()], facts, why: Some(why) }
    }
}

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &RunArgs) -> anyhow::Result<Outcome> {
    if args.model.phase.contains(&Phase::Train) {
        let reason = codes::RUN_TRAIN.reason("train");
        return Err(Refusal::from(reason).into());
    }
    if args.model.phase.contains(&Phase::Serve) {
        let reason = codes::RUN_SERVE.reason("serve");
        return Err(Refusal::from(reason).into());
    }
    let jobs::Jobs { jobs, notes, .. } = jobs::plan(&args.model)?;
    // A manifest has phases of its own.
    if jobs.iter().flat_map(|job| &job.uses).any(|one| one.phase == Phase::Train) {
        return Err(Refusal::from(codes::RUN_TRAIN.reason("train")).into());
    }
    if jobs.is_empty() {
        return Err(jobs::nothing().into());
    }
    let policy = CompileOptions::default();
    let (machine, rows) = if args.cpu {
        (json!({ "where": "cpu" }), cpu::run(args, &policy, &jobs))
    } else {
        match qkvault_exec::Device::open(args.device) {
            Ok(device) => gpu::run(globals, args, &policy, &jobs, &device)?,
            Err(error) => {
                out::note(&format!("running on the CPU: {error}"));
                (json!({ "where": "cpu", "why": error.to_string() }), cpu::run(args, &policy, &jobs))
            }
        }
    };
    let count = |status| rows.iter().filter(|r| r.status == status).count();
    let (right, wrong, refused, failed) = (count("right"), count("wrong"), count("refused"), count("failed"));
    if globals.json {
        let list: Vec<Value> = rows
            .iter()
            .zip(&jobs)
            .map(|(row, job)| {
                let mut value = row.facts.clone();
                value["what"] = row.what.clone().into();
                value["status"] = row.status.into();
                value["why"] = row.why.clone().into();
                value["attention"] = job.attention.as_ref().ok().map(ToString::to_string).into();
                value
            })
            .collect();
        out::json(&json!({
            "machine": machine, "runs": list, "seed": args.seed, "notes": notes,
            "right": right, "wrong": wrong, "refused": refused, "failed": failed,
        }));
    } else {
        let table: Vec<Vec<String>> = rows
            .iter()
            .map(|r| {
                let mut cells = vec![r.what.clone(), r.status.to_owned()];
                cells.extend(r.cells.clone());
                cells
            })
            .collect();
        out::table(&["what", "status", ">error of O", ">error of Stats", ">ms", ">rate"], &table);
        for row in &rows {
            if let Some(why) = &row.why {
                out::line("");
                let mut lines = why.lines();
                out::line(&format!("{} {}: {}", row.what, row.status, lines.next().unwrap_or_default()));
                lines.for_each(out::line);
            }
        }
        notes.iter().for_each(|n| out::line(&format!("note: {n}")));
        out::line(&format!("{right} right, {wrong} wrong, {refused} refused, {failed} failed"));
    }
    Ok(if wrong + refused + failed == 0 { Outcome::Good } else { Outcome::Bad })
}
