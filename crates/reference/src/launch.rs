//! The judgement of a launch: a comparison that allows for what kernels round, and for sums that cancel.

use std::cell::OnceCell;

use qkvault_graph::{Attention, DType, Role, Valid};

use crate::{Buffer, Comparison, Defined, ExactOutput, Inputs, OutputTolerance, ReferenceError, Roundings, compare};

impl OutputTolerance {
    /// The bounds for what a launch writes. Gradients have two more roundings to 16 bits than O, because probabilities
    /// and their gradients are operands of matrix products.
    #[must_use]
    pub fn of_launch(role: Role, dtype: DType) -> OutputTolerance {
        let usual = OutputTolerance::for_role(role, dtype);
        match role {
            Role::DQ | Role::DK | Role::DV => OutputTolerance { relative: 3.0 * usual.relative, ..usual },
            Role::DScoreTensor(_) | Role::DSink => OutputTolerance { relative: 3e-2, ..usual },
            _ => usual,
        }
    }
}

/// The absolute error of one element that rounding of its terms explains. Terms are of the order of one. If a row has
/// few keys, or all expected values are `zero`, gradients are differences of equal numbers, and the bound is larger.
#[must_use]
pub fn cancellation(attention: &Attention, role: Role, dtype: DType, zero: bool) -> f64 {
    if role == Role::Stats {
        return 0.0;
    }
    let ulp = if dtype == DType::F16 { 1e-3 } else { 8e-3 };
    let one_key = attention.mask.band.is_some_and(|band| band.left == Some(1) && band.right == Some(0));
    if attention.seq().1 <= 4 || one_key || zero { 16.0 * ulp } else { 0.1 * ulp }
}

/// Compares what a launch wrote with the exact output, as [`compare`] does. A result is good too if it is wholly
/// written and no element is further off than [`cancellation`] explains: sums that cancel, such as gradients over a few
/// keys, leave the rounding errors of their terms.
#[must_use]
pub fn compare_launch(attention: &Attention, expected: &ExactOutput, actual: &Buffer) -> Comparison {
    let (role, dtype) = (expected.role(), actual.dtype());
    let found = compare(expected, actual, OutputTolerance::of_launch(role, dtype));
    // In float64 a sum that cancels leaves some 1e-16 of its terms.
    let zero = expected.values().iter().all(|&x| x.abs() < 1e-9);
    let cancelled = found.max_abs <= cancellation(attention, role, dtype, zero);
    let written = found.non_finite + found.unwritten + found.touched == 0;
    Comparison { good: found.good || cancelled && written, ..found }
}

/// Judges the outputs of one launch: each as a whole and row by row, so that one wrong row is seen. Whatever is further
/// off than usual is judged by the [roundings](Roundings) of its own numbers, which are followed once, when they are
/// first needed.
pub struct LaunchJudge<'a> {
    attention: &'a Valid,
    inputs: &'a Inputs,
    roundings: OnceCell<Result<Roundings, ReferenceError>>,
}

/// The judgement of one output of a launch.
#[derive(Clone, Debug)]
pub struct OutputVerdict {
    /// The comparison of all elements.
    pub found: Comparison,
    /// The largest difference relative to what roundings explain, if they were followed.
    pub of_roundings: Option<f64>,
    /// What is wrong; `None` for a right output.
    pub fault: Option<String>,
}

/// Times the relative bound of a whole output that one of its rows may be off.
const ROW: f64 = 2.0;

impl<'a> LaunchJudge<'a> {
    /// A judge of launches of an attention over these operands.
    #[must_use]
    pub const fn new(attention: &'a Valid, inputs: &'a Inputs) -> LaunchJudge<'a> {
        LaunchJudge { attention, inputs, roundings: OnceCell::new() }
    }

    /// Judges what a launch wrote.
    #[must_use]
    pub fn judge(&self, expected: &ExactOutput, written: &Buffer) -> OutputVerdict {
        let (role, a) = (expected.role(), self.attention.get());
        let tolerance = OutputTolerance::of_launch(role, written.dtype());
        let found = compare(expected, written, tolerance);
        let whole = found.non_finite + found.unwritten + found.touched == 0;
        let close = |most| by_rows(role).then(|| furthest_row(expected, written)).is_none_or(|off| off <= most);
        if !whole || found.good && close(ROW * tolerance.relative) {
            let fault = (!whole).then(|| format!("{role}: {found}"));
            return OutputVerdict { found, of_roundings: None, fault };
        }
        if a.has_narrow_products() {
            let compared = compare_launch(a, expected, written);
            let fault = (!compared.good).then(|| format!("{role}: {compared}"));
            return OutputVerdict { found, of_roundings: None, fault };
        }
        match self.roundings.get_or_init(|| Roundings::for_attention(self.attention, self.inputs)) {
            Ok(roundings) => {
                let judged = roundings.judge(expected, written);
                let of_roundings = judged.as_ref().map(|judged| judged.worst);
                let fault = judged.map_or_else(
                    || (!found.good).then(|| format!("{role}: {found}")),
                    |judged| judged.fault.map(|fault| format!("{role}: {fault}")),
                );
                OutputVerdict { found, of_roundings, fault }
            }
            Err(error) => OutputVerdict { found, of_roundings: None, fault: Some(format!("{role}: {error}")) },
        }
    }
}

const fn by_rows(role: Role) -> bool {
    matches!(role, Role::O | Role::DQ | Role::DK | Role::DV)
}

/// The distance of the row that is furthest off, relative to its exact numbers.
fn furthest_row(expected: &ExactOutput, written: &Buffer) -> f64 {
    let mut furthest = 0.0_f64;
    expected.each_row(|_, places| {
        let defined = places.filter(|&at| at < written.len() && expected.defined()[at] == Defined::Value);
        let (off, norm) = defined.fold((0.0, 0.0), |(off, norm), at| {
            let x = expected.values()[at];
            (off + (written.get(at) - x).powi(2), norm + x * x)
        });
        if off > 0.0 {
            furthest = furthest.max((off / norm).sqrt());
        }
    });
    furthest
}

#[cfg(test)]
mod tests {
    use qkvault_graph::{BackwardOptions, validate};

    use super::*;
    use crate::{Inputs, backward};

    /// One key has all of each row's probability, so that the gradients of Q and K are zero, and a device leaves
    /// rounding errors there.
    #[test]
    fn sums_that_cancel_are_good_within_the_rounding_of_their_terms_and_not_beyond() {
        let forward = Attention::bshd(1, (2, 2), (8, 1), 16, DType::BF16).with_stats();
        let attention = validate(forward.backward(BackwardOptions::default())).expect("sound");
        let inputs = Inputs::random(&attention, 1).expect("sound");
        let outputs = backward(&attention, &inputs).expect("computed");
        let dq = outputs.get(Role::DQ).expect("a gradient");
        let off = |by: f64| {
            let mut buffer = dq.buffer();
            buffer.set(3, buffer.get(3) + by);
            compare_launch(attention.get(), dq, &buffer)
        };
        assert!(off(0.0).good && off(0.1).good && !off(0.5).good);
        let mut unwritten = dq.buffer();
        unwritten.poison();
        assert!(!compare_launch(attention.get(), dq, &unwritten).good);
    }

    #[test]
    fn gradients_may_be_off_by_three_times_as_much_as_o() {
        let relative = |role| OutputTolerance::of_launch(role, DType::BF16).relative;
        assert_eq!(relative(Role::DQ), 3.0 * relative(Role::O));
        assert_eq!(OutputTolerance::of_launch(Role::O, DType::F16), OutputTolerance::for_role(Role::O, DType::F16));
    }
}
