//! `selftest`: random valid attentions on the GPU against the oracle, outputs poisoned first; right, refused or wrong, with the seed.

mod batch;
mod cases;
mod large;
mod serving;
mod tally;

pub(super) use cases::{Draw, attention as dense};
pub(super) use serving::attention as served;

use std::path::PathBuf;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use qkvault_cache::{Vault, VaultOptions};
use qkvault_exec::{Device, Session, cudarc};
use qkvault_graph::{Attention, Pass, Policy, Refusal, Role, Valid, validate};
use qkvault_probe::{Answer, BuildPolicy, Compiler, PlanError, Planner};
use qkvault_reference::{Buffer, Inputs, Outputs, Tolerance, backward, compare, forward};
use qkvault_sys::Library;
use rayon::prelude::*;
use serde_json::{Value, json};

use super::memory::{Failure, Memory, failed};
use super::target::{LibraryArgs, TargetArgs};
use super::{Globals, Outcome};
use tally::Tally;

/// Options of `selftest`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    library: LibraryArgs,
    /// How many attentions
    #[arg(long, value_name = "N", default_value_t = 200)]
    cases: u64,
    /// Seed of the attentions and of their data
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of the first case: with `--cases 1`, one case of an earlier run
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// The GPU's number
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Batches as an engine that serves requests has them: packed queries, paged keys and values
    #[arg(long)]
    serving: bool,
    /// Steps of training too large for the oracle: every operand is written below this folder, for bench/selftest_large.py to compare
    #[arg(long, value_name = "DIR", conflicts_with = "serving")]
    large: Option<PathBuf>,
    /// With `--large`: small ones, computed by the oracle in the place of a GPU, to try the comparison itself
    #[arg(long, requires = "large")]
    cpu: bool,
    /// With `--serving`: poison rows beyond the lengths in pages that are in use too, which kernels need not bear
    #[arg(long, requires = "serving")]
    tails: bool,
    /// Write the record to this file too, every few seconds
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Do only what needs no GPU, for this one: plans, operands, the oracle
    #[arg(long, value_name = "NAME|FILE")]
    dry: Option<String>,
}

/// One case, ready to be launched.
struct Case {
    number: u64,
    attention: Attention,
    prepared: Result<Ready, Failure>,
}

struct Ready {
    attention: Valid,
    plan: Arc<qkvault_probe::Plan>,
    inputs: Inputs,
    expected: Outputs,
}

/// How a case ended.
struct Verdict {
    status: &'static str,
    why: String,
    worst: f64,
}

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &Args) -> anyhow::Result<Outcome> {
    if let Some(folder) = &args.large {
        return large::run(globals, args, folder);
    }
    let search = args.library.search()?;
    let vault = match &globals.vault {
        Some(folder) => Vault::open(VaultOptions::in_folder(folder))?,
        None => Vault::in_memory(VaultOptions::new()),
    };
    let compiler = Compiler::open(&search)?;
    let device = if args.dry.is_some() { None } else { Some(Device::open(args.device)?) };
    let card = match &device {
        Some(device) => Some((Session::open(device, &Library::open(&search)?)?, device.context().new_stream()?)),
        None => None,
    };
    let (target, name) = match (&card, &args.dry) {
        (Some((session, _)), _) => (session.target()?, session.device().name().to_owned()),
        (None, dry) => {
            let target = TargetArgs { target: dry.clone().unwrap_or_default() }.target(&compiler)?;
            (target, "none: only what needs no GPU is done".to_owned())
        }
    };
    let library = Arc::clone(compiler.library());
    let planner = Planner::new(vault, Some(compiler));
    let policy = Policy::default();
    let place = json!({
        "device": name, "cudnn": library.version().to_string(), "cudnn_set": library.set().to_string(),
        "target": target.label(), "driver": target.device.driver_ver,
    });
    let mut tally = Tally::new(args, place);
    // Threads of their own: they wait when the GPU is behind, and whoever judges must not wait for them.
    let pool = rayon::ThreadPoolBuilder::new().build()?;
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Case>(2 * pool.current_num_threads());
    std::thread::scope(|scope| {
        let (planner, target, policy) = (&planner, &target, &policy);
        let numbers: Vec<u64> = (args.first..args.first + args.cases).collect();
        scope.spawn(move || {
            pool.install(|| {
                numbers.into_par_iter().with_max_len(1).for_each_with(sender, |sender, n| {
                    // Nobody listens only when the command is at its end.
                    let _ = sender.send(prepare(args, n, planner, target, policy));
                });
            });
        });
        for case in receiver {
            let verdict = match &card {
                Some((session, stream)) => judge(&case, session, stream),
                None => dry(&case),
            };
            tally.take(&case, &verdict);
        }
    });
    let builds = Some(planner.vault().stats().builds);
    Ok(tally.finish(globals, builds))
}

/// The verdict where there is no GPU: what was prepared is as good as it can be, and is compared with itself.
fn dry(case: &Case) -> Verdict {
    match &case.prepared {
        Ok(Ready { attention, plan: _, inputs, expected }) => {
            let faults = expected.iter().filter_map(|o| batch::worst_sequence(attention, inputs, o, &o.buffer()));
            let why: Vec<String> = faults.collect();
            let status = if why.is_empty() { "right" } else { "wrong" };
            Verdict { status, why: why.join("; "), worst: 0.0 }
        }
        Err((status, why)) => Verdict { status, why: why.clone(), worst: 0.0 },
    }
}

fn row(case: &Case, verdict: &Verdict) -> Value {
    json!({
        "case": case.number, "attention": case.attention.to_string(), "score": case.attention.score.as_ref().map(ToString::to_string),
        "keep": case.attention.mask.keep.as_ref().map(ToString::to_string),
        "lengths": case.prepared.as_ref().ok().map(|ready| batch::lengths(&ready.inputs)), "status": verdict.status, "why": verdict.why,
    })
}

/// Everything of a case that needs no GPU: the plan, random operands, and what must come out.
fn prepare(args: &Args, number: u64, planner: &Planner, target: &qkvault_graph::Target, policy: &Policy) -> Case {
    let seed = args.seed;
    let attention = if args.serving { serving::attention(seed, number) } else { cases::attention(seed, number) };
    let prepared = (|| {
        let refused = |r: Refusal| ("refused", r.to_string());
        let valid = validate(attention.clone()).map_err(refused)?;
        let plan = match planner.plan(&valid, target, policy, BuildPolicy::BuildIfMissing) {
            Ok(Answer { outcome: Ok(plan), .. }) => plan,
            Ok(Answer { outcome: Err(refusal), .. }) => return Err(refused(refusal)),
            Err(error @ PlanError::Missing { .. }) => return Err(failed(error)),
            Err(error) => return Err(failed(error)),
        };
        let inputs = if args.serving {
            batch::inputs(&valid, seed, number, args.tails)
        } else {
            Inputs::random(&valid, seed ^ number)
        };
        let inputs = inputs.map_err(failed)?;
        let expected = match valid.get().pass {
            Pass::Forward => forward(&valid, &inputs),
            Pass::Backward(_) => backward(&valid, &inputs),
        };
        Ok(Ready { expected: expected.map_err(failed)?, attention: valid, plan, inputs })
    })();
    Case { number, attention, prepared }
}

fn judge(case: &Case, session: &Session, stream: &Arc<CudaStream>) -> Verdict {
    let done = match &case.prepared {
        Ok(ready) => launch(ready, session, stream),
        Err(failure) => Err(failure.clone()),
    };
    match done {
        Ok((worst, faults)) if faults.is_empty() => Verdict { status: "right", why: String::new(), worst },
        Ok((worst, faults)) => Verdict { status: "wrong", why: faults.join("; "), worst },
        Err((status, why)) => Verdict { status, why, worst: 0.0 },
    }
}

/// Launches twice and compares: each output with the oracle, and a deterministic one with itself.
fn launch(ready: &Ready, session: &Session, stream: &Arc<CudaStream>) -> Result<(f64, Vec<String>), Failure> {
    let Ready { attention, plan, inputs, expected } = ready;
    let plan = session.load(plan).map_err(failed)?;
    let once = || -> Result<Vec<(Role, Buffer)>, Failure> {
        let mut memory = Memory::upload(stream, attention, &plan, inputs)?;
        memory.bind(&plan, inputs, stream)?.launch(stream).map_err(failed)?;
        stream.synchronize().map_err(failed)?;
        let roles = expected.iter().map(qkvault_reference::Output::role);
        roles.filter_map(|role| memory.download(stream, role).map(|b| b.map(|b| (role, b))).transpose()).collect()
    };
    let actual = once()?;
    let (mut worst, mut faults) = (0.0_f64, Vec::new());
    for (role, buffer) in &actual {
        let Some(output) = expected.get(*role) else { continue };
        let found = compare(output, buffer, tolerance(*role, buffer.dtype()));
        // Sums that cancel, as gradients over a few keys do, leave the rounding of their terms.
        let cancelled = found.max_abs <= floor(attention, *role, buffer.dtype());
        let written = found.non_finite + found.unwritten + found.touched == 0;
        worst = worst.max(found.relative.min(found.max_abs));
        if !(found.good || cancelled && written) {
            faults.push(format!("{role}: {found:?}"));
        } else if let Some(fault) = batch::worst_sequence(attention, inputs, output, buffer) {
            faults.push(fault);
        }
    }
    if let Pass::Backward(gradients) = attention.pass
        && gradients.deterministic
    {
        for ((role, first), (_, second)) in actual.iter().zip(once()?) {
            // cuDNN sums the sink's gradient in any order even then.
            if *role != Role::DSink && first.bytes() != second.bytes() {
                faults.push(format!("{role}: two deterministic runs differ"));
            }
        }
    }
    Ok((worst, faults))
}

/// Difference of one element that rounding of terms explains whatever the result: terms are of the order of one.
fn floor(attention: &Attention, role: Role, dtype: qkvault_graph::DType) -> f64 {
    if role == Role::Stats {
        return 0.0;
    }
    let ulp = if dtype == qkvault_graph::DType::F16 { 1e-3 } else { 8e-3 };
    if attention.seq().1 <= 4 { 2.0 * ulp } else { 0.02 * ulp }
}

/// Gradients go through two roundings to 16 bits more than O does: probabilities and their gradients are operands of products.
fn tolerance(role: Role, dtype: qkvault_graph::DType) -> Tolerance {
    let usual = Tolerance::of(role, dtype);
    match role {
        Role::DQ | Role::DK | Role::DV => Tolerance { relative: 3.0 * usual.relative, ..usual },
        Role::DScoreTensor(_) | Role::DSink => Tolerance { relative: 3e-2, ..usual },
        _ => usual,
    }
}
