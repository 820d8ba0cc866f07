//! `bench parallel`: the time of one attention over several GPUs, beside GPUs that compute all of it each, in turns.
//!
//! All ranks begin at a barrier, and the slowest one counts. Ideal is a GPU's part of what it takes for all of it while
//! the others do the same, so that they share the host's power. With `--one-gpu` the ranks are threads on one GPU, so
//! the time of all together beside that of one attention says what the schedule itself costs: smaller launches, copies,
//! merges; nothing about links.

mod cases;
mod shared;
mod single;

use std::path::PathBuf;

use qkvault_cli::clock::median;
use qkvault_cli::target::{LibraryArgs, TargetArgs};
use qkvault_cli::{Globals, Outcome, open_vault, out};
use qkvault_compile::{Compiler, OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_graph::{BackwardOptions, Valid};
use qkvault_parallel::{PeerCopies, Schedule, schedule};
use serde_json::{Value, json};

use crate::world::GpuSessions;
use cases::ParallelCase;
use shared::SharedRanks;
use single::Single;

/// Options of `bench parallel`.
#[derive(Debug, clap::Args)]
pub(super) struct ParallelArgs {
    #[command(flatten)]
    library: LibraryArgs,
    /// The record
    #[arg(long, value_name = "FILE", default_value = "parallel.json")]
    out: PathBuf,
    /// Number of ranks, each on a GPU
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=8))]
    ranks: u32,
    /// Put all ranks on one GPU
    #[arg(long)]
    one_gpu: bool,
    /// Exchange over NCCL where GPUs could write each other's memory
    #[arg(long)]
    nccl: bool,
    /// Only cases whose name has these words
    #[arg(long, value_name = "WORDS", default_value = "")]
    only: String,
    /// Rounds; each times the ranks and one GPU once. Rows whose rounds take seconds have fewer
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds that the rounds of one row take at most; two rounds always run
    #[arg(long, default_value_t = 6.0)]
    seconds: f64,
    /// Most tokens of a rank
    #[arg(long, default_value_t = 131_072)]
    tokens: i64,
    /// Only print the cases
    #[arg(long)]
    show: bool,
    /// Only compile the plans for this target, without a GPU
    #[arg(long, value_name = "NAME|FILE")]
    dry: Option<String>,
    /// The first GPU's number
    #[arg(long, default_value_t = 0)]
    device: usize,
}

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &ParallelArgs) -> anyhow::Result<Outcome> {
    let wanted = |case: &ParallelCase| {
        case.name.contains(&args.only) && case.attention.q.dims[2] <= args.tokens * i64::from(args.ranks)
    };
    let list: Vec<ParallelCase> = cases::list(args.ranks)?.into_iter().filter(wanted).collect();
    if args.show {
        list.iter().for_each(|case| out::line(&case.name));
        return Ok(Outcome::Good);
    }
    let search = args.library.search()?;
    if let Some(dry) = &args.dry {
        let compiler = Compiler::open_compile_only(&search)?;
        let target = TargetArgs { target: dry.clone() }.target(&compiler)?;
        let planner = Planner::new(open_vault(globals)?, Some(compiler));
        return compile(&planner, &target, &list);
    }
    let planner = Planner::opening(open_vault(globals)?, search.clone());
    let mut gpus = GpuSessions::open(&search, &planner, args.device, args.ranks, args.one_gpu)?;
    gpus.copies = if args.nccl { PeerCopies::Never } else { PeerCopies::Threads };
    let plans = gpus.plans();
    let session = &gpus.sessions[0];
    let mut record = json!({
        "machine": format!(
            "{} x {}, driver of CUDA {}, cuDNN {}, over {}, turns, medians of at most {} rounds",
            gpus.sessions.len(), session.device().name(), session.gpu().driver, session.library()?.version(), gpus.over(),
            args.rounds
        ),
        "ranks": args.ranks, "one_gpu": args.one_gpu, "rows": [],
    });
    let mut outcome = Outcome::Good;
    for case in &list {
        match measure(args, &gpus, &plans, &planner, case) {
            Ok(rows) => {
                for row in &rows {
                    out::note(&row.to_string());
                }
                record["rows"].as_array_mut().into_iter().for_each(|list| list.extend(rows.clone()));
            }
            Err(error) => {
                out::problem(&format!("{}: {error:#}", case.name));
                outcome = Outcome::Bad;
            }
        }
        std::fs::write(&args.out, format!("{record:#}\n"))?;
    }
    out::note(&format!("the record: {}", args.out.display()));
    Ok(outcome)
}

/// Both passes of a case: the forward, and the backward that reads its results.
fn passes(case: &ParallelCase) -> anyhow::Result<(Valid, Option<Valid>)> {
    let forward = case.attention.clone();
    let backward = case.trains.then(|| forward.backward(BackwardOptions::default()).validate()).transpose()?;
    Ok((forward, backward))
}

fn compile(planner: &Planner, target: &qkvault_cudnn::Target, list: &[ParallelCase]) -> anyhow::Result<Outcome> {
    let options = CompileOptions::default();
    let mut outcome = Outcome::Good;
    for case in list {
        let (forward, backward) = passes(case)?;
        for pass in [Some(forward), backward].into_iter().flatten() {
            let made = schedule(&pass, &case.sharding)?;
            for plan in made.plans.iter().chain([&pass]) {
                if let Err(refusal) = planner.plan(plan, target, &options, OnMiss::Compile)?.outcome {
                    out::problem(&format!("{plan}: {refusal}"));
                    outcome = Outcome::Bad;
                }
            }
            for of in made.combinations()? {
                planner.combination(&of, target.sm(), OnMiss::Compile)?;
            }
        }
        out::note(&case.name);
    }
    Ok(outcome)
}

/// Times a case: rows for the forward, and for forward and backward.
fn measure(
    args: &ParallelArgs,
    gpus: &GpuSessions,
    plans: &[qkvault_parallel::SessionPlans<'_>],
    planner: &Planner,
    case: &ParallelCase,
) -> anyhow::Result<Vec<Value>> {
    let (forward, backward) = passes(case)?;
    let made = |pass: &Valid| schedule(pass, &case.sharding);
    let schedules: (Schedule, Option<Schedule>) = (made(&forward)?, backward.as_ref().map(made).transpose()?);
    let single = |session| Single::new(session, planner, &forward, backward.as_ref());
    let mut all = gpus.sessions.iter().map(single).collect::<anyhow::Result<Vec<Single>>>()?;
    let mut world = gpus.world(args.ranks, plans)?;
    let mut ranks = SharedRanks::new(&mut world, &schedules)?;
    let mut rows = Vec::new();
    for both in [false, true].into_iter().take(if backward.is_some() { 2 } else { 1 }) {
        let (mut alone, mut shared, mut host) = (vec![Vec::new(); all.len()], Vec::new(), Vec::new());
        // Both are warm then, and a turn takes some tens of milliseconds.
        ranks.time(both, 2)?;
        let (of_ranks, of_one) = (ranks.time(both, 1)?.0, slowest(&Single::time_all(&mut all, both, 1)?));
        let calls = ((30.0 / of_ranks.max(of_one)) as u32).clamp(1, 50);
        let round = f64::from(calls) * (of_ranks + of_one) / 1e3;
        let rounds = ((args.seconds / round) as usize).max(2).min(args.rounds.max(1));
        for _ in 0..rounds {
            alone.iter_mut().zip(Single::time_all(&mut all, both, calls)?).for_each(|(list, ms)| list.push(ms));
            let (of_ranks, queued) = ranks.time(both, calls)?;
            shared.push(of_ranks);
            host.push(queued);
        }
        let middle = |mut list: Vec<f64>| median(&mut list).unwrap_or(f64::NAN);
        let (shared, host) = (middle(shared), middle(host));
        let ideal: Vec<f64> = alone.into_iter().map(|list| middle(list) / gpus.sessions.len() as f64).collect();
        rows.push(json!({
            "case": case.name, "direction": if both { "forward + backward" } else { "forward" },
            "rounds": rounds, "ours_ms": shared, "ideal_ms": ideal, "of_ideal": slowest(&ideal) / shared,
            "host_ms": host, "by": ranks.by(), "bytes_sent": sent(&schedules, both),
        }));
    }
    drop(ranks);
    // Each ends a communicator: at the same time, as they were made.
    std::thread::scope(|scope| world.into_iter().for_each(|member| drop(scope.spawn(|| drop(member)))));
    Ok(rows)
}

fn slowest(ms: &[f64]) -> f64 {
    ms.iter().copied().fold(0.0, f64::max)
}

/// Bytes that rank 0 sends.
fn sent((forward, backward): &(Schedule, Option<Schedule>), both: bool) -> u64 {
    let list = std::iter::once(forward).chain(backward.iter().filter(|_| both));
    list.map(|made| made.costs(0).sent.unsigned_abs()).sum()
}
