//! `bench fp8`: the FP8 rows of NVIDIA's table of an H200, forward and backward, beside our own bf16. Both run in
//! captured graphs that take turns, and alone after a pause, as in NVIDIA's program. It writes a record, `fp8.json`.

mod caches;
mod conversions;
mod rows;
mod times;

use std::path::PathBuf;

use anyhow::Context as _;
use qkvault_cli::target::{LibraryArgs, TargetArgs};
use qkvault_cli::{Globals, Outcome, open_vault, out};
use qkvault_compile::{Compiler, OnMiss, Planner};
use qkvault_cudnn::registry::codes;
use qkvault_cudnn::{CompileOptions, LabOptions, QuirkSet, Target};
use qkvault_exec::{Device, Session};
use serde_json::{Value, json};

use super::ground::clocks;
use super::summary::FigureSummary;
use super::timed::entry;
use super::timed::turns::Turns;
use rows::Fp8Row;
use times::LaunchTimes;

/// Options of `bench fp8`.
#[derive(Debug, clap::Args)]
pub(super) struct Fp8Args {
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
    /// How many of cuDNN's engine configurations that give a plan to time for FP8; the first is the one that is taken
    #[arg(long, default_value_t = 1)]
    configurations: u8,
    /// Only compile for --target; needs no GPU and times nothing
    #[arg(long)]
    plan: bool,
    /// The GPU's number
    #[arg(long, default_value_t = 0)]
    device: usize,
    #[command(flatten)]
    target: TargetArgs,
}

/// The options of the configuration after so many others, for an instrument that times them all.
fn after(others: u8) -> (String, CompileOptions) {
    let options = options();
    let lab = LabOptions { configuration: others, ..options.lab };
    (format!("configuration {others}"), CompileOptions { lab, ..options })
}

/// cuDNN's plans. NVIDIA measures heads that share keys in a backward of compute capability 9.0, which its tests block.
fn options() -> CompileOptions {
    let allowed = QuirkSet::known([&codes::FP8_HOPPER_GROUPED_BACKWARD]);
    CompileOptions { allowed, ..CompileOptions::cudnn() }
}

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &Fp8Args) -> anyhow::Result<Outcome> {
    let list: Vec<Fp8Row> = rows::all()?.into_iter().filter(|row| row.name().contains(&args.only)).collect();
    let caches = caches::rows(&args.only)?;
    anyhow::ensure!(
        !list.is_empty() || !caches.is_empty(),
        "--only '{}': no row has these words; `causal s2048 d128` is one",
        args.only
    );
    let search = args.library.search()?;
    if args.plan {
        let compiler = Compiler::open_compile_only(&search)?;
        let target = args.target.target(&compiler)?;
        let planner = Planner::new(open_vault(globals)?, Some(compiler));
        return Ok(plan(globals, &list, &planner, &target, args.configurations));
    }
    let device = Device::open(args.device)?;
    let session = Session::open(&device, &search)?;
    let planner = Planner::opening(open_vault(globals)?, search);
    let machine = json!({
        "device": device.name(), "target": session.target()?.label(), "driver": session.gpu().driver,
        "cudnn": session.library()?.version().to_string(), "qkvault": env!("CARGO_PKG_VERSION"),
        "rounds": args.rounds, "allowed": options().allowed,
        "how": "ms: captured graphs that take turns; alone_ms: one launch after a pause and with a cold cache, as in \
                NVIDIA's program; medians of rounds; table_tflops: NVIDIA's own table",
    });
    let (mut done, mut good) = (Vec::new(), true);
    let write = |done: &[Value]| {
        let record = json!({ "machine": machine, "rows": done });
        std::fs::write(&args.out, format!("{record:#}\n"))
            .with_context(|| format!("{} cannot be written", args.out.display()))
    };
    for row in &caches {
        let record = caches::measure(row, &session, &planner, &device.context().new_stream()?, args.rounds)?;
        out::note(&record.to_string());
        done.push(record);
        write(&done)?;
    }
    for row in &list {
        let stream = device.context().new_stream()?;
        let mut turns = Turns::new(&session, &planner, OnMiss::Compile, stream);
        for case in &row.cases {
            turns.add(case, "auto", &options(), args.rows);
        }
        for (form, options) in (1..args.configurations).map(after) {
            turns.add(&row.cases[0], &form, &options, 0);
        }
        let before = clocks();
        let times = times::measure(&mut turns, args.rounds).with_context(|| row.name())?;
        let conversions = conversions::measure(&session, &planner, row.cases[0].forward(), turns.stream())?;
        for mut record in records(row, &turns, times) {
            if record["direction"] == "forward" {
                record["conversions_ms"] = json!(conversions);
            }
            good &= record["status"] == "right" && record["bf16_status"] == "right";
            out::note(&record.to_string());
            done.push(record);
        }
        done.push(json!({ "mask": row.mask, "seq": row.seq, "clocks_before_and_after": [before, clocks()] }));
        write(&done)?;
    }
    Ok(if good { Outcome::Good } else { Outcome::Bad })
}

/// Compiles every row, and tells which are refused.
fn plan(globals: &Globals, list: &[Fp8Row], planner: &Planner, target: &Target, configurations: u8) -> Outcome {
    let sets = [("auto".to_owned(), options())];
    let more: Vec<_> = (1..configurations).map(after).collect();
    let mut entries = Vec::new();
    for row in list {
        entries.extend(entry::plan(&row.cases, &sets, planner, target).into_iter().map(|entry| (row, entry)));
        entries.extend(entry::plan(&row.cases[..1], &more, planner, target).into_iter().map(|entry| (row, entry)));
    }
    // An engine has as many configurations as it has.
    let good = entries.iter().all(|(_, entry)| entry.form != "auto" || entry.good());
    let lines = entries.iter().map(|(row, entry)| {
        json!({
            "row": row.name(), "format": entry.name(), "forward": entry.status(false),
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

/// The record of each direction of a row.
fn records(row: &Fp8Row, turns: &Turns, times: [Vec<LaunchTimes>; 2]) -> Vec<Value> {
    let [eight, sixteen, others @ ..] = turns.entries() else { return Vec::new() };
    let mut list = Vec::new();
    for (at, times) in times.iter().enumerate().filter(|(at, _)| eight.status(*at == 1) != "none") {
        let flops = row.cases[0].flops(at == 1);
        let rate = |of: Option<FigureSummary>| of.map(|of| flops / of.median / 1e9);
        let [ours, bf16] = [0, 1].map(|entry| FigureSummary::from_values(times[entry].in_turns.clone()));
        let [alone, bf16_alone] = [0, 1].map(|entry| FigureSummary::from_values(times[entry].alone.clone()));
        let (tflops, of_table) = (rate(ours), |rate: Option<f64>| Some(rate? / row.published[at]?));
        let configurations = others.iter().zip(&times[2..]).map(|(entry, times)| {
            let medians = [&times.in_turns, &times.alone]
                .map(|list| FigureSummary::from_values(list.clone()).map(|of| of.median));
            json!({
                "configuration": entry.form, "status": entry.status(at == 1), "why": entry.why(),
                "engine": entry.passes[at].facts.as_ref().map(|facts| facts.engine.clone()),
                "ms": medians[0], "alone_ms": medians[1],
            })
        });
        list.push(json!({
            "mask": row.mask, "batch": 1, "seq": row.seq, "head_dim": row.head_dim,
            "direction": if at == 1 { "backward" } else { "forward" },
            "ms": ours.map(|of| of.median), "spread_ms": ours, "tflops": tflops, "of_table": of_table(tflops),
            "alone_ms": alone.map(|of| of.median), "alone_tflops": rate(alone),
            "alone_of_table": of_table(rate(alone)), "table_tflops": row.published[at],
            "bf16_ms": bf16.map(|of| of.median), "bf16_tflops": rate(bf16), "bf16_alone_tflops": rate(bf16_alone),
            "times_as_fast_as_bf16": bf16.zip(ours).map(|(bf16, ours)| bf16.median / ours.median),
            "engine": eight.passes[at].facts.as_ref().map(|facts| facts.engine.clone()),
            "status": eight.status(at == 1), "bf16_status": sixteen.status(at == 1),
            "why": [eight.why(), sixteen.why()], "configurations": configurations.collect::<Vec<_>>(),
        }));
    }
    list
}
