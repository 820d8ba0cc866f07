//! `bench fp8`: the FP8 rows of NVIDIA's table of an H200, forward and backward, beside our own bf16. Both run in
//! captured graphs that take turns. It writes a record, `fp8.json`.

mod rows;

use std::path::PathBuf;

use anyhow::Context as _;
use qkvault_cli::memory::Recorded;
use qkvault_cli::target::{LibraryArgs, TargetArgs};
use qkvault_cli::{Globals, Outcome, open_vault, out};
use qkvault_compile::{Compiler, OnMiss, Planner};
use qkvault_exec::{Device, Session};
use qkvault_graph::registry::codes;
use qkvault_graph::{CompileOptions, QuirkSet};
use serde_json::{Value, json};

use super::ground::clocks;
use super::summary::Summary;
use super::timed::entry;
use super::timed::turns::Turns;
use qkvault_cli::turns::time;
use rows::Row;

/// Options of `bench fp8`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    library: LibraryArgs,
    /// The record
    #[arg(long, value_name = "FILE", default_value = "fp8.json")]
    out: PathBuf,
    /// Rounds; each times both formats once, and every other round begins with the other one
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// Only rows whose name has these words, such as `causal s2048`
    #[arg(long, value_name = "WORDS", default_value = "")]
    only: String,
    /// Rows of O of each forward to check against float64
    #[arg(long, default_value_t = 8)]
    rows: usize,
    /// Only compile for --target; needs no GPU and times nothing
    #[arg(long)]
    plan: bool,
    /// The GPU's number
    #[arg(long, default_value_t = 0)]
    device: usize,
    #[command(flatten)]
    target: TargetArgs,
}

/// Milliseconds of one recorded graph: the host's time between two of them is small beside it.
const GRAPH_MS: f64 = 20.0;

/// cuDNN's plans. NVIDIA measures heads that share keys in a backward of compute capability 9.0, which its tests block.
fn options() -> CompileOptions {
    let allowed = QuirkSet::known([&codes::FP8_HOPPER_GROUPED_BACKWARD]);
    CompileOptions { allowed, ..CompileOptions::cudnn() }
}

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &Args) -> anyhow::Result<Outcome> {
    let list: Vec<Row> = rows::all()?.into_iter().filter(|row| row.name().contains(&args.only)).collect();
    anyhow::ensure!(!list.is_empty(), "--only '{}': no row has these words; `causal s2048 d128` is one", args.only);
    let search = args.library.search()?;
    if args.plan {
        let compiler = Compiler::open_compile_only(&search)?;
        let target = args.target.target(&compiler)?;
        let planner = Planner::new(open_vault(globals)?, Some(compiler));
        return Ok(plan(globals, &list, &planner, &target));
    }
    let device = Device::open(args.device)?;
    let session = Session::open(&device, &search)?;
    let planner = Planner::opening(open_vault(globals)?, search);
    let machine = json!({
        "device": device.name(), "target": session.target()?.label(), "driver": session.gpu().driver,
        "cudnn": session.library()?.version().to_string(), "qkvault": env!("CARGO_PKG_VERSION"),
        "rounds": args.rounds, "allowed": options().allowed,
        "how": "captured graphs that take turns, medians of rounds; table_tflops: NVIDIA's own table",
    });
    let (mut done, mut good) = (Vec::new(), true);
    for row in &list {
        let stream = device.context().new_stream()?;
        let mut turns = Turns::new(&session, &planner, OnMiss::Compile, stream);
        for case in &row.cases {
            turns.add(case, "auto", &options(), args.rows);
        }
        let before = clocks();
        let times = alternate(&mut turns, args.rounds).with_context(|| row.name())?;
        for record in records(row, &turns, times) {
            good &= record["status"] == "right" && record["bf16_status"] == "right";
            out::note(&record.to_string());
            done.push(record);
        }
        done.push(json!({ "mask": row.mask, "seq": row.seq, "clocks_before_and_after": [before, clocks()] }));
        let record = json!({ "machine": machine, "rows": done });
        std::fs::write(&args.out, format!("{record:#}\n"))
            .with_context(|| format!("{} cannot be written", args.out.display()))?;
    }
    Ok(if good { Outcome::Good } else { Outcome::Bad })
}

/// Compiles every row, and tells which are refused.
fn plan(globals: &Globals, list: &[Row], planner: &Planner, target: &qkvault_graph::Target) -> Outcome {
    let sets = [("auto".to_owned(), options())];
    let mut entries = Vec::new();
    for row in list {
        entries.extend(entry::plan(&row.cases, &sets, planner, target).into_iter().map(|entry| (row, entry)));
    }
    let good = entries.iter().all(|(_, entry)| entry.good());
    let lines = entries.iter().map(|(row, entry)| {
        json!({
            "row": row.name(), "format": entry.case.name, "forward": entry.status(false),
            "backward": entry.status(true), "why": entry.why(),
        })
    });
    let lines: Vec<Value> = lines.collect();
    if globals.json {
        out::json(&json!({ "target": target.label(), "rows": lines }));
    } else {
        lines.iter().for_each(|line| out::line(&line.to_string()));
    }
    if good { Outcome::Good } else { Outcome::Bad }
}

/// Milliseconds of a launch in each round: of each direction, of each entry, which are FP8 and bf16.
type Times = [[Vec<f64>; 2]; 2];

fn alternate(turns: &mut Turns, rounds: usize) -> anyhow::Result<Times> {
    let mut times = Times::default();
    let stream = turns.stream().clone();
    for backward in [false, true] {
        let mut bound = turns.bound(backward)?;
        let mut graphs = Vec::new();
        for (entry, bound) in &mut bound {
            bound[0].launch(&stream)?;
            let once = time(&stream, || Ok(bound[0].launch(&stream)?))? / 1e3;
            let calls = ((GRAPH_MS / once) as usize).clamp(3, 200);
            graphs.push((*entry, calls, Recorded::new(bound, &stream, calls)?));
        }
        for round in 0..=rounds {
            if round % 2 == 1 {
                graphs.reverse();
            }
            for (entry, calls, graph) in &mut graphs {
                let us = time(&stream, || graph.launch())? / *calls as f64;
                // The first round only warms up.
                if round > 0 {
                    times[usize::from(backward)][*entry].push(us / 1e3);
                }
            }
        }
    }
    Ok(times)
}

/// The record of each direction of a row.
fn records(row: &Row, turns: &Turns, times: Times) -> Vec<Value> {
    let [eight, sixteen] = turns.entries() else { return Vec::new() };
    let directions = ["forward", "backward"].into_iter().zip(times).enumerate();
    let directions = directions.filter(|(at, _)| eight.status(*at == 1) != "none");
    directions
        .map(|(at, (direction, [ours, bf16]))| {
            let flops = row.cases[0].flops(at == 1);
            let (ours, bf16) = (Summary::of(ours), Summary::of(bf16));
            let rate = |of: Option<Summary>| of.map(|of| flops / of.median / 1e9);
            let tflops = rate(ours);
            json!({
                "mask": row.mask, "batch": 1, "seq": row.seq, "head_dim": row.head_dim, "direction": direction,
                "ms": ours.map(|of| of.median), "spread_ms": ours, "tflops": tflops,
                "table_tflops": row.published[at],
                "of_table": tflops.zip(row.published[at]).map(|(ours, table)| ours / table),
                "bf16_ms": bf16.map(|of| of.median), "bf16_tflops": rate(bf16),
                "times_as_fast_as_bf16": bf16.zip(ours).map(|(bf16, ours)| bf16.median / ours.median),
                "status": eight.status(at == 1), "bf16_status": sixteen.status(at == 1),
                "why": [eight.why(), sixteen.why()],
            })
        })
        .collect()
}
