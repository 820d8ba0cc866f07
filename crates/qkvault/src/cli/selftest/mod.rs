//! `selftest`: random valid attentions on the GPU against the oracle, outputs poisoned first; right, refused or wrong, with the seed.

mod batch;
mod cases;
mod expressions;
mod large;
mod philox;
mod serving;
mod tally;

pub(super) use cases::{Draw, attention as dense};
pub(super) use serving::attention as served;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use cudarc::driver::CudaStream;
use qkvault_cache::{Vault, VaultOptions};
use qkvault_exec::{Device, Session, cudarc};
use qkvault_graph::{Attention, DropoutSource, Pass, Policy, Refusal, Role, RuleSet, Valid, text, validate};
use qkvault_probe::{Answer, BuildPolicy, Compiler, PlanError, Planner};
use qkvault_reference::{Buffer, Inputs, Outputs, Tolerance, backward, compare, forward};
use qkvault_sys::Library;
use rayon::prelude::*;
use serde_json::{Value, json};

use super::memory::{Failure, Memory, failed};
use super::target::{LibraryArgs, TargetArgs};
use super::{Globals, Outcome, out};
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
    /// Attentions of a file instead of random ones, in the text form, with a line `---` between them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cases", "first", "serving", "large"])]
    file: Option<PathBuf>,
    /// Print the attentions, in the text form that `--file` reads, and do nothing else
    #[arg(long)]
    show: bool,
    /// Rules of lowering that are not followed, with commas between: to see what they are for
    #[arg(long, value_name = "RULES", default_value = "")]
    without: RuleSet,
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
    /// What must come out; `None` until a mask is known that the library draws.
    expected: Option<Outputs>,
    /// The forward that shows which mask the library draws, with its plan.
    drawn_by: Option<(Valid, Arc<qkvault_probe::Plan>)>,
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
    let attentions = args.file.as_deref().map(attentions).transpose()?;
    let count = attentions.as_ref().map_or(args.cases, |list| list.len() as u64);
    let numbers: Vec<u64> = (args.first..args.first + count).collect();
    let attention = |n: u64| match &attentions {
        Some(list) => list[n as usize].clone(),
        None if args.serving => serving::attention(args.seed, n),
        None => cases::attention(args.seed, n),
    };
    if args.show {
        numbers.iter().for_each(|&n| out::line(&format!("{}\n---", text::print(&attention(n)))));
        return Ok(Outcome::Good);
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
    let policy = Policy { without: args.without, ..Policy::default() };
    let place = json!({
        "device": name, "cudnn": library.version().to_string(), "cudnn_set": library.set().to_string(),
        "target": target.label(), "driver": target.device.driver_ver, "without": args.without,
    });
    let mut tally = Tally::new(args, count, place);
    // Threads of their own: they wait when the GPU is behind, and whoever judges must not wait for them.
    let pool = rayon::ThreadPoolBuilder::new().build()?;
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Case>(2 * pool.current_num_threads());
    std::thread::scope(|scope| {
        let (planner, target, policy) = (&planner, &target, &policy);
        let attention = &attention;
        scope.spawn(move || {
            pool.install(|| {
                numbers.into_par_iter().with_max_len(1).for_each_with(sender, |sender, n| {
                    // Nobody listens only when the command is at its end.
                    let _ = sender.send(prepare(args, attention(n), n, planner, target, policy));
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
        Ok(Ready { attention, plan: _, inputs, expected, drawn_by: _ }) => {
            let faults = expected
                .iter()
                .flat_map(Outputs::iter)
                .filter_map(|o| batch::worst_sequence(attention, inputs, o, &o.buffer()));
            let why: Vec<String> = faults.collect();
            let status = if why.is_empty() { "right" } else { "wrong" };
            Verdict { status, why: why.join("; "), worst: 0.0 }
        }
        Err((status, why)) => Verdict { status, why: why.clone(), worst: 0.0 },
    }
}

fn row(case: &Case, verdict: &Verdict) -> Value {
    json!({
        "case": case.number, "attention": case.attention.to_string(), "text": text::print(&case.attention),
        "lengths": case.prepared.as_ref().ok().map(|ready| batch::lengths(&ready.inputs)), "status": verdict.status, "why": verdict.why,
    })
}

/// Everything of a case that needs no GPU: the plan, random operands, and what must come out.
fn prepare(
    args: &Args,
    attention: Attention,
    number: u64,
    planner: &Planner,
    target: &qkvault_graph::Target,
    policy: &Policy,
) -> Case {
    let seed = args.seed;
    let prepared = (|| {
        let refused = |r: Refusal| ("refused", r.to_string());
        let valid = validate(attention.clone()).map_err(refused)?;
        let planned = |valid: &Valid| match planner.plan(valid, target, policy, BuildPolicy::BuildIfMissing) {
            Ok(Answer { outcome: Ok(plan), .. }) => Ok(plan),
            Ok(Answer { outcome: Err(refusal), .. }) => Err(refused(refusal)),
            Err(error @ PlanError::Missing { .. }) => Err(failed(error)),
            Err(error) => Err(failed(error)),
        };
        let plan = planned(&valid)?;
        let inputs = if args.serving {
            batch::inputs(&valid, seed, number, args.tails)
        } else {
            Inputs::random(&valid, seed ^ number)
        };
        let inputs = inputs.map_err(failed)?;
        let drawn = valid.get().dropout.is_some_and(|d| d.source == DropoutSource::Philox && d.probability > 0.0);
        let (expected, drawn_by) = if drawn {
            let plain = validate(Attention { pass: Pass::Forward, ..valid.get().clone() }).map_err(refused)?;
            let plan = planned(&plain)?;
            (None, Some((plain, plan)))
        } else {
            (Some(expect(&valid, &inputs)?), None)
        };
        Ok(Ready { attention: valid, plan, inputs, expected, drawn_by })
    })();
    Case { number, attention, prepared }
}

/// What the oracle says.
fn expect(valid: &Valid, inputs: &Inputs) -> Result<Outputs, Failure> {
    let outputs = match valid.get().pass {
        Pass::Forward => forward(valid, inputs),
        Pass::Backward(_) => backward(valid, inputs),
    };
    outputs.map_err(failed)
}

/// Inputs with the mask that the library draws, and what must come out with it.
fn drawn(ready: &Ready, session: &Session, stream: &Arc<CudaStream>) -> Result<(Inputs, Outputs), Failure> {
    let Ready { attention, plan: _, inputs, expected, drawn_by } = ready;
    let mut inputs = inputs.clone();
    match (expected, drawn_by) {
        (Some(expected), _) => Ok((inputs, expected.clone())),
        (None, None) => Err(failed("nothing says what must come out")),
        (None, Some((plain, plan))) => {
            let plan = session.load(plan).map_err(failed)?;
            inputs.insert(Role::DropoutMask, philox::mask(plain, &plan, &inputs, stream)?);
            if attention.get().is_backward() {
                inputs.add_forward(attention).map_err(failed)?;
            }
            let expected = expect(attention, &inputs)?;
            Ok((inputs, expected))
        }
    }
}

/// The attentions of a file.
fn attentions(file: &Path) -> anyhow::Result<Vec<Attention>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{} could not be read", file.display()))?;
    let parts = text.split("\n---").map(str::trim).filter(|part| !part.is_empty()).enumerate();
    parts.map(|(at, part)| text::parse(part).with_context(|| format!("attention {at} of {}", file.display()))).collect()
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
    let (inputs, expected) = drawn(ready, session, stream)?;
    let (inputs, expected) = (&inputs, &expected);
    let Ready { attention, plan, .. } = ready;
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
        let zero = output.values().iter().all(|&x| x == 0.0);
        let cancelled = found.max_abs <= floor(attention, *role, buffer.dtype(), zero);
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

/// Difference of one element that rounding of terms explains whatever the result: terms are of the order of one. Where a row sees
/// few keys, or what must come out is `zero` throughout, gradients are differences of equal numbers.
fn floor(attention: &Attention, role: Role, dtype: qkvault_graph::DType, zero: bool) -> f64 {
    if role == Role::Stats {
        return 0.0;
    }
    let ulp = if dtype == qkvault_graph::DType::F16 { 1e-3 } else { 8e-3 };
    let one_key = attention.mask.band.is_some_and(|band| band.left == Some(1) && band.right == Some(0));
    if attention.seq().1 <= 4 || one_key || zero { 16.0 * ulp } else { 0.1 * ulp }
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
