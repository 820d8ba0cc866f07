//! `selftest`: random valid attentions on the GPU against the oracle, outputs poisoned first; right, refused or wrong, with the seed.

mod batch;
mod cases;
mod serving;

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
use super::target::LibraryArgs;
use super::{Globals, Outcome, out};

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
    /// With `--serving`: poison rows beyond the lengths in pages that are in use too, which kernels need not bear
    #[arg(long, requires = "serving")]
    tails: bool,
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
    let device = Device::open(args.device)?;
    let search = args.library.search()?;
    let library = Library::open(&search)?;
    let session = Session::open(&device, &library)?;
    let target = session.target()?;
    let vault = match &globals.vault {
        Some(folder) => Vault::open(VaultOptions::in_folder(folder))?,
        None => Vault::in_memory(VaultOptions::new()),
    };
    let planner = Planner::new(vault, Some(Compiler::open(&search)?));
    let stream = device.context().new_stream()?;
    let policy = Policy::default();
    let (mut rows, mut counts) = (Vec::new(), [0_u64; 4]);
    let mut worst = 0.0_f64;
    // In parts, so that the operands of thousands of cases are not held at once.
    let numbers: Vec<u64> = (args.first..args.first + args.cases).collect();
    for part in numbers.chunks(256) {
        let ready: Vec<Case> = part.par_iter().map(|&n| prepare(args, n, &planner, &target, &policy)).collect();
        for case in &ready {
            let verdict = judge(case, &session, &stream);
            let at = ["right", "refused", "wrong", "failed"].iter().position(|s| *s == verdict.status).unwrap_or(3);
            counts[at] += 1;
            if verdict.status == "right" {
                worst = worst.max(verdict.worst);
            } else {
                rows.push(row(case, &verdict));
            }
        }
        out::note(&format!("{} of {}: {counts:?}", part.last().map_or(0, |n| n - args.first + 1), args.cases));
    }
    let [right, refused, wrong, failed] = counts;
    let record = json!({
        "device": device.name(), "cudnn": library.version().to_string(), "cudnn_set": library.set().to_string(),
        "target": target.label(), "driver": target.device.driver_ver, "seed": args.seed, "first": args.first,
        "cases": args.cases, "right": right, "refused": refused, "wrong": wrong, "failed": failed,
        "worst_relative_error": worst, "builds": planner.vault().stats().builds, "not_right": rows,
    });
    if globals.json {
        out::json(&record);
    } else {
        for row in rows.iter().filter(|r| r["status"] != "refused") {
            out::line(&format!("case {} {}: {}\n  {}", row["case"], row["status"], row["attention"], row["why"]));
        }
        out::line(&format!("{right} right, {refused} refused, {wrong} wrong, {failed} failed; seed {}", args.seed));
    }
    Ok(if wrong + failed == 0 { Outcome::Good } else { Outcome::Bad })
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
