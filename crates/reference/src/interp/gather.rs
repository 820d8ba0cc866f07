//! Operations that only move values: views with other strides, rows from a paged pool, and given random numbers.

use qkvault_cudnn::OpGraph;
use qkvault_cudnn::op::{OpTensor, TensorId};
use qkvault_graph::Role;

use super::grid::{address, indices};
use super::{Grid, InterpretError};
use crate::{Inputs, ReferenceError};

/// The memory of `x`, laid out by its strides, read with the dims and strides of `y`.
pub(super) fn reshape(
    op: usize,
    graph: &OpGraph,
    [x, y]: [TensorId; 2],
    values: &Grid,
    dims: [usize; 4],
) -> Result<Grid, InterpretError> {
    let (from, to) = (graph.tensor(x).strides, graph.tensor(y).strides);
    // A swap of the last two dims needs no memory, in which rows of a varlen operand beyond a sequence overlap other
    // rows.
    let swap = |[a, b, c, d]: [i64; 4]| [a, b, d, c];
    if to == swap(from) && graph.tensor(y).dims == swap(graph.tensor(x).dims) {
        let mut turned = Grid::new(dims, f64::NAN);
        turned.fill_with(|[i, j, k, l]| values.at([i, j, l, k]));
        return Ok(turned);
    }
    let span = address(values.dims().map(|n| n - 1), from).saturating_add(1);
    if span > 1 << 28 {
        return Err(InterpretError::TooLarge { id: x, dims: graph.tensor(x).dims });
    }
    let mut memory: Vec<Option<f64>> = vec![None; span];
    for index in indices(values.dims()) {
        memory[address(index, from)] = Some(values.at(index));
    }
    let mut seen = Grid::new(dims, f64::NAN);
    for index in indices(dims) {
        let address = address(index, to);
        let value = memory.get(address).copied().flatten();
        seen.set(index, value.ok_or(InterpretError::Hole { op, index, address })?);
    }
    Ok(seen)
}

/// Whether the rows gathered from a pool become columns. The strides tell which of the last two dims holds rows,
/// because the head dim is innermost in memory.
pub(super) fn is_swapped(y: &OpTensor, container: &Grid) -> bool {
    y.strides[2] == 1 && y.strides[3] != 1 && usize::try_from(y.dims[2]).is_ok_and(|n| n == container.dims()[3])
}

/// Gathers the rows of each sequence from a pool of pages, as (batch, head, row, head dim); `swapped` swaps rows and
/// head dim. Rows beyond a sequence's length are zero, and table entries beyond it are not read.
pub(super) fn paged(
    op: usize,
    [container, table, lengths]: [&Grid; 3],
    swapped: bool,
    dims: [usize; 4],
) -> Result<Grid, InterpretError> {
    let [pages, heads, page_size, head_dim] = container.dims();
    let [batch, _, _, _] = dims;
    let rows = if swapped { dims[3] } else { dims[2] };
    let expected = if swapped { [batch, heads, head_dim, rows] } else { [batch, heads, rows, head_dim] };
    super::rows::same_dims(op, expected, dims)?;
    super::rows::same_dims(op, lengths.dims(), [batch, 1, 1, 1])?;
    super::rows::same_dims(op, table.dims(), [batch, 1, table.dims()[2], 1])?;
    let mut out = Grid::new(dims, 0.0);
    for i in 0..batch {
        let given = lengths.at([i, 0, 0, 0]);
        if !(given >= 0.0 && given <= rows as f64) {
            return Err(InterpretError::Range { op, what: "length", given, most: rows });
        }
        for row in 0..given as usize {
            let entry = row / page_size;
            if entry >= table.dims()[2] {
                let most = table.dims()[2] * page_size;
                return Err(InterpretError::Range { op, what: "length", given, most });
            }
            let page = table.at([i, 0, entry, 0]);
            if !(page >= 0.0 && page < pages as f64) {
                return Err(InterpretError::Range { op, what: "page", given: page, most: pages - 1 });
            }
            for head in 0..heads {
                for d in 0..head_dim {
                    let x = container.at([page as usize, head, row % page_size, d]);
                    out.set(if swapped { [i, head, d, row] } else { [i, head, row, d] }, x);
                }
            }
        }
    }
    Ok(out)
}

/// The dropout mask as random numbers of 0 and 1, row-major over the result's dims.
pub(super) fn mask(op: usize, inputs: &Inputs, dims: [usize; 4]) -> Result<Grid, InterpretError> {
    let buffer = inputs.get(Role::DropoutMask).ok_or(ReferenceError::DropoutMask)?;
    let needed = dims.iter().product();
    if buffer.len() < needed {
        return Err(ReferenceError::TooShort { role: Role::DropoutMask, given: buffer.len(), needed }.into());
    }
    let mut mask = Grid::new(dims, 0.0);
    for (at, x) in mask.values_mut().iter_mut().enumerate() {
        *x = buffer.get(at);
        if *x != 0.0 && *x != 1.0 {
            return Err(InterpretError::Range { op, what: "random number", given: *x, most: 1 });
        }
    }
    Ok(mask)
}
