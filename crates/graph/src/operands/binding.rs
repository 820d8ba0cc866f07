//! One operand of a launch: its bytes and alignment.

use serde::{Deserialize, Serialize};

use crate::{DType, Role};

/// Alignment in bytes of every declared operand, as in NVIDIA's front end.
pub const ALIGNMENT: usize = 16;

/// Alignment of every part and of the whole: that of `cuMemAlloc`.
pub const SCRATCH_ALIGNMENT: u64 = 256;

/// One operand of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// Its role.
    pub role: Role,
    /// Element type.
    pub dtype: DType,
    /// Whether it is one number on the host.
    pub scalar: bool,
    /// Whether a launch writes it.
    pub output: bool,
    /// Bytes of its buffer: from the first to one past the last element. A 16-bit tensor that is read besides the
    /// scores (a bias, a dropout mask) is rounded up to 4, because kernels read two of its elements at a time.
    pub bytes: u64,
    /// Alignment in bytes of its address.
    pub alignment: u32,
}

impl Binding {
    /// One number on the host.
    #[must_use]
    pub const fn number(role: Role, dtype: DType) -> Binding {
        let size = dtype.size();
        Binding { role, dtype, scalar: true, output: false, bytes: size as u64, alignment: size as u32 }
    }
}

/// Bytes of an input that kernels read at once, if they can read beyond the last element.
///
/// Source: compute-sanitizer on an H200 with cuDNN 9.19 (`bench/odd-tensors.txt`, docs/results/sanitize.md): 10 of 169
/// forwards read 2 bytes beyond a 16-bit tensor with an odd number of elements; 32-bit tensors and backwards did not.
const fn read_at_once(role: Role, dtype: DType) -> u64 {
    match role {
        Role::ScoreTensor(_) | Role::DropoutMask if dtype.size() == 2 => 4,
        _ => 1,
    }
}

/// Bytes of the buffer of an operand that spans this many elements.
#[must_use]
pub fn bytes_bound(role: Role, dtype: DType, elements: u64, output: bool) -> u64 {
    let bytes = elements.saturating_mul(dtype.size() as u64);
    if output { bytes } else { bytes.next_multiple_of(read_at_once(role, dtype)) }
}
