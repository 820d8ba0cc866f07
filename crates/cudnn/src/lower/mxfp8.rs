//! Attention in 8 bits with block scales (MXFP8): 8-bit operands times their scales, as cuDNN's matcher knows them.
//!
//! Each operand of a product is multiplied by its scales first, one power of two for 32 neighbours along the dim that
//! the product sums over. A forward rounds probabilities to Q's type without a scale. Outputs are measured as they are.
//! Scale tensors are whole tiles in the order `F8_128x4`. cuDNN compiles the same kernel for any strides of them, so
//! the strides here are those of NVIDIA's front end, and say nothing about the memory.
//!
//! Source of the order: cudnn-frontend 1.23, `node/scaled_dot_product_flash_attention.h` and `node/sdpa_fp8_bwd.h`, as
//! facts.

use super::builder::Builder;
use crate::op::TensorId;
use crate::{Along, Attention, Fp8, Role, Scaled, Tensor, block_scales};

/// Whether the attention has block scales.
pub(super) fn has_blocks(a: &Attention) -> bool {
    a.fp8 == Some(Fp8::Block)
}

/// Q and Kᵀ as the first product of a forward reads them: times their scales, if they have block scales.
pub(super) fn scored(g: &mut Builder, a: &Attention, [q, k_t]: [TensorId; 2]) -> [TensorId; 2] {
    if !has_blocks(a) {
        return [q, k_t];
    }
    let k_t = transposed(g, k_t, Scaled::K, &a.k);
    [by_rows(g, q, Scaled::Q, &a.q), k_t]
}

/// V as the second product of a forward reads it, which sums over the sequence.
pub(super) fn values(g: &mut Builder, a: &Attention, v: TensorId) -> TensorId {
    if !has_blocks(a) {
        return v;
    }
    let scales = block_scales(&a.v, Along::Sequence);
    times(g, v, Scaled::V, scales)
}

/// An operand times its scales along the head dim.
pub(super) fn by_rows(g: &mut Builder, x: TensorId, which: Scaled, t: &Tensor) -> TensorId {
    times(g, x, which, block_scales(t, Along::HeadDim))
}

/// The same of an operand whose last two dims are swapped.
pub(super) fn transposed(g: &mut Builder, x: TensorId, which: Scaled, t: &Tensor) -> TensorId {
    let Tensor { dims: [b, h, s, d], strides: [sb, sh, ss, sd], .. } = block_scales(t, Along::HeadDim);
    let swapped = Tensor { dims: [b, h, d, s], strides: [sb, sh, sd, ss], ..block_scales(t, Along::HeadDim) };
    times(g, x, which, swapped)
}

/// The second form of dO, which a product sums over the queries.
pub(super) fn d_o_by_columns(g: &mut Builder, t: &Tensor) -> TensorId {
    let x = g.operand(Role::DOT, t);
    times(g, x, Scaled::DOT, block_scales(t, Along::Sequence))
}

/// The second form of Q or K. The front end writes the distance from one 128 elements of the head dim to the next in
/// place of the third stride.
pub(super) fn by_columns(g: &mut Builder, role: Role, which: Scaled, t: &Tensor) -> TensorId {
    let x = g.operand(role, t);
    let scales = block_scales(t, Along::Sequence);
    let [b, h, groups, _] = scales.dims;
    let head = groups * 128;
    times(g, x, which, Tensor { strides: [h * head, head, b * h * head, 1], ..scales })
}

fn times(g: &mut Builder, x: TensorId, which: Scaled, scales: Tensor) -> TensorId {
    let Tensor { dims, strides, dtype, storage: _ } = scales;
    let scales = g.operand_as(Role::Descale(which), dims, strides, dtype);
    g.dequantized(x, scales)
}
