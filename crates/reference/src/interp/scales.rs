//! Numbers in 8 bits times the powers of two of their blocks.

use qkvault_graph::BLOCK;

use super::rows::same_dims;
use super::{Grid, InterpretError};

/// The order `F8_128x4` of one scale tensor: tiles of 128 by 4, in which four rows that are 32 apart share 16 bytes.
/// Columns count blocks, rows the other of the last two dims.
struct ScaleTiles {
    /// The axis of `x` along which 32 neighbours share a scale.
    axis: usize,
    /// Tiles from one head to the next.
    head: usize,
    /// Tiles from one 128 rows to the next.
    row: usize,
}

impl ScaleTiles {
    /// The order for `x` of these dims and strides. Blocks along the head dim, which is contiguous, are one matrix for
    /// each head. Blocks along the sequence are one matrix for all heads.
    fn for_dims(x: [usize; 4], strides: [i64; 4], scales: [usize; 4]) -> Option<ScaleTiles> {
        let [batch, heads, ..] = x;
        let padded = |axis: usize| {
            let other = 5 - axis;
            let blocks = x[axis].div_ceil(BLOCK).next_multiple_of(4);
            scales[axis] == blocks && scales[other] == x[other].next_multiple_of(128)
        };
        let axis = [3, 2].into_iter().find(|&axis| padded(axis)).filter(|_| scales[..2] == x[..2])?;
        let (rows, columns) = (scales[5 - axis] / 128, scales[axis] / 4);
        let head_dim = if strides[3] == 1 { 3 } else { 2 };
        let (head, row) = if axis == head_dim { (rows * columns, columns) } else { (columns, batch * heads * columns) };
        Some(ScaleTiles { axis, head, row })
    }

    /// The place of the scale of an element in memory.
    fn at(&self, head: usize, [_, _, k, l]: [usize; 4]) -> usize {
        let (row, column) = if self.axis == 3 { (k, l / BLOCK) } else { (l, k / BLOCK) };
        let tile = head * self.head + row / 128 * self.row + column / 4;
        tile * 512 + row % 32 * 16 + row / 32 % 4 * 4 + column % 4
    }
}

/// `x` times its scales, whose values are in the order of their memory.
pub(super) fn dequantize(
    op: usize,
    (x, strides): (&Grid, [i64; 4]),
    scales: &Grid,
    dims: [usize; 4],
) -> Result<Grid, InterpretError> {
    same_dims(op, x.dims(), dims)?;
    let rule = "scales have the dims of their tensor, one for 32 elements and padded to 4, the other padded to 128";
    let tiles = ScaleTiles::for_dims(dims, strides, scales.dims()).ok_or(InterpretError::Dims {
        op,
        given: scales.dims(),
        with: dims,
        rule,
    })?;
    let mut y = Grid::new(dims, f64::NAN);
    y.fill_with(|index| {
        let [b, h, ..] = index;
        x.at(index) * scales.values()[tiles.at(b * dims[1] + h, index)]
    });
    Ok(y)
}
