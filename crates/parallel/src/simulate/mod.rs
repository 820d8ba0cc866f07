//! Schedules on the CPU: every step of every rank over memory of its own, in float64, with the oracle for launches.

mod host;
mod launch;
mod memory;

use std::collections::BTreeMap;
use std::time::Duration;

use qkvault_graph::{Refusal, Role, Valid, operands, validate};
use qkvault_reference::{ExactOutputs, Inputs, Places, ReferenceError, backward, forward};

pub use self::host::HostRank;
use self::launch::LaunchNumbers;
use self::memory::RankMemory;
use crate::comm::{CommError, Communicator, Hello, RankMessage, Threads, agree};
use crate::{RankStep, Schedule};

/// Why a schedule cannot be run on the CPU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// The oracle refuses a launch or the whole attention.
    #[error("the oracle: {0}")]
    Oracle(#[from] ReferenceError),
    /// An exchange has failed.
    #[error("an exchange: {0}")]
    Exchange(#[from] CommError),
    /// The whole attention has no forward.
    #[error("the forward: {0}")]
    Forward(#[from] Refusal),
    /// A launch binds something that it cannot have.
    #[error("rank {rank}: {what}")]
    Bind {
        /// The rank.
        rank: u32,
        /// What is wrong.
        what: String,
    },
}

/// The outputs of the whole attention as all ranks together have them, each in the memory order of its operand. What no
/// rank has is NaN.
pub type Gathered = BTreeMap<Role, Vec<f64>>;

/// Runs a schedule with a thread for each rank, from the operands of the whole attention, and puts the outputs of the
/// ranks together.
///
/// A backward reads the exact O and Stats of the forward, which is computed first.
///
/// # Errors
///
/// The first error of a rank.
pub fn simulate(schedule: &Schedule, inputs: &Inputs) -> Result<Gathered, SimulateError> {
    let ranks = Threads::world(schedule.sharding.ranks, Duration::from_secs(120));
    let given = GivenTensors::new(&schedule.attention, inputs)?;
    let results: Vec<Result<RankMemory, SimulateError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|mut rank| {
                scope.spawn({
                    let given = &given;
                    move || run(schedule, &mut rank, given)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    });
    let mut gathered = Gathered::new();
    for (rank, memory) in schedule.ranks.iter().zip(results) {
        memory?.collect(schedule, rank, &mut gathered);
    }
    Ok(gathered)
}

/// Runs one rank of a schedule over a communicator of host memory, and returns its share of the outputs, in the order
/// of the rank's buffers, by role.
///
/// # Errors
///
/// As [`simulate`]; the errors of the communicator.
pub fn simulate_rank(
    schedule: &Schedule,
    communicator: &mut dyn Communicator,
    inputs: &Inputs,
) -> Result<Gathered, SimulateError> {
    let given = GivenTensors::new(&schedule.attention, inputs)?;
    let memory = run(schedule, communicator, &given)?;
    let rank = &schedule.ranks[communicator.rank() as usize];
    let outputs = operands(schedule.attention.get()).into_iter().filter(|o| o.output);
    Ok(outputs.filter_map(|o| Some((o.role, memory.values(rank, o.role)?.to_vec()))).collect())
}

/// The largest difference between a schedule and one attention, relative to numbers above 1, and where it is.
///
/// # Errors
///
/// As [`simulate`].
pub fn difference(schedule: &Schedule, inputs: &Inputs) -> Result<(f64, String), SimulateError> {
    let whole = &schedule.attention;
    let expected: ExactOutputs =
        if whole.get().is_backward() { backward(whole, inputs)? } else { forward(whole, inputs)? };
    let gathered = simulate(schedule, inputs)?;
    let mut worst = (0.0, String::new());
    for output in expected.iter() {
        let Some(found) = gathered.get(&output.role()) else {
            return Ok((f64::INFINITY, format!("no {}", output.role())));
        };
        for (at, (&x, &defined)) in output.values().iter().zip(output.defined()).enumerate() {
            let y = found[at];
            if defined != qkvault_reference::Defined::Value || x == y {
                continue;
            }
            let error = (x - y).abs() / x.abs().max(1.0);
            // Also a NaN, which compares with nothing, is worst.
            if error.is_nan() || error > worst.0 {
                let place = output.index_of(at);
                worst = (
                    if error.is_nan() { f64::INFINITY } else { error },
                    format!("{} {place:?}: {y} for {x}", output.role()),
                );
            }
        }
    }
    Ok(worst)
}

/// The operands of the whole attention as numbers.
struct GivenTensors<'a> {
    inputs: &'a Inputs,
    /// The O and Stats of the forward, for a backward.
    saved: BTreeMap<Role, Vec<f64>>,
}

impl<'a> GivenTensors<'a> {
    fn new(whole: &Valid, inputs: &'a Inputs) -> Result<GivenTensors<'a>, SimulateError> {
        let mut saved = BTreeMap::new();
        if whole.get().is_backward() {
            let outputs = forward(&validate(whole.get().as_forward())?, inputs)?;
            saved = outputs.iter().map(|o| (o.role(), o.values().to_vec())).collect();
        }
        Ok(GivenTensors { inputs, saved })
    }

    fn values(&self, role: Role) -> Option<Vec<f64>> {
        if let Some(saved) = self.saved.get(&role) {
            return Some(saved.clone());
        }
        let buffer = self.inputs.get(role)?;
        if matches!(role, Role::DropoutSeed | Role::DropoutOffset) {
            // Float64 has no room for all of their bits as numbers.
            return Some(vec![f64::from_bits(buffer.int(0) as u64)]);
        }
        Some((0..buffer.len()).map(|at| buffer.get(at)).collect())
    }
}

fn run(
    schedule: &Schedule,
    communicator: &mut dyn Communicator,
    given: &GivenTensors<'_>,
) -> Result<RankMemory, SimulateError> {
    agree(communicator, &Hello::for_schedule(schedule))?;
    let rank = &schedule.ranks[communicator.rank() as usize];
    let mut memory = RankMemory::new(schedule, rank, |role| given.values(role));
    steps(schedule, communicator, &LaunchNumbers::new(schedule, given.inputs), &mut memory)?;
    Ok(memory)
}

/// Runs the steps of the communicator's rank.
fn steps(
    schedule: &Schedule,
    communicator: &mut dyn Communicator,
    numbers: &LaunchNumbers<'_>,
    memory: &mut RankMemory,
) -> Result<(), SimulateError> {
    let number = communicator.rank();
    for step in &schedule.ranks[number as usize].steps {
        match step {
            RankStep::Copy { from, to, .. } => memory.copy(*from, *to),
            RankStep::Fill { piece, hidden, .. } => memory.fill(*piece, if *hidden { f64::NEG_INFINITY } else { 0.0 }),
            RankStep::Exchange { transfers } => {
                let message = |t: &crate::Transfer| {
                    let (address, bytes) = memory.bytes_of(t.piece).ok_or_else(|| SimulateError::Bind {
                        rank: number,
                        what: format!("a message that is not contiguous: {:?}", t.piece),
                    })?;
                    Ok(RankMessage { peer: t.peer, send: t.send, address, bytes })
                };
                let messages: Vec<RankMessage> = transfers.iter().map(message).collect::<Result<_, SimulateError>>()?;
                // SAFETY: each address is that of a contiguous piece inside a vector of this thread's memory, which
                // lives on and is not touched until the exchange of a host communicator returns.
                unsafe { communicator.exchange(&messages, std::ptr::null_mut())? };
            }
            RankStep::Launch(launch) => {
                launch::run(schedule, number, launch, numbers, memory)?;
            }
            RankStep::Merge { parts, rows, sink, o, stats } => {
                let rows = numbers.flags(rows).map_err(|what| SimulateError::Bind { rank: number, what })?;
                memory.merge(parts, &rows, *sink, *o, *stats);
            }
            RankStep::Sum { parts, rows, into } => {
                let rows = numbers.flags(rows).map_err(|what| SimulateError::Bind { rank: number, what })?;
                memory.sum(parts, &rows, *into);
            }
            RankStep::Keep { into, seed, offset, first, heads, below } => {
                let number = |piece: &crate::BufferBox| memory.behind(*piece)[0].to_bits() as i64;
                let (seed, offset) = (number(seed), number(offset));
                memory.keep(*into, *first, &Places { seed, offset, heads: *heads, below: *below });
            }
            RankStep::Record { .. } | RankStep::Wait { .. } => {}
        }
    }
    Ok(())
}
