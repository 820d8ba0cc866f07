//! The memory and the numbers of a rank: operands of the caller's or its own, lengths of sequences.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, result};
use qkvault_exec::raw::DeviceBuffer;
use qkvault_exec::{Number, cudarc};
use qkvault_graph::{DType, Role};

use super::RunError;
use super::prepare::Acts;
use super::rank::GpuRank;

/// An operand that a rank needs memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperandBuffer {
    /// Its role in the whole attention.
    pub role: Role,
    /// Bytes of the rank's part, in the strides of its buffer ([`crate::RankSchedule::buffers`]).
    pub bytes: u64,
    /// Whether a run writes it.
    pub output: bool,
}

impl GpuRank {
    /// The operands that need memory on this rank.
    pub fn operands(&self) -> impl Iterator<Item = OperandBuffer> + '_ {
        self.buffers.iter().zip(&self.outputs).filter_map(|(buffer, &output)| {
            let bytes = buffer.tensor.bytes().map_or(0, i64::unsigned_abs);
            Some(OperandBuffer { role: buffer.operand?, bytes, output })
        })
    }

    /// Bytes of the rank's own memory: gathered keys and values, parts, scratch memory of launches.
    #[must_use]
    pub fn scratch(&self) -> u64 {
        self.acts.layout.bytes
    }

    /// Gives a number of the whole attention, such as a scalar of its score modification. The softmax scale is one over
    /// the root of the head dim unless it is given.
    pub fn set_number(&mut self, role: Role, number: Number) {
        self.numbers.insert(role, number);
        self.arguments.clear();
    }

    /// Sets the lengths of the whole sequences for the runs that follow, also for graphs that were captured. It waits
    /// for work of the last run.
    ///
    /// # Errors
    ///
    /// [`RunError::Lengths`] for another number of sequences, longer ones than the attention has room for, or packed
    /// sequences whose numbers of queries and keys differ under a band; [`RunError::Driver`].
    pub fn set_lengths(&mut self, queries: &[i64], keys: &[i64]) -> Result<(), RunError> {
        let batch = self.batch;
        if queries.len() != batch || keys.len() != batch {
            let what = format!("{} query and {} key lengths for {batch} sequences", queries.len(), keys.len());
            return Err(RunError::Lengths { what });
        }
        let [(most_q, most_k), (all_q, all_k)] = self.most;
        for (what, list, most, all) in [("query", queries, most_q, all_q), ("key", keys, most_k, all_k)] {
            // Kernels follow lengths into memory.
            let wrong = list.iter().find(|n| !(0..=most).contains(*n));
            let sum = list.iter().fold(0_i64, |sum, n| sum.saturating_add(*n));
            if wrong.is_some() || sum > all {
                let what =
                    format!("{what} lengths {list:?}: a sequence has 0 to {most}, and all together at most {all}");
                return Err(RunError::Lengths { what });
            }
        }
        let Acts { layout, .. } = &self.acts;
        if let Some(last) = &self.last {
            last.synchronize().map_err(RunError::driver("end the last run"))?;
        }
        for sequences in &layout.sequences {
            let list = sequences.which.numbers(sequences.slice, queries, keys).map_err(|n| RunError::Lengths {
                what: format!("sequence {n} has {} queries and {} keys; give equal ones", queries[n], keys[n]),
            })?;
            let bytes: Vec<u8> = match sequences.dtype {
                DType::I64 => list.iter().flat_map(|n| n.to_ne_bytes()).collect(),
                DType::U8 => list.iter().map(|n| *n as u8).collect(),
                DType::F32 => list.iter().flat_map(|n| (*n as f32).to_ne_bytes()).collect(),
                _ => list.iter().flat_map(|n| (*n as i32).to_ne_bytes()).collect(),
            };
            let bytes = &bytes[..bytes.len().min(sequences.bytes as usize)];
            let to: CUdeviceptr = self.address + sequences.offset;
            self.context.bind_to_thread().map_err(RunError::driver("make the context current"))?;
            // SAFETY: a place of the block for so many bytes; the last run has ended.
            unsafe { result::memcpy_htod_async(to, bytes, self.streams.exchange.cu_stream()) }
                .map_err(RunError::driver("copy the lengths of sequences"))?;
        }
        self.streams.exchange.synchronize().map_err(RunError::driver("copy the lengths of sequences"))?;
        self.has_lengths = true;
        Ok(())
    }

    /// Binds memory of the rank's GPU to operands. What is not named keeps its memory.
    ///
    /// # Safety
    ///
    /// The memory stays valid, and nothing else writes it, and nothing reads outputs, while a run or a graph that was
    /// captured uses it: until other memory is bound and the last run has ended.
    ///
    /// # Errors
    ///
    /// [`RunError::Operand`] for a role that this rank has no buffer for, or too few bytes.
    pub unsafe fn bind(&mut self, operands: &[(Role, DeviceBuffer)]) -> Result<(), RunError> {
        for (role, memory) in operands {
            let found = self.buffers.iter().position(|b| b.operand == Some(*role));
            let needed = |at: usize| self.buffers[at].tensor.bytes().map_or(0, i64::unsigned_abs);
            match found {
                Some(at) if memory.bytes >= needed(at) => self.bound[at] = *memory,
                Some(at) => return Err(RunError::Operand { role: *role, given: memory.bytes, needed: needed(at) }),
                None => return Err(RunError::Operand { role: *role, given: memory.bytes, needed: 0 }),
            }
        }
        self.arguments.clear();
        Ok(())
    }

    /// Allocates memory for all operands that have none yet: zeros, and ALiBi's slopes where the description says them.
    ///
    /// # Errors
    ///
    /// [`RunError::Driver`] if there is not enough memory.
    pub fn allocate(&mut self) -> Result<(), RunError> {
        let missing: Vec<OperandBuffer> =
            self.operands().filter(|o| self.memory(o.role).is_none_or(|m| m.address == 0)).collect();
        for OperandBuffer { role, bytes, .. } in missing {
            // Kernels read 16-bit biases two at a time.
            let slice = self.streams.exchange.alloc_zeros::<u8>(bytes as usize + 4);
            let slice = slice.map_err(RunError::driver("allocate an operand"))?;
            let memory = DeviceBuffer { address: address(&slice, &self.streams.exchange), bytes: bytes + 4 };
            self.own.insert(role, slice);
            // SAFETY: the rank keeps the memory, and gives it to nobody while it runs.
            unsafe { self.bind(&[(role, memory)])? };
            let slopes = self.slopes.iter().find(|(of, _)| *of == role).map(|(_, bytes)| bytes.clone());
            if let Some(bytes) = slopes {
                self.write(role, &bytes)?;
            }
        }
        self.streams.exchange.synchronize().map_err(RunError::driver("allocate operands"))
    }

    /// The memory that is bound to an operand.
    #[must_use]
    pub fn memory(&self, role: Role) -> Option<DeviceBuffer> {
        let at = self.buffers.iter().position(|b| b.operand == Some(role))?;
        Some(self.bound[at])
    }

    /// Writes an operand's memory, from its start on, and waits until that is done. For whole runs of a program bind
    /// memory of your own.
    ///
    /// # Errors
    ///
    /// [`RunError::Operand`] for an operand without memory for so many bytes; [`RunError::Driver`].
    pub fn write(&mut self, role: Role, bytes: &[u8]) -> Result<(), RunError> {
        let memory = self.sized(role, bytes.len() as u64)?;
        // SAFETY: the memory has so many bytes, and the last run has ended.
        unsafe { result::memcpy_htod_async(memory.address, bytes, self.streams.exchange.cu_stream()) }
            .map_err(RunError::driver("write an operand"))?;
        self.streams.exchange.synchronize().map_err(RunError::driver("write an operand"))
    }

    /// Reads an operand's memory, when the last run has ended.
    ///
    /// # Errors
    ///
    /// As [`GpuRank::write`].
    pub fn read(&self, role: Role) -> Result<Vec<u8>, RunError> {
        let bytes = self.operands().find(|o| o.role == role).map_or(0, |o| o.bytes);
        let memory = self.sized(role, bytes)?;
        let mut host = vec![0_u8; bytes as usize];
        // SAFETY: the memory has so many bytes, and the last run has ended.
        unsafe { result::memcpy_dtoh_async(&mut host, memory.address, self.streams.exchange.cu_stream()) }
            .map_err(RunError::driver("read an operand"))?;
        self.streams.exchange.synchronize().map_err(RunError::driver("read an operand"))?;
        Ok(host)
    }

    fn sized(&self, role: Role, needed: u64) -> Result<DeviceBuffer, RunError> {
        let memory = self.memory(role).unwrap_or_default();
        if memory.bytes < needed || memory.address == 0 || needed == 0 {
            return Err(RunError::Operand { role, given: memory.bytes, needed });
        }
        if let Some(last) = &self.last {
            last.synchronize().map_err(RunError::driver("end the last run"))?;
        }
        self.context.bind_to_thread().map_err(RunError::driver("make the context current"))?;
        Ok(memory)
    }
}

/// The address of memory that only its owner uses.
pub(super) fn address(slice: &CudaSlice<u8>, stream: &Arc<CudaStream>) -> u64 {
    let (address, _in_order) = slice.device_ptr(stream);
    address
}
