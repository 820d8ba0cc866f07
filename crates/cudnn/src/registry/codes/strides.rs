//! Strides of the large operands.

use crate::registry::declare;
use crate::registry::{Applies, Entry, Facts, Standing};
use crate::{Gradients, Tensor};

/// Bytes that kernels move at once.
const UNIT: i64 = 16;

/// The names of the axes that have such strides.
const AXES: [&str; 3] = ["batch", "head", "sequence"];

/// The tensors whose rows kernels move in units, with their names. Stats and tensors of expressions may have any
/// strides.
fn moved<'a>(f: &Facts<'a>) -> impl Iterator<Item = (&'static str, &'a Tensor)> {
    let a = f.a;
    let gradients = f.gradients.map(|g| {
        let Gradients { d_o, d_o_half: _, d_q, d_k, d_v, d_sink: _, deterministic: _ } = g;
        [("d_o", d_o), ("d_q", d_q), ("d_k", d_k), ("d_v", d_v)]
    });
    [("q", &a.q), ("k", &a.k), ("v", &a.v), ("o", &a.o)].into_iter().chain(gradients.into_iter().flatten())
}

/// The first axis of more than one element whose stride is not a multiple of a unit. Head dims that are not whole units
/// belong to `head-dim.multiple-of-8`.
fn off(t: &Tensor) -> Option<usize> {
    let (extents, bytes) = (t.extents(), t.dtype.size() as i64);
    if t.head_dim() * bytes % UNIT != 0 {
        return None;
    }
    (0..AXES.len()).find(|&axis| extents[axis] > 1 && t.strides[axis].wrapping_mul(bytes) % UNIT != 0)
}

declare![
    TENSOR_STRIDE_ALIGNMENT = Entry {
        code: "tensor.stride-alignment",
        cause: "A stride of Q, K, V, O or a gradient is not a multiple of 16 bytes, and kernels move 16 bytes at once.",
        field: "strides",
        needed: "strides that are multiples of 16 bytes for Q, K, V, O and their gradients: other strides compile, and \
                 give wrong results without an error",
        fix: "pad each head, row or sequence to the next multiple of 16 bytes (8 elements of 16 bits, 16 of 8), or copy the \
              tensor",
        source: "results of an H200, compared with the float64 oracle and under compute-sanitizer \
                 (docs/results/strides.md); cudnn-frontend 1.32 refuses them",
        evidence: "295 of 297 were wrong or faulted under 9.19, 272 of 314 under 9.14 and 288 of 359 under 9.27, most \
                   without a fault.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.14, 9.19 and 9.27",
            "qkvault-lab selftest --allow tensor.stride-alignment --isolate 4"
        )),
        applies: Applies::Rules(|f| {
            let (name, t, axis) = moved(f).find_map(|(n, t)| Some((n, t, off(t)?)))?;
            let (stride, bytes) = (t.strides[axis], t.dtype.size());
            Some(format!("the {} stride of {name} is {stride} elements of {bytes} bytes", AXES[axis]))
        }),
        ..Entry::quirk(17)
    }
];
