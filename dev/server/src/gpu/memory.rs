//! The model's memory on the GPU: weights, pages, and the buffers of a step.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr as _, DeviceRepr, PinnedHostSlice};
use half::bf16;

use super::kernels::{GpuAddress, GpuKernels, StepInputs};
use crate::ServerError;
use crate::config::{ModelShape, ServerLimits};
use crate::step::{ModelStep, Picked};
use crate::weights::WeightTensor;

/// The address of a slice. cudarc's event tracking is off and there is one stream, so nothing has to be waited for.
pub(super) fn address<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> GpuAddress {
    slice.device_ptr(stream).0
}

/// Memory that is written before it is read.
pub(super) fn unset<T: DeviceRepr>(stream: &Arc<CudaStream>, count: usize) -> Result<CudaSlice<T>, ServerError> {
    // SAFETY: kernels write it before others read it, and every pattern of bits is a number.
    Ok(unsafe { stream.alloc::<T>(count) }?)
}

/// A layer's weights, and its pages of keys and values.
pub(super) struct GpuLayer {
    pub(super) attention_norm: CudaSlice<bf16>,
    pub(super) qkv: CudaSlice<bf16>,
    pub(super) out: CudaSlice<bf16>,
    pub(super) feed_norm: CudaSlice<bf16>,
    pub(super) gate_up: CudaSlice<bf16>,
    pub(super) down: CudaSlice<bf16>,
    pub(super) keys: CudaSlice<bf16>,
    pub(super) values: CudaSlice<bf16>,
}

/// The weights.
pub(super) struct Weights {
    pub(super) embedding: CudaSlice<bf16>,
    pub(super) layers: Vec<GpuLayer>,
    pub(super) last_norm: CudaSlice<bf16>,
    pub(super) head: CudaSlice<bf16>,
}

impl Weights {
    /// Fills the weights with their random numbers, and the pages with zeros: rows of a page in use must be finite.
    pub(super) fn new(
        (shape, limits): (&ModelShape, &ServerLimits),
        seed: u32,
        kernels: &GpuKernels,
        stream: &Arc<CudaStream>,
    ) -> Result<Weights, ServerError> {
        let tensor = |tensor: WeightTensor| -> Result<CudaSlice<bf16>, ServerError> {
            let fill = tensor.fill(shape, seed);
            let memory = unset(stream, fill.count)?;
            // SAFETY: the memory has as many numbers as are filled.
            unsafe { kernels.fill(address(&memory, stream), &fill) }?;
            Ok(memory)
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
                    keys: stream.alloc_zeros(pool)?,
                    values: stream.alloc_zeros(pool)?,
                })
            })
            .collect::<Result<_, _>>()?;
        let [embedding, last_norm, head] =
            [WeightTensor::Embedding, WeightTensor::LastNorm, WeightTensor::Head].map(tensor);
        Ok(Weights { embedding: embedding?, layers, last_norm: last_norm?, head: head? })
    }
}

/// Rows of a step that is not captured are a multiple of this.
const GRAIN: usize = 16;

/// The buffers of a step. A step's rows are padded to those of its graph; a decode's plan may read and write more rows
/// than a step has, so there are as many again as sequences.
pub(super) struct StepBuffers {
    pub(super) x: CudaSlice<bf16>,
    pub(super) normed: CudaSlice<bf16>,
    pub(super) qkv: CudaSlice<bf16>,
    pub(super) q: CudaSlice<bf16>,
    pub(super) o: CudaSlice<bf16>,
    pub(super) gate_up: CudaSlice<bf16>,
    pub(super) inner: CudaSlice<bf16>,
    pub(super) logits: CudaSlice<f32>,
    /// Token and gap of each pick.
    pub(super) out: CudaSlice<i32>,
    /// Three numbers for each row, then four for each pick.
    inputs: CudaSlice<i32>,
    host_inputs: PinnedHostSlice<i32>,
    host_out: PinnedHostSlice<i32>,
    rows: usize,
    picks: usize,
}

impl StepBuffers {
    pub(super) fn new(
        shape: &ModelShape,
        limits: &ServerLimits,
        stream: &Arc<CudaStream>,
    ) -> Result<StepBuffers, ServerError> {
        let (rows, picks) = (limits.tokens + limits.batch, limits.batch);
        let heads = shape.heads * shape.head_dim;
        let zeros = |columns: usize| stream.alloc_zeros::<bf16>(rows * columns);
        let words = 3 * rows + 4 * picks;
        // SAFETY: both are written before they are read: the inputs by `give`, the outputs by the copy of `take`.
        let [host_inputs, host_out] =
            unsafe { [stream.context().alloc_pinned(words), stream.context().alloc_pinned_with_flags(2 * picks, 0)] };
        Ok(StepBuffers {
            x: zeros(shape.hidden)?,
            normed: zeros(shape.hidden)?,
            qkv: zeros(shape.qkv())?,
            q: zeros(heads)?,
            o: zeros(heads)?,
            gate_up: zeros(2 * shape.inner)?,
            inner: zeros(shape.inner)?,
            logits: unset(stream, picks * shape.vocab)?,
            out: stream.alloc_zeros(2 * picks)?,
            inputs: stream.alloc_zeros(words)?,
            host_inputs: host_inputs?,
            host_out: host_out?,
            rows,
            picks,
        })
    }

    /// Where the inputs of a step are.
    pub(super) fn inputs(&self, stream: &CudaStream) -> StepInputs {
        let at = |words: usize| address(&self.inputs, stream) + 4 * words as u64;
        let of_pick = |which: usize| at(3 * self.rows + which * self.picks);
        StepInputs {
            tokens: at(0),
            positions: at(self.rows),
            slots: at(2 * self.rows),
            pick_rows: of_pick(0),
            temperatures: of_pick(1),
            seeds: of_pick(2),
            targets: of_pick(3),
        }
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
        stream.memcpy_htod(&self.host_inputs, &mut self.inputs)?;
        Ok(())
    }

    /// Waits for the step, and reads what its picks gave.
    pub(super) fn take(&mut self, picks: usize, stream: &Arc<CudaStream>) -> Result<Vec<Picked>, ServerError> {
        stream.memcpy_dtoh(&self.out, &mut self.host_out)?;
        stream.synchronize()?;
        let pairs = self.host_out.as_slice()?.chunks_exact(2).take(picks);
        Ok(pairs.map(|pair| Picked { token: pair[0] as u32, gap: f32::from_bits(pair[1] as u32) }).collect())
    }
}
