//! Scales of microscaled tensors: one power of two per 32 elements, and where each lies in its buffer.

use qkvault_graph::{Attention, BLOCK, Pass, Role, Scaled, operand};

use crate::setup::Source;
use crate::{Buffer, Inputs, Real, ReferenceError};

/// The layout of the scales of a microscaled tensor, and which elements share one.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    heads: usize,
    tiles: Tiles,
    /// Whether a scale covers neighbours along the sequence; otherwise along the head dim.
    sequence: bool,
}

impl Blocks {
    /// The layout for a tensor with such scales in this attention; `None` for other tensors.
    pub(crate) fn of(a: &Attention, which: Scaled) -> Option<Blocks> {
        let gradients = match &a.pass {
            Pass::Forward => None,
            Pass::Backward(gradients) => Some(gradients),
        };
        let (tensor, sequence) = match which {
            Scaled::Q => (&a.q, false),
            Scaled::K => (&a.k, false),
            // A forward sums over the rows of V, and a backward over its head dim.
            Scaled::V => (&a.v, gradients.is_none()),
            Scaled::DO => (&gradients?.d_o, false),
            Scaled::QT => (&a.q, gradients.is_some()),
            Scaled::KT => (&a.k, gradients.is_some()),
            Scaled::DOT => (&gradients?.d_o, true),
            Scaled::S | Scaled::O | Scaled::DP | Scaled::DQ | Scaled::DK | Scaled::DV => return None,
        };
        let [_, heads, s, d] = tensor.dims.map(|n| n as usize);
        let (outer, inner) = if sequence { (d, s.div_ceil(BLOCK)) } else { (s, d.div_ceil(BLOCK)) };
        let tiles = Tiles { outer: outer.next_multiple_of(128), inner: inner.next_multiple_of(4) };
        Some(Blocks { heads, tiles, sequence })
    }

    /// Index of the scale of an element.
    pub(crate) fn at(&self, (b, h): (usize, usize), row: usize, column: usize) -> usize {
        let start = (b * self.heads + h) * self.tiles.outer * self.tiles.inner;
        let (outer, inner) = if self.sequence { (column, row / BLOCK) } else { (row, column / BLOCK) };
        start + self.tiles.at(outer, inner)
    }
}

/// The scales of a microscaled tensor.
pub(crate) struct BlockScales<'a> {
    buffer: &'a Buffer,
    blocks: Blocks,
}

impl<'a> BlockScales<'a> {
    pub(crate) fn new(a: &Attention, inputs: &'a Inputs, which: Scaled) -> Result<BlockScales<'a>, ReferenceError> {
        let role = Role::Descale(which);
        let missing = || ReferenceError::Missing { role };
        let blocks = Blocks::of(a, which).ok_or_else(missing)?;
        Ok(BlockScales { buffer: inputs.checked(&operand(a, role).ok_or_else(missing)?)?, blocks })
    }

    /// Rows of one head, multiplied by their scales.
    pub(crate) fn rows<T: Real>(
        &self,
        source: &Source<'_>,
        (b, h): (usize, usize),
        rows: impl ExactSizeIterator<Item = usize> + Clone,
    ) -> Vec<T> {
        let mut out = source.rows(b, h, rows.clone());
        for (row, x) in rows.zip(out.chunks_exact_mut(source.view.dims[3])) {
            for (column, x) in x.iter_mut().enumerate() {
                *x = *x * T::of(self.buffer.get(self.blocks.at((b, h), row, column)));
            }
        }
        out
    }
}

/// Indices into a matrix of scale factors in the order `F8_128x4`: tiles of 128 × 4, in which four rows that are 32
/// apart share 16 bytes. Source: NVIDIA's description of the layout,
/// <https://nvidia.github.io/cudnn-frontend/mxfp8-scale-factor-128x4-layout/>.
#[derive(Clone, Copy)]
struct Tiles {
    outer: usize,
    inner: usize,
}

impl Tiles {
    fn at(&self, outer: usize, inner: usize) -> usize {
        debug_assert!(outer < self.outer && inner < self.inner);
        let tile = outer / 128 * (self.inner / 4) + inner / 4;
        let (row, column) = (outer % 128, inner % 4);
        tile * 512 + row % 32 * 16 + row / 32 * 4 + column
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_hold_every_factor_once() {
        let matrix = Tiles { outer: 256, inner: 8 };
        let mut seen = vec![false; 256 * 8];
        for outer in 0..256 {
            for inner in 0..8 {
                assert!(!std::mem::replace(&mut seen[matrix.at(outer, inner)], true));
            }
        }
        assert_eq!([matrix.at(0, 1), matrix.at(32, 0), matrix.at(1, 0), matrix.at(0, 4)], [1, 4, 16, 512]);
    }
}
