//! Distances between a launch, the oracle's rounded result and the exact numbers, of one sequence or of all.

use qkvault_graph::{Role, Valid, operand};
use qkvault_reference::{Inputs, ReferenceError, View};

use super::rows::lengths;

/// Sums of squares over compared elements.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Distance {
    /// Of the exact numbers.
    pub(super) exact: f64,
    /// Of the oracle's rounded result to them.
    pub(super) oracle: f64,
    /// Of the launch to them.
    pub(super) actual: f64,
}

impl Distance {
    pub(super) fn add(&mut self, exact: f64, oracle: f64, actual: f64) {
        self.exact += exact * exact;
        self.oracle += (oracle - exact).powi(2);
        self.actual += (actual - exact).powi(2);
    }

    pub(super) fn join(&mut self, other: &Distance) {
        self.exact += other.exact;
        self.oracle += other.oracle;
        self.actual += other.actual;
    }
}

/// The elements of one sequence in an output.
pub(super) struct OutputSequence {
    pub(super) number: usize,
    pub(super) keys: usize,
    pub(super) places: Vec<usize>,
}

/// The elements of each sequence within its length.
pub(super) fn sequences(a: &Valid, inputs: &Inputs, role: Role) -> Result<Vec<OutputSequence>, ReferenceError> {
    let view = View::new(a, role, inputs)?;
    let tensor = operand(a, role).ok_or(ReferenceError::Missing { role })?.tensor;
    let [_, heads, _, width] = tensor.dims.map(|n| n.unsigned_abs() as usize);
    let side = usize::from(matches!(role, Role::DK | Role::DV));
    let of = |(number, lengths): (usize, [usize; 2])| {
        let rows = (0..heads).flat_map(|h| (0..lengths[side]).map(move |s| (h, s)));
        let places = rows.flat_map(|(h, s)| {
            let start = view.at(number, h, s, 0);
            start..start + width
        });
        OutputSequence { number, keys: lengths[1], places: places.collect() }
    };
    Ok(lengths(a, inputs).into_iter().enumerate().map(of).collect())
}
