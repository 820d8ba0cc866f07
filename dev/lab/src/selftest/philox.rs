//! Philox dropout masks for the self-test. cuDNN does not document which Philox number belongs to which score, so this
//! module reads the mask from a cuDNN forward whose values are rows of the identity matrix.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use qkvault_exec::{LoadedPlan, cudarc};
use qkvault_graph::{Attention, DType, Lengths, Role, Valid, operand};
use qkvault_reference::{Buffer, Family, Inputs};

use super::eight_bits;
use qkvault_cli::memory::{OperandMemory, RowFailure, failed};

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
) -> Result<Buffer, RowFailure> {
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
        let mut memory = OperandMemory::upload(stream, a, plan, &inputs)?;
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

/// How far the share of kept probabilities may be from the exact one, in standard deviations: one mask in a billion.
const DEVIATIONS: f64 = 6.0;

/// Tells that a mask does not keep the share that its probability asks for.
///
/// The oracle takes the mask as it was drawn, so a share that is wrong does not show in any output: PyTorch reports
/// kernels that round the probability to sixteenths (pull request 174245), while the scale stays exact. Where a mask,
/// an expression or a family of data hides scores, dropped ones cannot be told from hidden ones, and nothing is said.
pub(super) fn uneven(a: &Attention, family: Family, mask: &Buffer) -> Option<String> {
    let p = a.dropout?.probability;
    let hidden = a.mask.band.is_some() || a.mask.mask_mod.is_some() || a.mask.lengths == Lengths::PerSequence;
    if hidden || a.score_mod.is_some() || a.sink || a.fp8.is_some() || family != Family::Normal {
        return None;
    }
    let (all, kept) = (mask.len() as f64, (0..mask.len()).filter(|&at| mask.get(at) > 0.0).count() as f64);
    let (share, exact) = (kept / all, 1.0 - f64::from(p));
    let far = DEVIATIONS * (f64::from(p) * exact / all).sqrt();
    ((share - exact).abs() > far).then(|| {
        format!("the mask keeps {share:.4} of {all} probabilities, and {exact:.4} is asked for (at most {far:.4} off)")
    })
}

#[cfg(test)]
mod tests {
    use qkvault_graph::text;

    use super::*;

    /// A mask of 65,536 scores, of which one in `every` is dropped.
    fn mask(every: usize) -> Buffer {
        let mut mask = Buffer::zeros(DType::F32, 1 << 16);
        (0..mask.len()).filter(|at| at % every != 0).for_each(|at| mask.set(at, 1.0));
        mask
    }

    fn attention(more: &str) -> Attention {
        text::parse(&format!("q: bf16 [1,1,256,64]\ndropout: philox {more}")).expect("a description")
    }

    /// Numbers were right while a mask for 0.1 kept 15 of 16: no output tells it.
    #[test]
    fn a_probability_that_is_rounded_to_sixteenths_is_told() {
        let told = |more: &str, every| uneven(&attention(more), Family::Normal, &mask(every));
        assert!(told("0.1", 10).is_none() && told("0.125", 8).is_none());
        for every in [8, 16] {
            let text = told("0.1", every).expect("it is far off");
            assert!(text.contains("0.9000 is asked for"), "{text}");
        }
        // Dropped and hidden scores look alike.
        assert!(told("0.1\nmask: causal", 2).is_none() && told("0.1\nlengths: per-sequence", 2).is_none());
        assert!(uneven(&attention("0.1"), Family::Below, &mask(2)).is_none());
    }
}
