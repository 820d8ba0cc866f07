//! O and Stats of all keys, for a backward that computes only some of them.

use qkvault_graph::{Attention, Role, operand};

use crate::view::SeqLens;
use crate::{Inputs, ReferenceError, View};

/// O and Stats in float64, each in the memory order of its operand ([`crate::ExactOutput::values`]).
///
/// If the keys of one attention are computed in several parts, each part has a backward of its own. It is exact if it
/// reads the Stats and the O of the whole: the gradients of queries then are sums over parts of the keys, those of keys
/// and values over parts of the queries.
#[derive(Clone, Copy, Debug)]
pub struct Whole<'a> {
    /// The output of the whole.
    pub o: &'a [f64],
    /// The log-sum-exp of the whole.
    pub stats: &'a [f64],
}

/// [`Whole`] with the addresses of its rows.
pub(super) struct BackwardGiven<'a> {
    whole: Whole<'a>,
    o: View,
    stats: View,
}

impl<'a> BackwardGiven<'a> {
    pub(super) fn new(
        a: &Attention,
        whole: Whole<'a>,
        inputs: &Inputs,
        lens: &SeqLens,
    ) -> Result<BackwardGiven<'a>, ReferenceError> {
        let view = |role: Role, given: usize| {
            let operand = operand(a, role).ok_or(ReferenceError::Missing { role })?;
            let needed = crate::inputs::elements(&operand)?;
            if given < needed {
                return Err(ReferenceError::TooShort { role, given, needed });
            }
            View::for_operand(&operand, inputs, lens)
        };
        Ok(BackwardGiven { whole, o: view(Role::O, whole.o.len())?, stats: view(Role::Stats, whole.stats.len())? })
    }

    pub(super) fn stats(&self, (b, h): (usize, usize), query: usize) -> f64 {
        self.whole.stats[self.stats.row(b, h, query)]
    }

    pub(super) fn o(&self, (b, h): (usize, usize), query: usize) -> &'a [f64] {
        &self.whole.o[self.o.row(b, h, query)..][..self.o.dims[3]]
    }
}
