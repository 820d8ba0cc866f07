//! `selftest --ranks`: random attentions that several ranks share, in both directions, beside one attention.

use qkvault_cache::{Vault, VaultOptions};
use qkvault_cli::memory::{RowFailure, failed};
use qkvault_cli::target::TargetArgs;
use qkvault_cli::{Globals, Outcome};
use qkvault_compile::{Compiler, OnMiss, Planner};
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_exec::PrepareError;
use qkvault_graph::Refusal;
use qkvault_parallel::testing::{CaseSpace, Member, Ran, ShardedCase, case, collected, expected, together, wrong};
use qkvault_parallel::{RunError, Schedule, schedule};
use qkvault_reference::{ExactOutputs, Inputs};
use rayon::prelude::*;
use serde_json::{Value, json};

use super::SelftestArgs;
use super::judge::CaseVerdict;
use super::tally::Tally;
use crate::world::{DEADLINE, GpuSessions};

/// How often a case is launched: the second time over what the first one left in the ranks' memory.
const RUNS: u32 = 2;

/// A case with what needs no GPU.
struct ReadyRanks {
    number: u64,
    family: &'static str,
    case: ShardedCase,
    prepared: Result<(Schedule, Inputs, ExactOutputs), RowFailure>,
}

/// Draws a case and computes what is expected of it.
fn prepare(args: &SelftestArgs, ranks: u32, number: u64) -> ReadyRanks {
    let case = case(&CaseSpace::gpu(ranks), args.seed.wrapping_mul(1_000_003).wrapping_add(number));
    let refused = |refusal: Refusal| ("refused", refusal.to_string());
    let prepared = schedule(&case.attention, &case.sharding).map_err(refused).and_then(|made| {
        let mut inputs = case.inputs(args.operand_family(number)).map_err(failed)?;
        if case.attention.is_backward() {
            inputs.add_forward(&case.attention).map_err(failed)?;
        }
        let exact = expected(&made, &inputs).map_err(failed)?;
        Ok((made, inputs, exact))
    });
    ReadyRanks { number, family: args.operand_family(number).name(), case, prepared }
}

/// Compiles the plans of a case, without a GPU.
fn compiled(planner: &Planner, target: &Target, made: &Schedule) -> CaseVerdict {
    for plan in &made.plans {
        match planner.plan(plan, target, &CompileOptions::default(), OnMiss::Compile).map(|answer| answer.outcome) {
            Ok(Ok(_)) => {}
            Ok(Err(refusal)) => return CaseVerdict::new("refused", refusal.to_string()),
            Err(error) => return CaseVerdict::new("failed", error.to_string()),
        }
    }
    let list = match made.combinations() {
        Ok(list) => list,
        Err(refusal) => return CaseVerdict::new("refused", refusal.to_string()),
    };
    for of in list {
        if let Err(error) = planner.combination(&of, target.sm(), OnMiss::Compile) {
            return CaseVerdict::new("failed", error.to_string());
        }
    }
    CaseVerdict::new("right", String::new())
}

fn judge(ready: &ReadyRanks, run: impl FnOnce(&Schedule, &Inputs) -> Vec<Ran>) -> CaseVerdict {
    let (made, inputs, exact) = match &ready.prepared {
        Ok(prepared) => prepared,
        Err((status, why)) => return CaseVerdict::new(status, why.clone()),
    };
    let mut outputs = Vec::new();
    for (rank, result) in run(made, inputs).into_iter().enumerate() {
        match result {
            Ok(of_rank) => outputs.push(of_rank),
            Err(RunError::Plan { what, source }) if matches!(source.downcast_ref(), Some(PrepareError::Refused(_))) => {
                return CaseVerdict::new("refused", format!("{what}: {source}"));
            }
            Err(error) => return CaseVerdict::new("failed", format!("rank {rank}: {error}")),
        }
    }
    let found = wrong(made, inputs, exact, &collected(made, &outputs));
    CaseVerdict::new(if found.is_empty() { "right" } else { "wrong" }, found.join("; "))
}

fn row(ready: &ReadyRanks, verdict: &CaseVerdict) -> Value {
    json!({
        "case": ready.number, "family": ready.family, "attention": ready.case.attention.to_string(), "sharding": ready.case.sharding.to_string(),
        "status": verdict.status, "why": verdict.why,
    })
}

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &SelftestArgs, ranks: u32) -> anyhow::Result<Outcome> {
    let search = args.library.search()?;
    let vault = match &globals.vault {
        Some(folder) => Vault::open(VaultOptions::in_folder(folder))?,
        None => Vault::in_memory(VaultOptions::new()),
    };
    let compiler = if args.dry.is_some() { Compiler::open_compile_only(&search)? } else { Compiler::open(&search)? };
    let target = args.dry.as_ref().map(|dry| TargetArgs { target: dry.clone() }.target(&compiler)).transpose()?;
    let planner = Planner::new(vault, Some(compiler));
    let open = || GpuSessions::open(&search, &planner, args.device, ranks, args.one_gpu);
    let gpus = target.is_none().then(open).transpose()?;
    let device = gpus.as_ref().map_or("none: only what needs no GPU is done", |gpus| gpus.sessions[0].device().name());
    let over = gpus.as_ref().map_or("nothing", GpuSessions::over);
    let numbers: Vec<u64> = args.numbers(None).collect();
    let place = json!({ "device": device, "ranks": ranks, "over": over });
    let mut tally = Tally::new(args, numbers.len() as u64, place);
    let pool = rayon::ThreadPoolBuilder::new().build()?;
    let (sender, receiver) = std::sync::mpsc::sync_channel::<ReadyRanks>(2 * pool.current_num_threads());
    let plans = gpus.as_ref().map(GpuSessions::plans).unwrap_or_default();
    let mut world: Vec<Member<'_>> = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pool.install(|| {
                numbers.into_par_iter().with_max_len(1).for_each_with(sender, |sender, n| {
                    // Sending fails only after the receiver has ended with the command.
                    let _ = sender.send(prepare(args, ranks, n));
                });
            });
        });
        for ready in receiver {
            let verdict = match (&gpus, &target, &ready.prepared) {
                (None, Some(target), Ok((made, ..))) => compiled(&planner, target, made),
                (Some(gpus), _, _) => {
                    if world.is_empty() {
                        world = gpus.world(ranks, &plans)?;
                    }
                    let mut ended = false;
                    let verdict = judge(&ready, |made, inputs| {
                        let results = together(made, inputs, &mut world, RUNS, DEADLINE);
                        ended = results.iter().any(Result::is_err);
                        results
                    });
                    if ended {
                        // An error has ended the communicators.
                        world.clear();
                    }
                    verdict
                }
                _ => judge(&ready, |_, _| Vec::new()),
            };
            tally.take(&verdict, ready.number, || row(&ready, &verdict));
        }
        anyhow::Ok(())
    })?;
    tally.builds = planner.vault().stats().builds;
    Ok(tally.finish(globals))
}
