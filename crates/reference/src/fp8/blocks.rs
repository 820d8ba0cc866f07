//! Scales of microscaled tensors: one power of two per 32 elements, and where each lies in its buffer.

use qkvault_graph::{Attention, BLOCK, Pass, Role, Scaled, operand};

use crate::setup::SetupSource;
use crate::{Buffer, Inputs, Real, ReferenceError};

/// The layout of the scales of a microscaled tensor, and which elements share one.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    heads: usize,
    tiles: BlockTiles,
    /// Whether a scale covers neighbours along the sequence; otherwise along the head dim.
    sequence: bool,
}

impl Blocks {
    /// The layout for a tensor of these dims.
    pub(crate) fn new([batch, heads, s, d]: [usize; 4], sequence: bool) -> Blocks {
        let (outer, inner) = if sequence { (d, s.div_ceil(BLOCK)) } else { (s, d.div_ceil(BLOCK)) };
        let (outer, inner) = (outer.div_ceil(128), inner.div_ceil(4));
        let tiles = match sequence {
            true => BlockTiles { head: inner, row: batch * heads * inner },
            false => BlockTiles { head: outer * inner, row: inner },
        };
        Blocks { heads, tiles, sequence }
    }

    /// The layout for a tensor with such scales in this attention; `None` for other tensors.
    pub(crate) fn for_scales(a: &Attention, which: Scaled) -> Option<Blocks> {
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
        Some(Blocks::new(tensor.dims.map(|n| n as usize), sequence))
    }

    /// Index of the scale of an element.
    pub(crate) fn at(&self, (b, h): (usize, usize), row: usize, column: usize) -> usize {
        let (outer, inner) = if self.sequence { (column, row / BLOCK) } else { (row, column / BLOCK) };
        self.tiles.at(b * self.heads + h, outer, inner)
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
        let blocks = Blocks::for_scales(a, which).ok_or_else(missing)?;
        Ok(BlockScales { buffer: inputs.checked(&operand(a, role).ok_or_else(missing)?)?, blocks })
    }

    /// Rows of one head, multiplied by their scales.
    pub(crate) fn rows<T: Real>(
        &self,
        source: &SetupSource<'_>,
        (b, h): (usize, usize),
        rows: impl ExactSizeIterator<Item = usize> + Clone,
    ) -> Vec<T> {
        let mut out = source.rows(b, h, rows.clone());
        for (row, x) in rows.zip(out.chunks_exact_mut(source.view.dims[3])) {
            for (column, x) in x.iter_mut().enumerate() {
                *x = *x * T::from_f64(self.buffer.get(self.blocks.at((b, h), row, column)));
            }
        }
        out
    }
}

/// Indices into matrices of scale factors in the order `F8_128x4`: tiles of 128 × 4, in which four rows that are 32
/// apart share 16 bytes. Source: NVIDIA's description of the layout,
/// <https://nvidia.github.io/cudnn-frontend/mxfp8-scale-factor-128x4-layout/>.
///
/// Scales along the head dim are one matrix for each head, its tiles row by row. Scales along the sequence are one
/// matrix for all heads: the tiles of the first 128 elements of the head dim of every head stand before those of the
/// next 128. Source: cudnn-frontend 1.23, `sdpa_fp8_bwd.h`, which gives the scales of `Q_T` and `K_T` the stride
/// `batch · heads · tiles` from one 128 elements to the next, and `test/python/sdpa/mxfp8.py`, which swizzles one
/// transposed matrix of all heads.
#[derive(Clone, Copy)]
struct BlockTiles {
    /// Tiles from one head to the next.
    head: usize,
    /// Tiles from one row of tiles to the next.
    row: usize,
}

impl BlockTiles {
    fn at(&self, head: usize, outer: usize, inner: usize) -> usize {
        let tile = head * self.head + outer / 128 * self.row + inner / 4;
        let (row, column) = (outer % 128, inner % 4);
        tile * 512 + row % 32 * 16 + row / 32 * 4 + column
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_hold_every_factor_once() {
        for sequence in [false, true] {
            let dims = [2, 3, 256, 256];
            let layout = Blocks::new(dims, sequence);
            let mut seen = vec![false; 2 * 3 * 256 * 256 / BLOCK];
            let (rows, columns) = if sequence { (BLOCK, 1) } else { (1, BLOCK) };
            for (b, h) in (0..2).flat_map(|b| (0..3).map(move |h| (b, h))) {
                for (s, d) in (0..256).step_by(rows).flat_map(|s| (0..256).step_by(columns).map(move |d| (s, d))) {
                    assert!(!std::mem::replace(&mut seen[layout.at((b, h), s, d)], true), "{b} {h} {s} {d}");
                }
            }
            assert!(seen.iter().all(|&seen| seen));
        }
        let rows = Blocks::new([1, 1, 256, 256], false);
        let at = |row, column| rows.at((0, 0), row, column);
        assert_eq!([at(0, 32), at(32, 0), at(1, 0), at(0, 128), at(128, 0)], [1, 4, 16, 512, 1024]);
    }

    /// Heads stood one after the other, each with both its planes, which is right up to a head dim of 128.
    #[test]
    fn scales_along_the_sequence_have_all_heads_of_128_elements_before_the_next_128() {
        let layout = Blocks::new([2, 3, 300, 192], true);
        let tile = |b, h, row, column| layout.at((b, h), row, column) / 512;
        // Three tiles of 128 rows for each of six heads, then the elements from 128 on.
        assert_eq!([tile(0, 0, 0, 0), tile(0, 0, 128, 0), tile(0, 1, 0, 0), tile(1, 2, 256, 127)], [0, 1, 3, 17]);
        assert_eq!([tile(0, 0, 0, 128), tile(0, 0, 256, 191), tile(1, 2, 299, 128)], [18, 20, 35]);
        let narrow = Blocks::new([2, 3, 300, 128], true);
        assert_eq!(narrow.at((1, 0), 260, 127) / 512, 3 * 3 + 2);
    }
}
