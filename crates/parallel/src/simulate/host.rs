//! One rank on the CPU with memory of a program, as a GPU's rank has it: for doors and programs without GPUs.

use std::collections::BTreeMap;

use qkvault_graph::{DType, Role, Tensor, operand};
use qkvault_reference::{Buffer, Inputs};

use super::launch::LaunchNumbers;
use super::memory::RankMemory;
use super::{SimulateError, steps};
use crate::comm::{Communicator, Hello, agree};
use crate::{RankSchedule, Schedule};

/// One rank of a schedule over a communicator of host memory. The oracle computes its launches, in float64.
#[derive(Clone, Debug)]
pub struct HostRank {
    schedule: Schedule,
    number: u32,
    /// Numbers and lengths of the whole attention.
    numbers: Inputs,
}

impl HostRank {
    /// Compares the schedule with that of the other ranks.
    ///
    /// # Errors
    ///
    /// [`SimulateError::Exchange`] for ranks that differ or do not come.
    pub fn prepare(schedule: Schedule, communicator: &mut dyn Communicator) -> Result<HostRank, SimulateError> {
        agree(communicator, &Hello::for_schedule(&schedule))?;
        let mut numbers = Inputs::new();
        numbers.insert(Role::Scale, Buffer::from_values(DType::F32, [schedule.attention.default_scale().into()]));
        Ok(HostRank { schedule, number: communicator.rank(), numbers })
    }

    /// Gives a number or the lengths (`seq_len_q`, `seq_len_kv`) of the whole attention to the runs that follow.
    pub fn set(&mut self, role: Role, numbers: Buffer) {
        self.numbers.insert(role, numbers);
    }

    /// Runs the steps with the rank's parts of all inputs, as bytes in the strides of its buffers
    /// ([`RankSchedule::buffers`]), and gives its parts of the outputs likewise. What no rank computes is NaN.
    ///
    /// # Errors
    ///
    /// [`SimulateError::Bind`] for a part that is missing or of another size; as [`super::simulate`].
    pub fn run(
        &self,
        communicator: &mut dyn Communicator,
        parts: &BTreeMap<Role, Vec<u8>>,
    ) -> Result<BTreeMap<Role, Vec<u8>>, SimulateError> {
        let mut given = BTreeMap::new();
        for (role, tensor, _) in self.operands().filter(|(.., output)| !output) {
            let needed = tensor.bytes().map_or(0, i64::unsigned_abs);
            let bytes = parts.get(&role).filter(|bytes| bytes.len() as u64 == needed);
            let wrong = || SimulateError::Bind { rank: self.number, what: format!("{role} needs {needed} bytes") };
            given.insert(role, numbers(role, &Buffer::new(tensor.dtype, bytes.ok_or_else(wrong)?.clone())?));
        }
        let mut memory = RankMemory::from_parts(self.rank(), |role| given.remove(&role));
        let numbers = LaunchNumbers::new(&self.schedule, &self.numbers);
        steps(&self.schedule, communicator, &numbers, &mut memory)?;
        let rounded = |(role, tensor, output): (Role, &Tensor, bool)| {
            let values = memory.values(self.rank(), role).filter(|_| output)?;
            Some((role, Buffer::from_values(tensor.dtype, values.iter().copied()).into_bytes()))
        };
        Ok(self.operands().filter_map(rounded).collect())
    }

    /// The operands of the rank: their tensors here, and whether a run writes them.
    fn operands(&self) -> impl Iterator<Item = (Role, &Tensor, bool)> {
        self.rank().buffers.iter().filter_map(|buffer| {
            let role = buffer.operand?;
            let output = operand(self.schedule.attention.get(), role).is_some_and(|o| o.output);
            Some((role, &buffer.tensor, output))
        })
    }

    fn rank(&self) -> &RankSchedule {
        &self.schedule.ranks[self.number as usize]
    }
}

/// A part in float64, which has no room for all bits of a seed as a number.
fn numbers(role: Role, part: &Buffer) -> Vec<f64> {
    if matches!(role, Role::DropoutSeed | Role::DropoutOffset) {
        return vec![f64::from_bits(part.int(0) as u64)];
    }
    (0..part.len()).map(|at| part.get(at)).collect()
}
