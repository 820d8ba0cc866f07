//! Ranks in threads with GPUs, whose outputs are put together and compared with one attention.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use qkvault_exec::Number;
use qkvault_exec::cudarc::driver::CudaContext;
use qkvault_graph::expr::Lowest;
use qkvault_graph::{DType, Role, Storage, Tensor, buffer_len, operand, operands, validate};
use qkvault_reference::{Buffer, ExactOutputs, Inputs, LaunchJudge, POISON, ReferenceError, backward, forward};

use crate::gpu::{GpuRank, Plans, RunError};
use crate::{Communicator, RankStep, Schedule};

/// One rank of a world: what carries its messages, where its plans come from, and its GPU.
pub struct Member<'a> {
    /// Carries messages.
    pub communicator: Box<dyn Communicator + 'a>,
    /// Loads plans on the rank's GPU.
    pub plans: &'a (dyn Plans + Sync),
    /// The rank's GPU.
    pub context: Arc<CudaContext>,
}

/// What a rank's run gives: the bytes of its outputs, or why it has none.
pub type Ran = Result<BTreeMap<Role, Vec<u8>>, RunError>;

/// Gives a rank its parts of the operands, poisoned outputs, the numbers and the lengths.
///
/// # Errors
///
/// [`RunError`] for operands that do not fit.
pub fn give(rank: &mut GpuRank, number: u32, schedule: &Schedule, inputs: &Inputs) -> Result<(), RunError> {
    let a = schedule.attention.get();
    rank.allocate()?;
    for of in rank.operands().collect::<Vec<_>>() {
        let missing = RunError::Operand { role: of.role, given: 0, needed: of.bytes };
        let bytes = match (of.output, inputs.get(of.role)) {
            (true, _) => vec![POISON; of.bytes as usize],
            (false, Some(buffer)) => schedule.part(number, of.role, buffer.bytes()).ok_or(missing)?,
            // ALiBi's slopes, which the rank has.
            (false, None) if matches!(of.role, Role::ScoreTensor(_)) => continue,
            (false, None) => return Err(missing),
        };
        rank.write(of.role, &bytes)?;
    }
    for of in operands(&schedule.attention).into_iter().filter(|o| o.role.is_scalar()) {
        let Some(buffer) = inputs.get(of.role) else { continue };
        rank.set_number(
            of.role,
            match of.tensor.dtype {
                DType::F32 => Number::F32(buffer.get(0) as f32),
                DType::I64 => Number::I64(buffer.int(0)),
                _ => Number::I32(buffer.int(0) as i32),
            },
        );
    }
    let lengths = |role: Role, most: i64| match inputs.get(role) {
        Some(buffer) => (0..buffer.len()).map(|at| buffer.int(at)).collect(),
        None => vec![most; a.batch() as usize],
    };
    rank.set_lengths(&lengths(Role::SeqLenQ, a.seq().0), &lengths(Role::SeqLenKv, a.seq().1))
}

/// Runs a schedule so many times with a thread for each rank, and returns each rank's outputs or error. After an error
/// the communicators have ended.
pub fn together(
    schedule: &Schedule,
    inputs: &Inputs,
    members: &mut [Member<'_>],
    runs: u32,
    deadline: Duration,
) -> Vec<Ran> {
    let one = |member: &mut Member<'_>| -> (Option<GpuRank>, Ran) {
        let communicator = &mut *member.communicator;
        let mut made = match GpuRank::prepare(schedule, communicator, member.plans, &member.context) {
            Ok(made) => made,
            Err(error) => return (None, Err(error)),
        };
        let number = communicator.rank();
        let ran: Ran = (|| {
            give(&mut made, number, schedule, inputs)?;
            let stream = member.context.new_stream();
            let stream = stream.map_err(RunError::driver("create a stream"))?;
            for _ in 0..runs {
                made.run(communicator, &stream)?;
            }
            made.wait(communicator, &stream, deadline)?;
            let outputs = made.operands().filter(|o| o.output);
            outputs.map(|o| Ok((o.role, made.read(o.role)?))).collect()
        })();
        if ran.is_err() {
            communicator.abort();
        }
        // The memory stays until all threads have ended: others may still copy from it.
        (Some(made), ran)
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = members.iter_mut().map(|member| scope.spawn(|| one(member))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    });
    results.into_iter().map(|(_, ran)| ran).collect()
}

/// The outputs of the whole attention, from those of its ranks in their order.
#[must_use]
pub fn collected(schedule: &Schedule, ranks: &[BTreeMap<Role, Vec<u8>>]) -> BTreeMap<Role, Buffer> {
    let mut whole = BTreeMap::new();
    for of in operands(&schedule.attention).into_iter().filter(|o| o.output) {
        let Some(len) = buffer_len(schedule.attention.get(), of.role) else { continue };
        let mut bytes = Buffer::poisoned(of.tensor.dtype, len).into_bytes();
        for (rank, outputs) in (0..).zip(ranks) {
            if let Some(part) = outputs.get(&of.role) {
                schedule.collect(rank, of.role, part, &mut bytes);
            }
        }
        if let Ok(buffer) = Buffer::new(of.tensor.dtype, bytes) {
            whole.insert(of.role, buffer);
        }
    }
    whole
}

/// The outputs of one attention, from the oracle.
///
/// # Errors
///
/// What the oracle says against the attention.
pub fn expected(schedule: &Schedule, inputs: &Inputs) -> Result<ExactOutputs, ReferenceError> {
    let whole = &schedule.attention;
    if whole.is_backward() { backward(whole, inputs) } else { forward(whole, inputs) }
}

/// What differs from one attention, empty if nothing does.
#[must_use]
pub fn wrong(
    schedule: &Schedule,
    inputs: &Inputs,
    expected: &ExactOutputs,
    found: &BTreeMap<Role, Buffer>,
) -> Vec<String> {
    let whole = &schedule.attention;
    let weighed = weighed(schedule, inputs, expected, found);
    let found = weighed.as_ref().unwrap_or(found);
    let judge = LaunchJudge::new(whole, inputs);
    let judged = expected.iter().filter(|output| operand(whole.get(), output.role()).is_some_and(|o| o.output));
    let judged = judged.filter_map(|output| {
        let Some(buffer) = found.get(&output.role()) else { return Some(format!("no {}", output.role())) };
        judge.judge(output, buffer).fault
    });
    judged.collect()
}

/// The outputs of a schedule that merges, with the expected O in rows whose every score is near the lowest float: their
/// log-sum-exp does not tell how many keys a rank has ([`crate::Scheme`]). Numbers that are not finite stay.
fn weighed(
    schedule: &Schedule,
    inputs: &Inputs,
    expected: &ExactOutputs,
    found: &BTreeMap<Role, Buffer>,
) -> Option<BTreeMap<Role, Buffer>> {
    let merges = schedule.ranks.iter().flat_map(|rank| &rank.steps).any(|step| matches!(step, RankStep::Merge { .. }));
    let a = schedule.attention.get();
    if !merges || schedule.attention.is_backward() || a.o.storage != Storage::Dense {
        return None;
    }
    let told = validate(a.clone().with_stats()).ok()?;
    let exact = forward(&told, inputs).ok()?;
    let (stats, of_stats) = (exact.buffer(Role::Stats)?, operand(told.get(), Role::Stats)?.tensor);
    let (exact_o, mut all) = (expected.buffer(Role::O)?, found.clone());
    let o = all.get_mut(&Role::O)?;
    let place = |t: &Tensor, at: [i64; 4]| (0..4).map(|dim| at[dim] * t.strides[dim]).sum::<i64>() as usize;
    let [batch, heads, rows, width] = a.o.dims;
    for at in (0..batch * heads * rows).map(|n| [n / rows / heads, n / rows % heads, n % rows]) {
        if stats.get(place(&of_stats, [at[0], at[1], at[2], 0])) > f64::from(Lowest::BEGIN) {
            continue;
        }
        for d in 0..width {
            let element = place(&a.o, [at[0], at[1], at[2], d]);
            if o.get(element).is_finite() && !o.is_poison(element) {
                o.set(element, exact_o.get(element));
            }
        }
    }
    Some(all)
}
