//! A launch with the oracle.

use qkvault_graph::{DType, Operand, Role, Storage, operand};
use qkvault_reference::{Buffer, Defined, Inputs, Whole, backward_part, forward};

use super::SimulateError;
use super::memory::RankMemory;
use crate::{Bind, BufferBox, Counted, PartLengths, PerSequence, PlanLaunch, RankStep, Schedule, Slice};

/// The numbers that the caller gives for the whole attention.
pub(super) struct LaunchNumbers<'a> {
    inputs: &'a Inputs,
    queries: Vec<i64>,
    keys: Vec<i64>,
}

impl<'a> LaunchNumbers<'a> {
    pub(super) fn new(schedule: &Schedule, inputs: &'a Inputs) -> LaunchNumbers<'a> {
        let a = schedule.attention.get();
        let side = |role: Role, most: i64| match inputs.get(role) {
            Some(buffer) => (0..buffer.len()).map(|at| buffer.int(at)).collect(),
            None => vec![most; a.batch() as usize],
        };
        LaunchNumbers { inputs, queries: side(Role::SeqLenQ, a.seq().0), keys: side(Role::SeqLenKv, a.seq().1) }
    }

    fn by_sequence(&self, which: PerSequence, slice: Option<Slice>) -> Result<Vec<i64>, String> {
        let wrong = |at| format!("packed sequence {at} has other numbers of queries and keys");
        which.numbers(slice, &self.queries, &self.keys).map_err(wrong)
    }

    /// Which rows of parts count, one list for each part.
    pub(super) fn flags(&self, rows: &[Counted]) -> Result<Vec<Vec<i64>>, String> {
        rows.iter().map(|counted| self.by_sequence(PerSequence::Rows(*counted), None)).collect()
    }
}

/// Runs one launch.
pub(super) fn run(
    schedule: &Schedule,
    rank: u32,
    launch: &PlanLaunch,
    numbers: &LaunchNumbers<'_>,
    memory: &mut RankMemory,
) -> Result<(), SimulateError> {
    let wrong = |what: String| SimulateError::Bind { rank, what };
    let plan = &schedule.plans[launch.plan as usize];
    let a = plan.get();
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
            Bind::Int(n) => Buffer::from_values(DType::I32, [f64::from(*n)]),
            Bind::Sequences(which) => {
                let list = numbers.by_sequence(*which, launch.slice).map_err(wrong)?;
                Buffer::from_values(dtype, list.into_iter().map(|n| n as f64))
            }
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
        // Over dealt keys every result is one; it may be merged elsewhere, or from a copy.
        let dealt = matches!(launch.slice, Some(Slice::Dealt { .. }));
        if (dealt || schedule.is_partial(rank, *role, *piece))
            && let Some(slice) = launch.slice.filter(|slice| *slice != Slice::Whole)
        {
            let part = slice.lengths(&numbers.queries, &numbers.keys);
            let part = part.map_err(|at| wrong(format!("the lengths of sequence {at}")))?;
            leave_empty(output.operand(), &part, to);
        }
    }
    Ok(())
}

impl Schedule {
    /// Whether a launch writes a partial result there, which a merge or a sum puts together with others.
    fn is_partial(&self, rank: u32, role: Role, piece: BufferBox) -> bool {
        let steps = &self.ranks[rank as usize].steps;
        let reads = |step: &RankStep| match step {
            RankStep::Merge { parts, .. } => {
                parts.iter().any(|(o, stats)| [o.buffer, stats.buffer].contains(&piece.buffer))
            }
            // Gradients of keys are sent, and added up elsewhere.
            RankStep::Sum { parts, .. } => {
                matches!(role, Role::DK | Role::DV) || parts.iter().any(|p| p.buffer == piece.buffer)
            }
            _ => false,
        };
        steps.iter().any(reads)
    }
}

/// What an H200 leaves of a sequence without keys, or of the keys of one without queries: numbers that nobody wrote.
fn leave_empty(of: &Operand, part: &PartLengths, to: &mut [f64]) {
    let by_key = match of.role {
        Role::O | Role::Stats | Role::DQ => false,
        Role::DK | Role::DV => true,
        _ => return,
    };
    let t = of.tensor;
    let varlen = matches!(t.storage, Storage::Varlen { .. });
    let (rows, others) = if by_key { (&part.keys, &part.queries) } else { (&part.queries, &part.keys) };
    let starts = if by_key { &part.key_rows } else { &part.query_rows };
    for (sequence, (&rows, _)) in rows.iter().zip(others).enumerate().filter(|(_, (_, others))| **others == 0) {
        let (batch, first) = if varlen { (0, starts[sequence]) } else { (sequence as i64, 0) };
        for (head, row) in (0..t.dims[1]).flat_map(|head| (first..first + rows).map(move |row| (head, row))) {
            let at = batch * t.strides[0] + head * t.strides[1] + row * t.strides[2];
            to[at as usize..][..t.dims[3] as usize].fill(f64::NAN);
        }
    }
}

/// The numbers in an element type; `None` if one of them is rounded by it.
fn exact(dtype: DType, numbers: &[f64]) -> Option<Buffer> {
    let buffer = Buffer::from_values(dtype, numbers.iter().copied());
    let same = |(at, x): (usize, &f64)| x.is_nan() || buffer.get(at) == *x;
    numbers.iter().enumerate().all(same).then_some(buffer)
}
