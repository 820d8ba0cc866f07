//! Varlen operands in op graphs: dense dims, the strides of the memory, and a tensor of offsets at which sequences
//! begin.
//!
//! There are batch + 1 offsets, in elements of their operand. They have 64 bits if cuDNN supports it: 32 bits end at
//! 2^31 elements, which a buffer of 262,144 tokens of 64 heads of 128 reaches.

use super::builder::Builder;
use crate::op::{OpGraph, TensorId, TensorKind};
use crate::{CudnnVersion, DType, Role, Storage, Target, Tensor};

/// The first version that supports 64-bit offsets (cudnn-frontend 1.23, its tests of attention).
pub const WIDE_OFFSETS: CudnnVersion = CudnnVersion::v9(6, 0);

/// The offsets of a varlen operand; `None` for a dense one, and for roles that are never varlen.
pub(super) fn offsets(g: &mut Builder, role: Role, t: &Tensor) -> Option<TensorId> {
    match t.storage {
        Storage::Dense | Storage::Paged { .. } => None,
        Storage::Varlen { tokens: _ } => {
            let varlen = role.offsets()?;
            // cuDNN requires strides of 1 for a list.
            Some(g.operand_as(Role::Offsets(varlen), [t.dims[0] + 1, 1, 1, 1], [1; 4], DType::I64))
        }
    }
}

/// Sets the width of offsets that the target's cuDNN supports.
pub(super) fn width(graph: &mut OpGraph, target: &Target) {
    if target.cudnn >= WIDE_OFFSETS {
        return;
    }
    for tensor in &mut graph.tensors {
        if matches!(tensor.kind, TensorKind::Operand(Role::Offsets(_))) {
            tensor.dtype = DType::I32;
        }
    }
}
