//! Scale factors of 8-bit attention: per tensor (delayed and current), and per 32 elements (microscaled).
//!
//! Per tensor, in the order of NVIDIA's frontend: Scores are multiplied by the factors of Q and K. Probabilities, after
//! dropout, are measured, multiplied by the scale of S and rounded to Q's 8-bit type. The second product is multiplied
//! by the factors of S and V, measured, multiplied by the scale of O and rounded to O's type. Microscaled: Q, K and V
//! are multiplied by their scales first, a forward rounds probabilities to Q's 8-bit type without a scale, and outputs
//! are measured as they are.
//!
//! Some properties of kernels are not modelled: the lazy rescaling of Blackwell's kernel (it rounds probabilities
//! relative to an older maximum, by powers of two), the rounding of running sums, and how the kernel of a microscaled
//! backward rounds probabilities and gradients of scores before its last products. NVIDIA's graph keeps those in f32,
//! and so does this module.

mod blocks;

use qkvault_graph::{Attention, DType, Fp8, Role, Scaled, operand};

use crate::setup::SetupSource;
use crate::{Inputs, Real, ReferenceError, round};

pub(crate) use self::blocks::{BlockScales, Blocks};

/// The factors of every tensor; all are 1 for 16-bit attention.
pub(crate) struct Factors<'a> {
    q: f64,
    k: f64,
    v: f64,
    /// How probabilities are rounded; `None` if they are not.
    s: Option<Rounded>,
    pub(crate) o: f64,
    blocks: Option<[BlockScales<'a>; 3]>,
}

/// A tensor that is stored in 8 bits between two products.
#[derive(Clone, Copy)]
pub(crate) struct Rounded {
    pub(crate) scale: f64,
    pub(crate) descale: f64,
    /// The type that it is stored in; `None` for exact numbers.
    pub(crate) dtype: Option<DType>,
}

impl Rounded {
    /// The value after storing and loading it.
    pub(crate) fn through(self, x: f64) -> f64 {
        let stored = x * self.scale;
        self.dtype.map_or(stored, |dtype| round(dtype, stored)) * self.descale
    }
}

/// The 8-bit type of a tensor between two products. [Widened](Inputs::widened) inputs have exact products.
pub(crate) fn between(inputs: &Inputs, dtype: DType) -> Option<DType> {
    (!inputs.is_widened()).then_some(dtype)
}

/// The factor in this operand; 1 if the attention does not have the operand.
pub(crate) fn factor(a: &Attention, inputs: &Inputs, role: Role) -> Result<f64, ReferenceError> {
    let Some(operand) = operand(a, role) else { return Ok(1.0) };
    let given = inputs.checked(&operand)?.get(0);
    if given.is_finite() && given > 0.0 { Ok(given) } else { Err(ReferenceError::Scale { role, given }) }
}

impl<'a> Factors<'a> {
    pub(crate) fn new(a: &Attention, inputs: &'a Inputs) -> Result<Factors<'a>, ReferenceError> {
        let one = |role| factor(a, inputs, role);
        let dtype = between(inputs, a.q.dtype);
        match a.fp8 {
            None => Ok(Factors { q: 1.0, k: 1.0, v: 1.0, s: None, o: 1.0, blocks: None }),
            Some(Fp8::Cache) => {
                let (k, v) = (one(Role::Descale(Scaled::K))?, one(Role::Descale(Scaled::V))?);
                Ok(Factors { q: 1.0, k, v, s: None, o: 1.0, blocks: None })
            }
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
                // The graph of a microscaled backward keeps probabilities in f32.
                let s = (!a.is_backward()).then_some(Rounded { scale: 1.0, descale: 1.0, dtype });
                let scales = |which| BlockScales::new(a, inputs, which);
                let blocks = Some([scales(Scaled::Q)?, scales(Scaled::K)?, scales(Scaled::V)?]);
                Ok(Factors { q: 1.0, k: 1.0, v: 1.0, s, o: 1.0, blocks })
            }
        }
    }

    pub(crate) fn probabilities(&self) -> Option<Rounded> {
        self.s
    }

    /// Rows of Q, K or V, multiplied by their factor or block scales.
    pub(crate) fn rows<T: Real>(
        &self,
        which: Scaled,
        source: &SetupSource<'_>,
        (b, h): (usize, usize),
        rows: impl ExactSizeIterator<Item = usize> + Clone,
    ) -> Vec<T> {
        let (factor, blocks) = match which {
            Scaled::Q => (self.q, self.blocks.as_ref().map(|[q, _, _]| q)),
            Scaled::K => (self.k, self.blocks.as_ref().map(|[_, k, _]| k)),
            _ => (self.v, self.blocks.as_ref().map(|[_, _, v]| v)),
        };
        if let Some(blocks) = blocks {
            return blocks.rows(source, (b, h), rows);
        }
        let mut out = source.rows(b, h, rows);
        if factor != 1.0 {
            out.iter_mut().for_each(|x| *x = *x * T::from_f64(factor));
        }
        out
    }
}
