//! A launch with the oracle.

use qkvault_graph::{DType, Role, operand};
use qkvault_reference::{Buffer, Defined, Inputs, Whole, backward_part, forward};

use super::SimulateError;
use super::memory::Memory;
use crate::{Bind, Launch, Lengths, PerSequence, Schedule};

/// The numbers that the caller gives for the whole attention.
pub(super) struct Numbers<'a> {
    inputs: &'a Inputs,
    queries: Vec<i64>,
    keys: Vec<i64>,
}

impl<'a> Numbers<'a> {
    pub(super) fn new(schedule: &Schedule, inputs: &'a Inputs) -> Numbers<'a> {
        let a = schedule.attention.get();
        let side = |role: Role, most: i64| match inputs.get(role) {
            Some(buffer) => (0..buffer.len()).map(|at| buffer.int(at)).collect(),
            None => vec![most; a.batch() as usize],
        };
        Numbers { inputs, queries: side(Role::SeqLenQ, a.seq().0), keys: side(Role::SeqLenKv, a.seq().1) }
    }
}

/// Runs one launch.
pub(super) fn run(
    schedule: &Schedule,
    rank: u32,
    launch: &Launch,
    numbers: &Numbers<'_>,
    memory: &mut Memory,
) -> Result<(), SimulateError> {
    let wrong = |what: String| SimulateError::Bind { rank, what };
    let plan = &schedule.plans[launch.plan as usize];
    let a = plan.get();
    let part = match launch.slice {
        None => Lengths::default(),
        Some(slice) => slice
            .lengths(&numbers.queries, &numbers.keys)
            .map_err(|at| wrong(format!("packed sequence {at} has other numbers of queries and keys")))?,
    };
    let mut inputs = Inputs::new();
    let (mut o, mut stats) = (Vec::new(), Vec::new());
    for (role, bind) in &launch.binds {
        let (role, operand) = (*role, operand(a, *role).ok_or_else(|| wrong(format!("the plan has no {role}")))?);
        let dtype = operand.tensor.dtype;
        let buffer = match bind {
            Bind::Piece(_) if operand.output => continue,
            Bind::Piece(piece) => {
                let needed = operand.elements().unwrap_or(usize::MAX);
                let numbers = memory.behind(*piece);
                let numbers = numbers.get(..needed).ok_or_else(|| {
                    wrong(format!("{role} needs {needed} elements and its buffer has {} left", numbers.len()))
                })?;
                match role {
                    Role::O => {
                        o = numbers.to_vec();
                        continue;
                    }
                    Role::Stats => {
                        stats = numbers.to_vec();
                        continue;
                    }
                    _ => exact(dtype, numbers).ok_or_else(|| wrong(format!("{role} holds rounded numbers")))?,
                }
            }
            Bind::Given(of) => numbers.inputs.buffer(*of)?.clone(),
            Bind::Int(n) => Buffer::of(DType::I32, [f64::from(*n)]),
            Bind::Sequences(which) => Buffer::of(dtype, sequences(*which, &part, numbers)),
        };
        inputs.insert(role, buffer);
    }
    let outputs = match a.is_backward() {
        false => forward(plan, &inputs)?,
        true => backward_part(plan, &inputs, Whole { o: &o, stats: &stats })?,
    };
    for (role, bind) in &launch.binds {
        let (Bind::Piece(piece), Some(output)) = (bind, outputs.get(*role)) else { continue };
        let to = memory.behind_mut(*piece);
        for (at, (&x, &defined)) in output.values().iter().zip(output.defined()).enumerate() {
            match defined {
                Defined::Value => to[at] = x,
                Defined::Undefined => to[at] = f64::NAN,
                Defined::Outside => {}
            }
        }
    }
    Ok(())
}

/// The numbers in an element type; `None` if one of them is rounded by it.
fn exact(dtype: DType, numbers: &[f64]) -> Option<Buffer> {
    let buffer = Buffer::of(dtype, numbers.iter().copied());
    let same = |(at, x): (usize, &f64)| x.is_nan() || buffer.get(at) == *x;
    numbers.iter().enumerate().all(same).then_some(buffer)
}

fn sequences(which: PerSequence, part: &Lengths, numbers: &Numbers<'_>) -> Vec<f64> {
    let floats = |list: &[i64], factor: i64| list.iter().map(|&n| (n * factor) as f64).collect();
    match which {
        PerSequence::Queries => floats(&part.queries, 1),
        PerSequence::Keys => floats(&part.keys, 1),
        PerSequence::FirstQuery => floats(&part.first_query, 1),
        PerSequence::AllQueries => floats(&numbers.queries, 1),
        PerSequence::AllKeys => floats(&numbers.keys, 1),
        PerSequence::QueryOffsets(row) => floats(&part.query_rows, row),
        PerSequence::KeyOffsets(row) => floats(&part.key_rows, row),
    }
}
