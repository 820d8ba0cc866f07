//! Varlen operands in op graphs: dense dims and the strides of the memory, with a tensor of offsets that says where each
//! sequence begins.
//!
//! Offsets are batch + 1 numbers in elements of the operand that they belong to, 64 bits wide where the library takes that:
//! with 32 bits they end at 2^31 elements, which a buffer of 262,144 tokens of 64 heads of 128 reaches.

use super::builder::Builder;
use crate::op::{OpGraph, TensorId, TensorKind};
use crate::{CudnnVersion, DType, Role, Storage, Target, Tensor};

/// The first version whose offsets may be 64 bits wide (cudnn-frontend 1.23, its tests of attention).
pub const WIDE_OFFSETS: CudnnVersion = CudnnVersion::v9(6, 0);

/// The offsets of a varlen operand; nothing for a dense one, and for roles that are never varlen.
pub(super) fn offsets(g: &mut Builder, role: Role, t: &Tensor) -> Option<TensorId> {
    match t.storage {
        Storage::Dense | Storage::Paged { .. } => None,
        Storage::Varlen { tokens: _ } => {
            let varlen = role.offsets()?;
            // Every stride is 1, as the library wants it of a list.
            Some(g.operand_as(Role::Offsets(varlen), [t.dims[0] + 1, 1, 1, 1], [1; 4], DType::I64))
        }
    }
}

/// Gives the offsets the width that the target's library takes.
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
