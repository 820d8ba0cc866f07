//! Scale factors of 8-bit attention: per tensor (delayed and current), and per 32 elements (microscaled).
//!
//! Per tensor, in the order that NVIDIA's frontend emits: scores times the factors of Q and K; probabilities, after dropout,
//! measured, multiplied by the scale of S and rounded to Q's 8-bit type; the second product times the factors of S and V,
//! measured, multiplied by the scale of O and rounded to O's type. Microscaled: Q, K and V are multiplied out first, the
//! probabilities are rounded to Q's 8-bit type unscaled, and O is measured as it is.
//!
//! Not modelled: the lazy rescaling of Blackwell's kernel (it rounds probabilities relative to an older maximum, by powers of
//! two) and the rounding of running sums; both are properties of kernels, not of the description.

use qkvault_graph::{Attention, DType, Fp8, Role, Scaled};

use crate::operands::{BLOCK, operand};
use crate::setup::Source;
use crate::{Buffer, Inputs, Real, ReferenceError, round};

/// Factors of every tensor; all 1 for 16-bit attention.
pub(crate) struct Factors<'a> {
    q: f64,
    k: f64,
    v: f64,
    /// How probabilities are rounded; `None` where they are not.
    s: Option<Rounded>,
    pub(crate) o: f64,
    blocks: Option<[&'a Buffer; 3]>,
}

/// A tensor that is stored in 8 bits between two products.
#[derive(Clone, Copy)]
pub(crate) struct Rounded {
    pub(crate) scale: f64,
    pub(crate) descale: f64,
    pub(crate) dtype: DType,
}

impl Rounded {
    /// The value that comes back after it was stored.
    pub(crate) fn through(self, x: f64) -> f64 {
        round(self.dtype, x * self.scale) * self.descale
    }
}

/// One factor of an attention, if it has that operand.
pub(crate) fn factor(a: &Attention, inputs: &Inputs, role: Role) -> Result<f64, ReferenceError> {
    operand(a, role).map_or(Ok(1.0), |operand| Ok(inputs.checked(&operand)?.get(0)))
}

impl<'a> Factors<'a> {
    pub(crate) fn new(a: &Attention, inputs: &'a Inputs) -> Result<Factors<'a>, ReferenceError> {
        let one = |role| factor(a, inputs, role);
        let dtype = a.q.dtype;
        match a.fp8 {
            None => Ok(Factors { q: 1.0, k: 1.0, v: 1.0, s: None, o: 1.0, blocks: None }),
            Some(Fp8::Delayed | Fp8::Current) => Ok(Factors {
                q: one(Role::Descale(Scaled::Q))?,
                k: one(Role::Descale(Scaled::K))?,
                v: one(Role::Descale(Scaled::V))?,
                s: Some(Rounded {
                    scale: one(Role::ScaleOf(Scaled::S))?,
                    descale: one(Role::Descale(Scaled::S))?,
                    dtype,
                }),
                o: one(Role::ScaleOf(Scaled::O))?,
                blocks: None,
            }),
            Some(Fp8::Block) => {
                let scales = |which| {
                    let role = Role::Descale(which);
                    inputs.checked(&operand(a, role).ok_or(ReferenceError::Missing { role })?)
                };
                let s = Some(Rounded { scale: 1.0, descale: 1.0, dtype });
                let blocks = Some([scales(Scaled::Q)?, scales(Scaled::K)?, scales(Scaled::V)?]);
                Ok(Factors { q: 1.0, k: 1.0, v: 1.0, s, o: 1.0, blocks })
            }
        }
    }

    pub(crate) fn probabilities(&self) -> Option<Rounded> {
        self.s
    }

    /// Rows of Q, K or V as the numbers they stand for.
    pub(crate) fn rows<T: Real>(
        &self,
        which: Scaled,
        source: &Source<'_>,
        (b, h): (usize, usize),
        rows: impl ExactSizeIterator<Item = usize> + Clone,
    ) -> Vec<T> {
        let mut out = source.rows(b, h, rows.clone());
        let [_, heads, s, d] = source.view.dims;
        let (factor, blocks) = match which {
            Scaled::Q => (self.q, self.blocks.map(|[q, _, _]| q)),
            Scaled::K => (self.k, self.blocks.map(|[_, k, _]| k)),
            _ => (self.v, self.blocks.map(|[_, _, v]| v)),
        };
        if let Some(blocks) = blocks {
            let along_rows = which == Scaled::V;
            let (outer, inner) = if along_rows { (d, s.div_ceil(BLOCK)) } else { (s, d.div_ceil(BLOCK)) };
            let matrix = Tiles { outer: outer.next_multiple_of(128), inner: inner.next_multiple_of(4) };
            let start = (b * heads + h) * matrix.outer * matrix.inner;
            for (row, x) in rows.zip(out.chunks_exact_mut(d)) {
                for (column, x) in x.iter_mut().enumerate() {
                    let (outer, inner) = if along_rows { (column, row / BLOCK) } else { (row, column / BLOCK) };
                    *x = *x * T::of(blocks.get(start + matrix.at(outer, inner)));
                }
            }
        } else if factor != 1.0 {
            out.iter_mut().for_each(|x| *x = *x * T::of(factor));
        }
        out
    }
}

/// A matrix of scale factors in the order `F8_128x4`: tiles of 128 × 4, of which four rows that are 32 apart share 16 bytes.
/// Source: NVIDIA's description of the layout, <https://nvidia.github.io/cudnn-frontend/mxfp8-scale-factor-128x4-layout/>.
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
