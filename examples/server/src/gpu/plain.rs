//! Plain attention, to compare with: keys and values are copied out of the pages, scores are a matrix product by
//! cuBLASLt in float32, a kernel makes probabilities of them, and another product weighs the values.
//!
//! It is what a framework does without a fused kernel, for grouped queries without repeated keys. Decodes are one
//! product over all sequences, padded to the next power of two of the longest; chunks run one sequence after another.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use half::bf16;

use super::kernels::{Address, Group, Kernels};
use super::memory::{Buffers, Layer, address, unset};
use super::products::{Into, Products, Second, Sizes};
use crate::Failure;
use crate::config::{Limits, Shape};
use crate::step::Step;

/// The least keys that sequences are padded to.
const LEAST: usize = 256;

/// Rows of a step with as many in each sequence: the first row, the first sequence, and the sizes.
#[derive(Clone, Copy)]
struct Run {
    row: usize,
    sequence: usize,
    sequences: usize,
    rows: usize,
    room: usize,
}

pub(super) struct Plain {
    keys: CudaSlice<bf16>,
    values: CudaSlice<bf16>,
    turned: CudaSlice<bf16>,
    scores: CudaSlice<f32>,
    probabilities: CudaSlice<bf16>,
    weighed: CudaSlice<bf16>,
    lengths: CudaSlice<i32>,
    tables: CudaSlice<i32>,
    width: usize,
    runs: Vec<Run>,
    shape: Shape,
    limits: Limits,
}

impl Plain {
    pub(super) fn new(shape: &Shape, limits: &Limits, stream: &Arc<CudaStream>) -> Result<Plain, Failure> {
        let room = room(limits.context);
        let heads = shape.heads * shape.head_dim;
        let rows = limits.batch.max(limits.chunk);
        let pool = limits.batch * room * shape.kv_heads * shape.head_dim;
        let width = limits.pages_of(limits.context);
        Ok(Plain {
            keys: unset(stream, pool)?,
            values: unset(stream, pool)?,
            turned: unset(stream, rows * heads)?,
            scores: unset(stream, rows * shape.heads * room)?,
            probabilities: unset(stream, rows * shape.heads * room)?,
            weighed: unset(stream, rows * heads)?,
            lengths: stream.alloc_zeros(limits.batch)?,
            tables: stream.alloc_zeros(limits.batch * width)?,
            width,
            runs: Vec::new(),
            shape: *shape,
            limits: *limits,
        })
    }

    /// The rooms that decodes are padded to.
    pub(super) fn rooms(&self) -> Vec<usize> {
        std::iter::successors(Some(LEAST), |room| Some(2 * room))
            .take_while(|&least| least <= room(self.limits.context))
            .collect()
    }

    /// The room of a decode over so many keys.
    pub(super) fn room_of(keys: usize) -> usize {
        room(keys)
    }

    /// Copies the lengths and tables of a step to the GPU.
    pub(super) fn update(&mut self, step: &Step, stream: &Arc<CudaStream>) -> Result<(), Failure> {
        let mut tables = vec![0; step.tables.len() * self.width];
        for (line, table) in tables.chunks_exact_mut(self.width).zip(&step.tables) {
            let used = table.len().min(self.width);
            line[..used].copy_from_slice(&table[..used]);
        }
        // Sequences of a padded decode that the step does not have are without keys.
        let mut lengths = vec![0; self.limits.batch];
        lengths[..step.keys.len()].copy_from_slice(&step.keys);
        stream.memcpy_htod(&lengths, &mut self.lengths)?;
        stream.memcpy_htod(&tables, &mut self.tables.slice_mut(..tables.len()))?;
        // The copies read memory of this function.
        stream.synchronize()?;
        self.runs.clear();
        let longest = |keys: &[i32]| room(keys.iter().copied().max().unwrap_or(1).unsigned_abs() as usize);
        if let Some(part) = step.decode() {
            let room = longest(part.keys);
            self.runs.push(Run { row: 0, sequence: 0, sequences: step.decodes, rows: 1, room });
        }
        let mut row = step.decodes;
        for (at, &rows) in step.chunks.iter().enumerate() {
            let (sequence, rows) = (step.decodes + at, rows.unsigned_abs() as usize);
            let room = longest(&step.keys[sequence..=sequence]);
            self.runs.push(Run { row, sequence, sequences: 1, rows, room });
            row += rows;
        }
        Ok(())
    }

    /// Chooses a decode of so many sequences in a room, for a capture. The GPU's lengths stay as they are.
    pub(super) fn choose(&mut self, sequences: usize, room: usize) {
        self.runs = vec![Run { row: 0, sequence: 0, sequences, rows: 1, room }];
    }

    /// Makes every sequence one without keys.
    pub(super) fn idle(&mut self, stream: &Arc<CudaStream>) -> Result<(), Failure> {
        Ok(stream.memset_zeros(&mut self.lengths)?)
    }

    /// Queues the attention of a layer.
    ///
    /// # Safety
    ///
    /// A captured launch is replayed only while everything in it lives, and in the order of one stream.
    pub(super) unsafe fn launch(
        &self,
        layer: &Layer,
        buffers: &Buffers,
        (kernels, products): (&Kernels, &mut Products),
        stream: &Arc<CudaStream>,
    ) -> Result<(), Failure> {
        let shape = &self.shape;
        let at = |slice: &CudaSlice<bf16>| address(slice, stream);
        let group = shape.heads / shape.kv_heads;
        for &Run { row, sequence, sequences, rows, room } in &self.runs {
            let of = Group {
                sequences,
                rows,
                room,
                lengths: address(&self.lengths, stream) + 4 * sequence as Address,
                tables: address(&self.tables, stream) + 4 * (sequence * self.width) as Address,
                width: self.width,
                page: self.limits.page,
            };
            let from = 2 * (row * shape.heads * shape.head_dim) as Address;
            let (rows, batch) = (rows * group, sequences * shape.kv_heads);
            let scores =
                Sizes { rows, columns: room, inner: shape.head_dim, batch, second: Second::Rows, into: Into::Float };
            let weighed =
                Sizes { rows, columns: shape.head_dim, inner: room, batch, second: Second::Columns, into: Into::Half };
            // SAFETY: the buffers have room for every sequence of the limits, padded to the room of the context; tables
            // name pages of the pool, and lengths are within the tables: the scheduler made them.
            unsafe {
                kernels.gather((at(&self.keys), at(&self.values)), (at(&layer.keys), at(&layer.values)), &of, shape)?;
                kernels.turn(at(&self.turned), at(&buffers.q) + from, &of, shape, false)?;
                products.queue(scores, address(&self.scores, stream), at(&self.turned), at(&self.keys))?;
                kernels.softmax(at(&self.probabilities), address(&self.scores, stream), &of, shape)?;
                products.queue(weighed, at(&self.weighed), at(&self.probabilities), at(&self.values))?;
                kernels.turn(at(&buffers.o) + from, at(&self.weighed), &of, shape, true)?;
            }
        }
        Ok(())
    }
}

/// The keys that sequences of so many are padded to.
fn room(keys: usize) -> usize {
    keys.next_power_of_two().max(LEAST)
}
