//! Element offsets of varlen operands, as cuDNN reads them.

use std::collections::BTreeMap;

use super::{CuSeqlens, sound};
use crate::registry::codes;
use crate::{Gradients, Pass, Reason, Refusal, Storage, Tensor, Valid, Varlen};

/// The start of each sequence of one varlen operand, in elements of that operand: batch + 1 entries of 64 bits.
///
/// They are made from cumulative lengths and the operand, and fit only that operand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RaggedOffsets(Vec<i64>);

impl RaggedOffsets {
    /// The offsets of the sequences of a varlen tensor: rows before each sequence, times elements from row to row.
    ///
    /// # Errors
    ///
    /// Every fault: the tensor is not varlen, or has another batch size, a smaller capacity or a shorter longest
    /// sequence than the lengths; or an offset does not fit 63 bits.
    pub fn new(lengths: &CuSeqlens, tensor: &Tensor) -> Result<RaggedOffsets, Refusal> {
        let mut reasons = Vec::new();
        misfits(lengths, tensor, "tensor", &mut reasons);
        let row = tensor.strides[2];
        let elements: Option<Vec<i64>> = lengths.cumulative().iter().map(|rows| rows.checked_mul(row)).collect();
        if elements.is_none() {
            reasons.push(codes::OFFSETS_OVERFLOW.reason(format!("{} rows of {row} elements", lengths.tokens())));
        }
        sound(reasons, || RaggedOffsets(elements.unwrap_or_default()))
    }

    /// The offsets, in elements.
    #[must_use]
    pub fn elements(&self) -> &[i64] {
        &self.0
    }
}

fn misfits(lengths: &CuSeqlens, tensor: &Tensor, name: &str, reasons: &mut Vec<Reason>) {
    let Storage::Varlen { tokens } = tensor.storage else {
        reasons.push(codes::OFFSETS_STORAGE.reason(format!("{:?}", tensor.storage)).at(format!("{name}.storage")));
        return;
    };
    if tensor.dims[0] != lengths.batch().get() {
        reasons.push(codes::OFFSETS_BATCH.reason(format!("lengths of {} sequences", lengths.batch())).with_needed(
            format!(
                "{name} has {} sequences, and so {} cumulative lengths",
                tensor.dims[0],
                tensor.dims[0].saturating_add(1)
            ),
        ));
    }
    if tokens < lengths.tokens().get() {
        reasons.push(
            codes::OFFSETS_CAPACITY
                .reason(format!("{} tokens", lengths.tokens()))
                .with_needed(format!("{name} has room for {tokens}")),
        );
    }
    if tensor.dims[2] < i64::from(lengths.longest()) {
        reasons.push(
            codes::OFFSETS_LONGEST
                .reason(format!("a sequence of {} rows", lengths.longest()))
                .with_needed(format!("{name} has sequences of up to {} rows", tensor.dims[2])),
        );
    }
}

/// The offsets of every varlen operand of an attention, for the lengths of its queries and of its keys and values.
///
/// # Errors
///
/// Every reason why the lengths do not fit the attention.
pub fn ragged_offsets(
    attention: &Valid,
    queries: &CuSeqlens,
    keys: &CuSeqlens,
) -> Result<BTreeMap<Varlen, RaggedOffsets>, Refusal> {
    let a = attention.get();
    let rows = a.row_tensor();
    let mut operands =
        vec![(Varlen::Q, &a.q, queries), (Varlen::K, &a.k, keys), (Varlen::V, &a.v, keys), (Varlen::O, &a.o, queries)];
    if a.outputs.stats || a.outputs.max || a.outputs.sum_exp {
        operands.push((Varlen::Stats, &rows, queries));
    }
    if let Pass::Backward(Gradients { d_o, d_o_half, d_q, d_k, d_v, d_sink: _, deterministic: _ }) = &a.pass {
        operands.extend([
            (Varlen::DO, d_o, queries),
            (Varlen::DQ, d_q, queries),
            (Varlen::DK, d_k, keys),
            (Varlen::DV, d_v, keys),
        ]);
        operands.extend(d_o_half.iter().map(|t| (Varlen::DOHalf, t, queries)));
    }
    let mut reasons = Vec::new();
    let mut offsets = BTreeMap::new();
    for (operand, tensor, lengths) in operands {
        if matches!(tensor.storage, Storage::Varlen { .. }) {
            match RaggedOffsets::new(lengths, tensor) {
                Ok(found) => {
                    offsets.insert(operand, found);
                }
                Err(refusal) => reasons.extend(refusal.reasons().iter().cloned().map(|r| named(operand, r))),
            }
        }
    }
    sound(reasons, || offsets)
}

/// Adds the name of the operand to a reason.
fn named(operand: Varlen, mut reason: Reason) -> Reason {
    reason.field = format!("{} of {operand:?}", reason.field).into();
    reason
}
