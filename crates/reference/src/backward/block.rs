//! The additional inputs of a microscaled backward: the forms of Q, K and dO that are scaled along the sequence, and
//! the 16-bit dO, whose products with O are the row sums.

use std::ops::Range;

use qkvault_graph::{Attention, Role, Scaled};

use crate::fp8::BlockScales;
use crate::kernel::dot;
use crate::setup::SetupSource;
use crate::view::SeqLens;
use crate::{Inputs, ReferenceError};

/// A tensor and its scales.
struct BlockForm<'a> {
    source: SetupSource<'a>,
    scales: BlockScales<'a>,
}

/// The additional inputs.
pub(super) struct Block<'a> {
    q_t: BlockForm<'a>,
    k_t: BlockForm<'a>,
    d_o: BlockForm<'a>,
    d_o_t: BlockForm<'a>,
    d_o_half: SetupSource<'a>,
    o: SetupSource<'a>,
}

impl<'a> Block<'a> {
    pub(super) fn new(a: &'a Attention, inputs: &'a Inputs, lens: &SeqLens) -> Result<Block<'a>, ReferenceError> {
        let source = |role| SetupSource::for_role(a, role, inputs, lens);
        let form = |role, which| Ok(BlockForm { source: source(role)?, scales: BlockScales::new(a, inputs, which)? });
        Ok(Block {
            q_t: form(Role::QT, Scaled::QT)?,
            k_t: form(Role::KT, Scaled::KT)?,
            d_o: form(Role::DO, Scaled::DO)?,
            d_o_t: form(Role::DOT, Scaled::DOT)?,
            d_o_half: source(Role::DOHalf)?,
            o: source(Role::O)?,
        })
    }

    pub(super) fn q_t(&self, at: (usize, usize), queries: &[usize]) -> Vec<f64> {
        self.q_t.scales.rows(&self.q_t.source, at, queries.iter().copied())
    }

    pub(super) fn k_t(&self, at: (usize, usize), keys: Range<usize>) -> Vec<f64> {
        self.k_t.scales.rows(&self.k_t.source, at, keys)
    }

    pub(super) fn d_o(&self, at: (usize, usize), queries: &[usize]) -> Vec<f64> {
        self.d_o.scales.rows(&self.d_o.source, at, queries.iter().copied())
    }

    pub(super) fn d_o_t(&self, at: (usize, usize), queries: &[usize]) -> Vec<f64> {
        self.d_o_t.scales.rows(&self.d_o_t.source, at, queries.iter().copied())
    }

    /// The sum of `dO ∘ O` over a row, from the 16-bit dO and the stored O of the forward.
    pub(super) fn row_sum(&self, (b, h): (usize, usize), query: usize) -> f64 {
        let row = |source: &SetupSource<'_>| source.rows::<f64>(b, h, std::iter::once(query));
        dot(&row(&self.d_o_half), &row(&self.o))
    }
}
