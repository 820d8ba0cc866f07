//! The model's memory on the GPU: weights, pages, and the buffers of a step.

use std::sync::Arc;

use cudarc::driver::{CudaStream, PinnedHostSlice};
use half::bf16;
use qkvault::exec::{Arena, Launches, Slot};

use super::kernels::GpuKernels;
use crate::ServerError;
use crate::config::{ModelShape, ServerLimits};
use crate::step::{ModelStep, Picked};
use crate::weights::WeightTensor;

/// A layer's weights, and its pages of keys and values.
pub(super) struct GpuLayer {
    pub(super) attention_norm: Slot<bf16>,
    pub(super) qkv: Slot<bf16>,
    pub(super) out: Slot<bf16>,
    pub(super) feed_norm: Slot<bf16>,
    pub(super) gate_up: Slot<bf16>,
    pub(super) down: Slot<bf16>,
    pub(super) keys: Slot<bf16>,
    pub(super) values: Slot<bf16>,
}

/// The weights.
pub(super) struct Weights {
    pub(super) embedding: Slot<bf16>,
    pub(super) layers: Vec<GpuLayer>,
    pub(super) last_norm: Slot<bf16>,
    pub(super) head: Slot<bf16>,
}

impl Weights {
    /// Fills the weights with their random numbers, and the pages with zeros: rows of a page in use must be finite.
    pub(super) fn new(
        (shape, limits): (&ModelShape, &ServerLimits),
        seed: u32,
        kernels: &GpuKernels,
        (stream, arena): (&Arc<CudaStream>, &Arena),
    ) -> Result<Weights, ServerError> {
        let mut filled = Launches::new(stream, arena);
        let mut tensor = |tensor: WeightTensor| -> Result<Slot<bf16>, ServerError> {
            let fill = tensor.fill(shape, seed);
            let slot = arena.zeros(fill.count)?;
            kernels.fill(&mut filled, &slot, &fill)?;
            Ok(slot)
        };
        let pool = limits.pages * limits.page * shape.kv_heads * shape.head_dim;
        let layers = (0..shape.layers)
            .map(|layer| -> Result<GpuLayer, ServerError> {
                Ok(GpuLayer {
                    attention_norm: tensor(WeightTensor::AttentionNorm(layer))?,
                    qkv: tensor(WeightTensor::Qkv(layer))?,
                    out: tensor(WeightTensor::Out(layer))?,
                    feed_norm: tensor(WeightTensor::FeedNorm(layer))?,
                    gate_up: tensor(WeightTensor::GateUp(layer))?,
                    down: tensor(WeightTensor::Down(layer))?,
                    keys: arena.zeros(pool)?,
                    values: arena.zeros(pool)?,
                })
            })
            .collect::<Result<_, _>>()?;
        let [embedding, last_norm, head] =
            [WeightTensor::Embedding, WeightTensor::LastNorm, WeightTensor::Head].map(tensor);
        filled.run()?;
        Ok(Weights { embedding: embedding?, layers, last_norm: last_norm?, head: head? })
    }
}

/// Rows of a step that is not captured are a multiple of this.
const GRAIN: usize = 16;

/// What the rows of a step are, on the GPU: parts of one slot, so that a step comes by one copy.
pub(super) struct StepInputs {
    pub(super) tokens: Slot<i32>,
    pub(super) positions: Slot<i32>,
    pub(super) slots: Slot<i32>,
    pub(super) pick_rows: Slot<i32>,
    /// The bits of float32 numbers.
    pub(super) temperatures: Slot<i32>,
    pub(super) seeds: Slot<i32>,
    pub(super) targets: Slot<i32>,
}

/// The buffers of a step. A step's rows are padded to those of its graph; a decode's plan may read and write more rows
/// than a step has, so there are as many again as sequences.
pub(super) struct StepBuffers {
    pub(super) x: Slot<bf16>,
    pub(super) normed: Slot<bf16>,
    pub(super) qkv: Slot<bf16>,
    pub(super) q: Slot<bf16>,
    pub(super) o: Slot<bf16>,
    pub(super) gate_up: Slot<bf16>,
    pub(super) inner: Slot<bf16>,
    pub(super) logits: Slot<f32>,
    /// Token and gap of each pick.
    pub(super) out: Slot<i32>,
    pub(super) inputs: StepInputs,
    /// Three numbers for each row, then four for each pick.
    words: Slot<i32>,
    host_inputs: PinnedHostSlice<i32>,
    host_out: PinnedHostSlice<i32>,
    rows: usize,
    picks: usize,
}

impl StepBuffers {
    pub(super) fn new(shape: &ModelShape, limits: &ServerLimits, arena: &Arena) -> Result<StepBuffers, ServerError> {
        // Multiples of four numbers, so that every part of the inputs begins at a multiple of 16 bytes.
        // Products of fixed rows divide them.
        let parts = if limits.invariant { 64 } else { 4 };
        let rows = (limits.tokens + limits.batch).next_multiple_of(parts);
        let picks = limits.batch.next_multiple_of(parts);
        let heads = shape.heads * shape.head_dim;
        let zeros = |columns: usize| arena.zeros::<bf16>(rows * columns);
        let words = arena.zeros(3 * rows + 4 * picks)?;
        let of_rows = |which: usize| words.part(which * rows..(which + 1) * rows);
        let of_picks = |which: usize| words.part(3 * rows + which * picks..3 * rows + (which + 1) * picks);
        let inputs = StepInputs {
            tokens: of_rows(0)?,
            positions: of_rows(1)?,
            slots: of_rows(2)?,
            pick_rows: of_picks(0)?,
            temperatures: of_picks(1)?,
            seeds: of_picks(2)?,
            targets: of_picks(3)?,
        };
        Ok(StepBuffers {
            x: zeros(shape.hidden)?,
            normed: zeros(shape.hidden)?,
            qkv: zeros(shape.qkv())?,
            q: zeros(heads)?,
            o: zeros(heads)?,
            gate_up: zeros(2 * shape.inner)?,
            inner: zeros(shape.inner)?,
            logits: arena.zeros(picks * shape.vocab)?,
            out: arena.zeros(2 * picks)?,
            inputs,
            host_inputs: arena.pinned(words.len())?,
            host_out: arena.pinned(2 * picks)?,
            words,
            rows,
            picks,
        })
    }

    /// The rows and picks that a step is padded to: multiples of [`GRAIN`], so that products have few sizes.
    pub(super) fn padded(&self, step: &ModelStep) -> (usize, usize) {
        let padded = |count: usize, most: usize| count.next_multiple_of(GRAIN).min(most);
        (padded(step.rows(), self.rows), padded(step.picks.len(), self.picks))
    }

    /// Copies a step to the GPU, padded to so many rows and picks: rows of token 0 without a slot.
    pub(super) fn give(
        &mut self,
        step: &ModelStep,
        (rows, picks): (usize, usize),
        stream: &Arc<CudaStream>,
    ) -> Result<(), ServerError> {
        if rows > self.rows || picks > self.picks || step.rows() > rows || step.picks.len() > picks {
            return Err(format!("a step of {rows} rows and {picks} picks is larger than the buffers").into());
        }
        let words = self.host_inputs.as_mut_slice()?;
        let (of_rows, of_picks) = words.split_at_mut(3 * self.rows);
        let each = [(&step.tokens, 0), (&step.positions, 0), (&step.slots, -1)];
        for (part, (numbers, padding)) in of_rows.chunks_exact_mut(self.rows).zip(each) {
            part[..numbers.len()].copy_from_slice(numbers);
            part[numbers.len()..rows].fill(padding);
        }
        for (at, part) in of_picks.chunks_exact_mut(self.picks).enumerate() {
            for (to, pick) in part.iter_mut().zip(&step.picks) {
                *to = match at {
                    0 => pick.row,
                    1 => pick.temperature.to_bits() as i32,
                    2 => pick.seed as i32,
                    _ => pick.target,
                };
            }
            part[step.picks.len()..picks].fill(if at == 3 { -1 } else { 0 });
        }
        self.words.with(stream, |mut words| Ok(stream.memcpy_htod(&self.host_inputs, &mut words)?))
    }

    /// Waits for the step, and reads what its picks gave.
    pub(super) fn take(&mut self, picks: usize, stream: &Arc<CudaStream>) -> Result<Vec<Picked>, ServerError> {
        let StepBuffers { out, host_out, .. } = self;
        out.with(stream, |out| Ok::<_, ServerError>(stream.memcpy_dtoh(&out, host_out)?))?;
        stream.synchronize()?;
        let pairs = self.host_out.as_slice()?.chunks_exact(2).take(picks);
        Ok(pairs.map(|pair| Picked { token: pair[0] as u32, gap: f32::from_bits(pair[1] as u32) }).collect())
    }
}
