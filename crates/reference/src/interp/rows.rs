//! Operations over rows: reductions, band masks, softmax.

use qkvault_cudnn::op::{Pointwise, Reduce};

use super::grid::{Line, indices};
use super::{Grid, InterpretError};
use crate::kernel;

pub(super) fn same_dims(op: usize, given: [usize; 4], with: [usize; 4]) -> Result<(), InterpretError> {
    if given == with { Ok(()) } else { Err(InterpretError::Dims { op, given, with, rule: "these dims must be equal" }) }
}

/// Reduces `x` over the dims that are smaller in the result: to 1, or for heads to a divisor, which combines
/// neighbours.
pub(super) fn reduce(op: usize, how: Reduce, x: &Grid, dims: [usize; 4]) -> Result<Grid, InterpretError> {
    let fits = |axis: usize| {
        dims[axis] == 1 || dims[axis] == x.dims()[axis] || (axis == 1 && x.dims()[1].is_multiple_of(dims[1]))
    };
    if !(0..4).all(fits) {
        let rule = "each extent of a reduction's result is 1 or that of its operand, or for heads a divisor of it";
        return Err(InterpretError::Dims { op, given: dims, with: x.dims(), rule });
    }
    let (start, combine): (f64, fn(f64, f64) -> f64) = match how {
        Reduce::Add => (0.0, |sum, x| sum + x),
        Reduce::Max => (f64::NEG_INFINITY, f64::max),
        Reduce::Amax => (0.0, |max, x| max.max(x.abs())),
    };
    let mut y = Grid::new(dims, start);
    if dims[..3] == x.dims()[..3] && dims[3] == 1 {
        y.fill_rows(|at, out| {
            out[0] = match x.row(at, x.dims()) {
                Line::One(x) => combine(start, x),
                Line::Each(row) => row.iter().fold(start, |so_far, &x| combine(so_far, x)),
            }
        });
        return Ok(y);
    }
    for index in indices(x.dims()) {
        let place = std::array::from_fn(|axis| index[axis] / (x.dims()[axis] / dims[axis]));
        let so_far = y.at(place);
        y.set(place, combine(so_far, x.at(index)));
    }
    Ok(y)
}

/// `x` inside a band and `fill` outside. Δ is the KV length less the query length if both are given, else 0. An element
/// is inside if `row + Δ + shift >= col` for a right bound (`>=`), and if `col + left - Δ > row` for a left bound
/// (`>`).
pub(super) fn band(
    op: usize,
    compare: Pointwise,
    [x, fill]: [&Grid; 2],
    lengths: [Option<&Grid>; 2],
    [left, shift]: [Option<&Grid>; 2],
    dims: [usize; 4],
) -> Result<Grid, InterpretError> {
    same_dims(op, x.dims(), dims)?;
    let operands = [Some(fill), lengths[0], lengths[1], left, shift];
    for given in operands.into_iter().flatten().map(Grid::dims) {
        if given[0] != 1 && given[0] != dims[0] || given[1..] != [1; 3] {
            let rule = "numbers and lengths of a band are one, or one per sequence";
            return Err(InterpretError::Dims { op, given, with: dims, rule });
        }
    }
    if lengths[0].is_some() != lengths[1].is_some() {
        return Err(InterpretError::Operands { op, what: "a band has both lengths or none" });
    }
    let right = match compare {
        Pointwise::CmpGe => true,
        Pointwise::CmpGt => false,
        _ => return Err(InterpretError::Operands { op, what: "a band compares by >= or >" }),
    };
    let mut y = Grid::new(dims, f64::NAN);
    y.fill_rows(|[i, j, k], out| {
        let number = |grid: Option<&Grid>| grid.map_or(0.0, |grid| grid.number(i));
        let delta = number(lengths[1]) - number(lengths[0]);
        let (row, fill, x) = (k as f64, fill.number(i), x.row([i, j, k], dims));
        let (last, first) = (row + delta + number(shift), row + delta - number(left));
        for (l, y) in out.iter_mut().enumerate() {
            let column = l as f64;
            *y = if if right { last >= column } else { column > first } { x.at(l) } else { fill };
        }
    });
    Ok(y)
}

/// Softmax over the last dim: probabilities, log-sum-exp, maximum and sum.
pub(super) fn softmax(op: usize, x: &Grid, sink: Option<&Grid>, dims: [usize; 4]) -> Result<[Grid; 4], InterpretError> {
    same_dims(op, x.dims(), dims)?;
    let [b, h, s, n] = dims;
    if let Some(sink) = sink {
        same_dims(op, sink.dims(), [1, h, 1, 1])?;
    }
    let by_row = [b, h, s, 1];
    let mut p = Grid::new(dims, f64::NAN);
    let [mut stats, mut max, mut sum] = [(); 3].map(|()| Grid::new(by_row, f64::NAN));
    for index @ [i, j, k, _] in indices(by_row) {
        let mut row: Vec<f64> = (0..n).map(|l| x.at([i, j, k, l])).collect();
        let sink = sink.map(|sink| sink.at([0, j, 0, 0]));
        let mut stat = kernel::softmax(&mut row, sink);
        // The maximum and sum that the operation returns count the sink, as they do in the form with separate
        // operations.
        if let Some(sink) = sink {
            stat.max = stat.max.max(sink);
            stat.sum = (stat.stats - stat.max).exp();
        }
        row.iter().enumerate().for_each(|(l, &x)| p.set([i, j, k, l], x));
        stats.set(index, stat.stats);
        max.set(index, stat.max);
        sum.set(index, stat.sum);
    }
    Ok([p, stats, max, sum])
}
