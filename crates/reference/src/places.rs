//! The elements of a dense tensor: their places, and where they lie in memory.

use qkvault_graph::Tensor;

/// Every place of a tensor: batch, head, row, column.
pub(crate) fn places(t: &Tensor) -> impl Iterator<Item = [usize; 4]> + use<> {
    let [b, h, s, d] = t.dims.map(|n| n as usize);
    (0..b * h * s * d).map(move |i| [i / d / s / h, i / d / s % h, i / d % s, i % d])
}

/// The element of a place, counted from the first one in memory.
pub(crate) fn address(t: &Tensor, at: [usize; 4]) -> usize {
    at.iter().zip(t.strides).map(|(&n, stride)| n * stride as usize).sum()
}
