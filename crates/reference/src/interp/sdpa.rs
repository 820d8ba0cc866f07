//! The unified operation of attention, in two halves: scaled scores, then the masked softmax and the second matrix
//! product.

use qkvault_graph::DType;

use super::matmul::matmul;
use super::rows::softmax;
use super::{Grid, InterpretError};
use crate::round;

/// `scale · q · kᵀ`. The rows of `k` are keys: the unified operation does not declare K transposed.
pub(super) fn scores(op: usize, [q, k, scale]: [&Grid; 3], dims: [usize; 4]) -> Result<Grid, InterpretError> {
    if scale.dims() != [1; 4] {
        return Err(InterpretError::Dims { op, given: scale.dims(), with: [1; 4], rule: "the scale is one number" });
    }
    let [b, h, s, d] = k.dims();
    let mut turned = Grid::new([b, h, d, s], f64::NAN);
    turned.fill_with(|[i, j, l, row]| k.at([i, j, row, l]));
    let mut scores = matmul(op, [q, &turned], dims, [None; 3], f64::NAN)?;
    let scale = scale.number(0);
    scores.values_mut().iter_mut().for_each(|x| *x *= scale);
    Ok(scores)
}

/// `softmax(scores) · v`, with the log-sum-exp, maximum and sum of each row. With lengths, keys beyond them are masked,
/// and rows beyond them are not written: they hold NaN. If an element type is given, probabilities are rounded to it.
pub(super) fn output(
    op: usize,
    [scores, v]: [&Grid; 2],
    lengths: [Option<&Grid>; 2],
    sink: Option<&Grid>,
    dims: [usize; 4],
    rounded: Option<DType>,
) -> Result<(Grid, [Grid; 3]), InterpretError> {
    let [seq_q, seq_kv] = lengths;
    if seq_q.is_some() != seq_kv.is_some() {
        return Err(InterpretError::Operands { op, what: "a unified operation has both lengths or none" });
    }
    let shape = scores.dims();
    for given in lengths.into_iter().flatten().map(Grid::dims) {
        let with = [shape[0], 1, 1, 1];
        if given != with {
            return Err(InterpretError::Dims { op, given, with, rule: "lengths are one per sequence" });
        }
    }
    let within =
        |length: Option<&Grid>, sequence: usize, at: usize| length.is_none_or(|l| (at as f64) < l.number(sequence));
    let mut hidden = scores.clone();
    hidden.fill_rows(|[i, _, row], out| {
        let padded = !within(seq_q, i, row);
        out.iter_mut()
            .enumerate()
            .filter(|(col, _)| padded || !within(seq_kv, i, *col))
            .for_each(|(_, x)| *x = f64::NEG_INFINITY);
    });
    let [mut p, stats, max, sum] = softmax(op, &hidden, sink, shape)?;
    if let Some(dtype) = rounded {
        p.values_mut().iter_mut().for_each(|x| *x = round(dtype, *x));
    }
    // Values beyond the length are not read: they may be NaN, and zero times NaN is not zero.
    let product = matmul(op, [&p, v], dims, [seq_q, None, seq_kv], f64::NAN)?;
    Ok((product, [stats, max, sum]))
}
