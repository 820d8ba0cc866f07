//! Prepares one case without a GPU, launches it over poisoned outputs, and compares it with the oracle.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use qkvault_compile::{OnMiss, PlanError, Planner, Resolution};
use qkvault_cudnn::CompileOptions;
use qkvault_cudnn::registry::codes;
use qkvault_exec::{LoadedPlan, Session, Workspace, cudarc};
use qkvault_graph::{Attention, DropoutSource, Fp8, Pass, Refusal, Role, Valid, validate};
use qkvault_reference::{
    Buffer, Defined, ExactOutput, ExactOutputs, Family, Inputs, LaunchJudge, RandomChoice, backward, forward,
};

use super::{SelftestArgs, batch, eight_bits, philox};
use qkvault_cli::memory::{OperandMemory, RowFailure, failed};

/// One case, ready to launch.
pub(super) struct LaunchCase {
    pub(super) number: u64,
    pub(super) attention: Attention,
    pub(super) prepared: Result<ReadyCase, RowFailure>,
}

pub(super) struct ReadyCase {
    attention: Valid,
    family: Family,
    plan: Arc<qkvault_compile::Plan>,
    pub(super) inputs: Inputs,
    /// The expected outputs; `None` if they depend on a dropout mask that the library draws.
    expected: Option<ExpectedOutputs>,
    /// Operands and outputs of a second launch with other origins, of attentions that have them.
    moved: Option<(Inputs, ExpectedOutputs)>,
    /// The forward that reveals the library's dropout mask, and its plan.
    drawn_by: Option<(Valid, Arc<qkvault_compile::Plan>)>,
    /// Whether the case is a random one, whose every number is one.
    random: bool,
}

/// The expected outputs, of the oracle.
#[derive(Clone)]
enum ExpectedOutputs {
    /// Of 16-bit attention.
    Exact(ExactOutputs),
    /// Of 8-bit attention, with what its formats cost.
    EightBits(Arc<eight_bits::Expected>),
}

/// How a case ended.
pub(super) struct CaseVerdict {
    pub(super) status: &'static str,
    pub(super) why: String,
    pub(super) worst: f64,
    /// The largest difference relative to what roundings explain, where they were followed.
    pub(super) of_roundings: f64,
    /// What the record counts: of what Amax_S is the largest.
    pub(super) note: Option<&'static str>,
}

impl CaseVerdict {
    /// A verdict without an error figure.
    pub(super) fn new(status: &'static str, why: String) -> CaseVerdict {
        CaseVerdict { status, why, worst: 0.0, of_roundings: 0.0, note: None }
    }
}

/// The verdict without a GPU: compares the expected outputs with themselves.
pub(super) fn dry(case: &LaunchCase) -> CaseVerdict {
    match &case.prepared {
        Ok(ReadyCase { attention, inputs, expected, moved, .. }) => {
            let moved = moved.as_ref().map(|(inputs, expected)| (inputs, expected));
            let answers = expected.as_ref().map(|expected| (inputs, expected)).into_iter().chain(moved);
            let why: Vec<String> = answers.flat_map(|(inputs, expected)| itself(attention, inputs, expected)).collect();
            let status = if why.is_empty() { "right" } else { "wrong" };
            CaseVerdict::new(status, why.join("; "))
        }
        Err((status, why)) => CaseVerdict::new(status, why.clone()),
    }
}

/// What differs between the expected outputs and themselves.
fn itself(attention: &Valid, inputs: &Inputs, expected: &ExpectedOutputs) -> Vec<String> {
    match expected {
        ExpectedOutputs::Exact(outputs) => {
            let judge = LaunchJudge::new(attention, inputs);
            outputs.iter().filter_map(|o| judge.judge(o, &o.buffer()).fault).collect()
        }
        ExpectedOutputs::EightBits(expected) => {
            let rounded = expected.roles().filter_map(|role| Some((role, expected.rounded(role)?)));
            rounded.filter_map(|(role, b)| expected.judge(attention, inputs, role, &b).fault).collect()
        }
    }
}

/// Prepares the parts of a case that need no GPU: the plan, random operands, and the expected outputs.
pub(super) fn prepare(
    args: &SelftestArgs,
    attention: Attention,
    number: u64,
    planner: &Planner,
    target: &qkvault_cudnn::Target,
    options: &CompileOptions,
) -> LaunchCase {
    let (seed, random) = (args.seed, args.file.is_none());
    let valid = validate(attention.clone());
    let prepared = (|| {
        let refused = |r: Refusal| ("refused", r.to_string());
        let valid = valid.map_err(refused)?;
        let planned = |valid: &Valid| match planner.plan(valid, target, options, OnMiss::Compile) {
            Ok(Resolution { outcome: Ok(plan), .. }) => Ok(plan),
            Ok(Resolution { outcome: Err(refusal), .. }) => Err(refused(refusal)),
            Err(error @ PlanError::Missing { .. }) => Err(failed(error)),
            Err(error) => Err(failed(error)),
        };
        let plan = planned(&valid)?;
        let family = args.operand_family(number);
        let inputs = if valid.has_narrow_products() {
            // Cases about whole tiles without keys also have sequences without keys.
            let empty = args.about.contains(&codes::FP8_HOPPER_EMPTY_TILE) && number % 2 == 1;
            eight_bits::operands(&valid, seed, number, empty, family)
        } else if args.serves(number) {
            batch::inputs(&valid, seed, number, args.tails || family == Family::Behind, family)
        } else {
            Inputs::random_with(&valid, seed ^ number, &RandomChoice { family, ..RandomChoice::default() })
        };
        let mut inputs = inputs.map_err(failed)?;
        if valid.fp8 == Some(Fp8::Cache) {
            eight_bits::cache_scales(&mut inputs, seed, number);
        }
        inputs.poison_between(&valid).map_err(failed)?;
        let drawn = valid.get().dropout.is_some_and(|d| d.source == DropoutSource::Philox && d.probability > 0.0);
        let (expected, drawn_by) = if drawn {
            let plain = validate(valid.as_forward()).map_err(refused)?;
            let plan = planned(&plain)?;
            (None, Some((plain, plan)))
        } else {
            (Some(expect(&valid, &inputs, random)?), None)
        };
        let moved = match (&expected, valid.origins) {
            (Some(_), Some(_)) => {
                let mut inputs = inputs.clone();
                inputs.move_origins(&valid, seed ^ number).map_err(failed)?;
                let expected = expect(&valid, &inputs, random)?;
                Some((inputs, expected))
            }
            _ => None,
        };
        Ok(ReadyCase { attention: valid, family: args.family(number), plan, inputs, expected, moved, drawn_by, random })
    })();
    LaunchCase { number, attention, prepared }
}

/// The oracle's outputs. Those of a `random` case are numbers: a launch that gives NaN where the oracle does would
/// otherwise be right whatever it computes.
fn expect(valid: &Valid, inputs: &Inputs, random: bool) -> Result<ExpectedOutputs, RowFailure> {
    if valid.has_narrow_products() {
        let expected = eight_bits::Expected::for_attention(valid, inputs).map_err(failed)?;
        return Ok(ExpectedOutputs::EightBits(Arc::new(expected)));
    }
    let outputs = match valid.get().pass {
        Pass::Forward => forward(valid, inputs),
        Pass::Backward(_) => backward(valid, inputs),
    };
    let outputs = outputs.map_err(failed)?;
    if let Some(role) = outputs.iter().find(|output| random && no_number(output)).map(ExactOutput::role) {
        return Err(failed(format!("the oracle's {role} is not a number, which judges nothing")));
    }
    Ok(ExpectedOutputs::Exact(outputs))
}

/// Whether an element that a launch defines is NaN.
fn no_number(output: &ExactOutput) -> bool {
    output.values().iter().zip(output.defined()).any(|(x, defined)| *defined == Defined::Value && x.is_nan())
}

impl ExpectedOutputs {
    /// Every output that a launch writes.
    fn roles(&self) -> Vec<Role> {
        match self {
            ExpectedOutputs::Exact(outputs) => outputs.iter().map(ExactOutput::role).collect(),
            ExpectedOutputs::EightBits(expected) => expected.roles().collect(),
        }
    }
}

/// The inputs with the library's dropout mask, and the expected outputs.
fn drawn(
    ready: &ReadyCase,
    session: &Session,
    stream: &Arc<CudaStream>,
) -> Result<(Inputs, ExpectedOutputs), RowFailure> {
    let ReadyCase { attention, inputs, expected, drawn_by, random, .. } = ready;
    let mut inputs = inputs.clone();
    match (expected, drawn_by) {
        (Some(expected), _) => Ok((inputs, expected.clone())),
        (None, None) => Err(failed("the case has no expected outputs")),
        (None, Some((plain, plan))) => {
            let plan = session.load(plan).map_err(failed)?;
            inputs.insert(Role::DropoutMask, philox::mask(plain, &plan, &inputs, stream)?);
            if attention.get().is_backward() {
                inputs.add_forward(attention).map_err(failed)?;
            }
            let expected = expect(attention, &inputs, *random)?;
            Ok((inputs, expected))
        }
    }
}

pub(super) fn judge(case: &LaunchCase, session: &Session, stream: &Arc<CudaStream>, repeat: u32) -> CaseVerdict {
    let done = match &case.prepared {
        Ok(ready) => launch(ready, session, stream, repeat),
        Err(failure) => Err(failure.clone()),
    };
    match done {
        Ok(Launched { worst, of_roundings, faults, note }) => {
            let status = if faults.is_empty() { "right" } else { "wrong" };
            CaseVerdict { worst, of_roundings, note, ..CaseVerdict::new(status, faults.join("; ")) }
        }
        Err((status, why)) => CaseVerdict::new(status, why),
    }
}

/// What the launches of a case showed.
struct Launched {
    worst: f64,
    of_roundings: f64,
    faults: Vec<String>,
    note: Option<&'static str>,
}

/// Launches the case and compares each output with the oracle; if it has origins, a second time with others.
fn launch(ready: &ReadyCase, session: &Session, stream: &Arc<CudaStream>, repeat: u32) -> Result<Launched, RowFailure> {
    let (inputs, expected) = drawn(ready, session, stream)?;
    let plan = session.load(&ready.plan).map_err(failed)?;
    let of = &ready.attention;
    let mut launched = compared(of, &plan, &inputs, &expected, stream, repeat)?;
    // A mask that the caller gave is not drawn, and an exact answer stands without one.
    if ready.drawn_by.is_some() {
        let mask = inputs.buffer(Role::DropoutMask).map_err(failed)?;
        launched.faults.extend(philox::uneven(ready.attention.get(), ready.family, mask));
    }
    if let Some((inputs, expected)) = &ready.moved {
        let moved = compared(of, &plan, inputs, expected, stream, 0)?;
        launched.worst = launched.worst.max(moved.worst);
        launched.of_roundings = launched.of_roundings.max(moved.of_roundings);
        launched.faults.extend(moved.faults.into_iter().map(|fault| format!("with other origins: {fault}")));
    }
    Ok(launched)
}

/// Launches once and compares each output with the oracle.
///
/// Then launches it `repeat` more times (a deterministic backward at least once) and compares the outputs bit by bit
/// with those of the first launch. Sums in any order are left out, unless the backward is deterministic.
fn compared(
    attention: &Valid,
    plan: &LoadedPlan,
    inputs: &Inputs,
    expected: &ExpectedOutputs,
    stream: &Arc<CudaStream>,
    repeat: u32,
) -> Result<Launched, RowFailure> {
    let once = || -> Result<Vec<(Role, Buffer)>, RowFailure> {
        let mut memory = OperandMemory::upload(stream, attention, plan, inputs)?;
        // The workspace is poisoned, so that a kernel that expects zeros gives wrong numbers.
        let bytes = plan.workspace();
        let scratch = (bytes > 0).then(|| Workspace::poisoned(stream, bytes)).transpose().map_err(failed)?;
        memory.bind_over(plan, inputs, stream, scratch.as_ref())?.launch(stream).map_err(failed)?;
        stream.synchronize().map_err(failed)?;
        let roles = expected.roles().into_iter();
        roles.filter_map(|role| memory.download(stream, role).map(|b| b.map(|b| (role, b))).transpose()).collect()
    };
    let actual = once()?;
    let (mut worst, mut of_roundings, mut faults, mut note) = (0.0_f64, 0.0_f64, Vec::new(), None);
    let judge = LaunchJudge::new(attention, inputs);
    for (role, buffer) in &actual {
        let output = match expected {
            ExpectedOutputs::EightBits(expected) => {
                let found = expected.judge(attention, inputs, *role, buffer);
                worst = worst.max(found.ratio);
                faults.extend(found.fault);
                note = note.or(found.note);
                continue;
            }
            ExpectedOutputs::Exact(outputs) => outputs.get(*role),
        };
        let Some(output) = output else { continue };
        let verdict = judge.judge(output, buffer);
        match verdict.of_roundings {
            Some(ratio) => of_roundings = of_roundings.max(ratio),
            None => worst = worst.max(verdict.found.relative.min(verdict.found.max_abs)),
        }
        faults.extend(verdict.fault);
    }
    let deterministic = matches!(attention.pass, Pass::Backward(gradients) if gradients.deterministic);
    for _ in 0..repeat.max(u32::from(deterministic)) {
        for ((role, first), (_, second)) in actual.iter().zip(once()?) {
            if (deterministic || !in_any_order(*role)) && first.bytes() != second.bytes() {
                faults.push(format!("{role}: two launches differ"));
            }
        }
    }
    faults.dedup();
    Ok(Launched { worst, of_roundings, faults, note })
}

/// Whether a backward that is not deterministic may sum this output in any order.
const fn in_any_order(role: Role) -> bool {
    matches!(role, Role::DQ | Role::DScoreTensor(_) | Role::DSink)
}
