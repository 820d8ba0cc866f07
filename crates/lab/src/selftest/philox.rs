//! Philox dropout masks for the self-test. cuDNN does not document which Philox number belongs to which score, so this
//! module reads the mask from a cuDNN forward whose values are rows of the identity matrix.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use qkvault_exec::{LoadedPlan, cudarc};
use qkvault_graph::{DType, Role, Valid, operand};
use qkvault_reference::{Buffer, Inputs};

use super::eight_bits;
use qkvault_cli::memory::{Failure, Memory, failed};

/// The dropout mask that a forward with these inputs draws, in f32, contiguous in (b, h_q, s_q, s_kv), with ones for
/// kept probabilities.
///
/// If the values are the identity matrix over some keys, O holds the probabilities of those keys after dropout. A
/// probability below the smallest number of O's type counts as dropped, which has no visible effect.
pub(super) fn mask(
    forward: &Valid,
    plan: &LoadedPlan,
    inputs: &Inputs,
    stream: &Arc<CudaStream>,
) -> Result<Buffer, Failure> {
    let a = forward.get();
    let [b, h_q, s_q, s_kv] = [a.batch(), a.q.heads(), a.seq().0, a.seq().1];
    let of = |role| operand(a, role).map(|o| o.tensor).ok_or_else(|| failed(format!("{role} is not an operand")));
    let (v, o) = (of(Role::V)?, of(Role::O)?);
    let width = v.dims[3];
    let at = |strides: [i64; 4], index: [i64; 4]| {
        index.iter().zip(strides).map(|(i, s)| i * s).sum::<i64>().unsigned_abs() as usize
    };
    let mut mask = Buffer::zeros(DType::F32, (b * h_q * s_q * s_kv).unsigned_abs() as usize);
    for first in (0..s_kv).step_by(width.unsigned_abs() as usize) {
        let last = s_kv.min(first + width);
        let mut inputs = inputs.clone();
        let mut values = Buffer::zeros(v.dtype, inputs.buffer(Role::V).map_err(failed)?.len());
        for (batch, head) in (0..b).flat_map(|batch| (0..v.dims[1]).map(move |head| (batch, head))) {
            for key in first..last {
                values.set(at(v.strides, [batch, head, key, key - first]), 1.0);
            }
        }
        inputs.insert(Role::V, values);
        eight_bits::philox_scales(a, &mut inputs);
        let mut memory = Memory::upload(stream, a, plan, &inputs)?;
        memory.bind(plan, &inputs, stream)?.launch(stream).map_err(failed)?;
        stream.synchronize().map_err(failed)?;
        let found = memory.download(stream, Role::O)?.ok_or_else(|| failed("the forward has no O"))?;
        for (batch, head) in (0..b).flat_map(|batch| (0..h_q).map(move |head| (batch, head))) {
            for (row, key) in (0..s_q).flat_map(|row| (first..last).map(move |key| (row, key))) {
                // Rows beyond a length are not written and hold poison.
                let kept = found.get(at(o.strides, [batch, head, row, key - first])) > 0.0;
                let index = ((batch * h_q + head) * s_q + row) * s_kv + key;
                mask.set(index.unsigned_abs() as usize, f64::from(u8::from(kept)));
            }
        }
    }
    Ok(mask)
}
