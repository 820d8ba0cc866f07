//! Strides: how far apart heads, rows and sequences of the large operands lie.

use crate::registry::entry::entries;
use crate::registry::{Applies, Entry, Facts};
use crate::{Gradients, Tensor};

/// Bytes that kernels read and write at once.
const UNIT: i64 = 16;

/// Where an axis leads.
const AXES: [&str; 3] = ["batch", "head", "sequence"];

/// The tensors whose rows kernels move in units, by name: Stats and tensors of a score may lie as they like.
fn moved<'a>(f: &Facts<'a>) -> impl Iterator<Item = (&'static str, &'a Tensor)> {
    let a = f.a;
    let gradients = f.gradients.map(|g| {
        let Gradients { d_o, d_o_half: _, d_q, d_k, d_v, d_sink: _, deterministic: _ } = g;
        [("d_o", d_o), ("d_q", d_q), ("d_k", d_k), ("d_v", d_v)]
    });
    [("q", &a.q), ("k", &a.k), ("v", &a.v), ("o", &a.o)].into_iter().chain(gradients.into_iter().flatten())
}

/// The axis of the first stride that a step is taken along and that is no multiple of a unit. Rows that are no whole
/// units themselves are for `head-dim.multiple-of-8` to say.
fn off(t: &Tensor) -> Option<usize> {
    let (extents, bytes) = (t.extents(), t.dtype.size() as i64);
    if t.head_dim() * bytes % UNIT != 0 {
        return None;
    }
    (0..AXES.len()).find(|&axis| extents[axis] > 1 && t.strides[axis].wrapping_mul(bytes) % UNIT != 0)
}

entries![
    TENSOR_STRIDE_ALIGNMENT = Entry {
        code: "tensor.stride-alignment",
        cause: "A stride of Q, K, V, O or a gradient is no multiple of 16 bytes, and kernels move 16 bytes at once.",
        field: "strides",
        needed: "strides that are multiples of 16 bytes for Q, K, V, O and their gradients: others compile, and come \
                 out wrong without a word or fault",
        fix: "leave room behind each head, row or sequence up to the next multiple of 16 bytes (8 elements of 16 \
              bits), or copy the tensor",
        source: "an H200, compared with the float64 oracle and under compute-sanitizer (docs/results/strides.md); \
                 cudnn-frontend 1.32 refuses them",
        evidence: "295 of 297 were wrong or faulted under 9.19, 272 of 314 under 9.14 and 288 of 359 under 9.27, most \
                   without a fault.",
        applies: Applies::Rules(|f| {
            // In 8 bits nothing was asked, and nothing is built.
            let (name, t, axis) =
                moved(f).filter(|(_, t)| t.dtype.size() > 1).find_map(|(n, t)| Some((n, t, off(t)?)))?;
            let (stride, bytes) = (t.strides[axis], t.dtype.size());
            Some(format!("the {} stride of {name} is {stride} elements of {bytes} bytes", AXES[axis]))
        }),
        ..Entry::quirk(18)
    }
];
