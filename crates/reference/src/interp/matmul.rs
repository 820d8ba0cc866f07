//! Matrix products with broadcast batch dims, shared heads, and dims limited to the length of each sequence.

use super::grid::Line;
use super::{Grid, InterpretError};
use crate::kernel::add_scaled;

/// `c[.., i, j] = Σ a[.., i, l] · b[.., l, j]`, over the `l` within the length of `k`. Elements whose `i` or `j` is
/// beyond the length of `m` or `n` are not computed; they become `left_out`.
pub(super) fn matmul(
    op: usize,
    [a, b]: [&Grid; 2],
    dims: [usize; 4],
    lengths: [Option<&Grid>; 3],
    left_out: f64,
) -> Result<Grid, InterpretError> {
    let [_, _, m, n] = dims;
    let k = a.dims()[3];
    let wrong = |given: [usize; 4], with, rule| Err(InterpretError::Dims { op, given, with, rule });
    if a.dims()[2] != m {
        return wrong(a.dims(), dims, "rows of the first factor are rows of the product");
    }
    if b.dims()[2..] != [k, n] {
        return wrong(b.dims(), a.dims(), "the second factor has as many rows as the first has columns");
    }
    for factor in [a, b] {
        for axis in 0..2 {
            if !dims[axis].is_multiple_of(factor.dims()[axis]) {
                return wrong(factor.dims(), dims, "batch and heads of a factor divide those of the product");
            }
        }
    }
    for length in lengths.into_iter().flatten() {
        if length.dims() != [dims[0], 1, 1, 1] {
            return wrong(length.dims(), [dims[0], 1, 1, 1], "lengths are one per sequence");
        }
    }
    let length = |which: usize, sequence: usize, most: usize| {
        let Some(length) = lengths[which] else { return Ok(most) };
        let given = length.at([sequence, 0, 0, 0]);
        let fits = given >= 0.0 && given <= most as f64;
        if fits { Ok(given as usize) } else { Err(InterpretError::Range { op, what: "length", given, most }) }
    };
    let cuts: Vec<[usize; 3]> = (0..dims[0])
        .map(|sequence| Ok([length(0, sequence, m)?, length(1, sequence, n)?, length(2, sequence, k)?]))
        .collect::<Result<_, InterpretError>>()?;
    let mut c = Grid::new(dims, left_out);
    c.fill_rows(|[i, h, row], out| {
        let [rows, columns, depth] = cuts[i];
        if row >= rows {
            return;
        }
        let left = a.row([i, h, row], [dims[0], dims[1], m, k]);
        let out = &mut out[..columns];
        out.fill(0.0);
        for l in 0..depth {
            let x = left.at(l);
            match b.row([i, h, l], [dims[0], dims[1], k, n]) {
                Line::One(y) => out.iter_mut().for_each(|sum| *sum += x * y),
                Line::Each(row) => add_scaled(out, x, row),
            }
        }
    });
    Ok(c)
}
