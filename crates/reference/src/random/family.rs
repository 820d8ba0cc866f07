//! Families of data: kinds of numbers that normal ones never are. Some faults of kernels show in one of them alone.

use std::fmt;
use std::str::FromStr;

use qkvault_graph::{Attention, Operand, Role};

use crate::{Inputs, ReferenceError};

/// What kind of numbers Q and K hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Normal numbers: a log-sum-exp is never below 0, and no row is constant.
    #[default]
    Normal,
    /// All scores of a row are near -120, by a constant dim of Q and K: a log-sum-exp is far below 0.
    Below,
    /// All scores of a row are near 120.
    Above,
    /// All keys of a head are equal, so all scores of a row are: every key weighs the same.
    Constant,
    /// The first key of each head has nearly all of each row's weight.
    Dominant,
    /// Q and K are zero.
    Zero,
    /// Q and K are as small as subnormal numbers of 16 bits.
    Tiny,
}

impl Family {
    /// All families.
    pub const ALL: [Family; 7] =
        [Family::Normal, Family::Below, Family::Above, Family::Constant, Family::Dominant, Family::Zero, Family::Tiny];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Family::Normal => "normal",
            Family::Below => "below",
            Family::Above => "above",
            Family::Constant => "constant",
            Family::Dominant => "dominant",
            Family::Zero => "zero",
            Family::Tiny => "tiny",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for a text that names no family.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is no family of data; one of {}", Family::ALL.map(Family::name).join(", "))]
pub struct UnknownFamily {
    /// The text.
    pub given: String,
}

impl FromStr for Family {
    type Err = UnknownFamily;

    fn from_str(text: &str) -> Result<Family, UnknownFamily> {
        let found = Family::ALL.into_iter().find(|family| family.name() == text);
        found.ok_or_else(|| UnknownFamily { given: text.escape_debug().to_string() })
    }
}

/// How small the other dims are where one dim decides the scores.
const REST: f64 = 0.125;

/// The score that a dim of 1 in Q and of this in K gives, before a score expression.
fn level(a: &Attention, score: f64) -> f64 {
    score / f64::from(a.default_scale())
}

/// Changes Q and K in 16 bits to numbers of a family. Operands in 8 bits stay as they are.
pub(super) fn shape(
    a: &Attention,
    list: &[Operand],
    family: Family,
    inputs: &mut Inputs,
) -> Result<(), ReferenceError> {
    if family == Family::Normal || !a.q.dtype.is_half() {
        return Ok(());
    }
    for operand in list.iter().filter(|operand| matches!(operand.role, Role::Q | Role::K)) {
        let of_keys = operand.role == Role::K;
        let [batch, heads, rows, columns] = operand.tensor.extents().map(|n| n as usize);
        let [sb, sh, ss, sd] = operand.tensor.strides.map(|n| n as usize);
        inputs.checked(operand)?;
        let Some(buffer) = inputs.get_mut(operand.role) else { continue };
        let places = (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..rows).map(move |s| (b, h, s))));
        for (b, h, s) in places {
            let at = |s: usize, d: usize| b * sb + h * sh + s * ss + d * sd;
            for d in 0..columns {
                let x = buffer.get(at(s, d));
                let value = match (family, of_keys, d) {
                    (Family::Below | Family::Above | Family::Dominant, false, 0) => 1.0,
                    (Family::Below, true, 0) => level(a, -120.0),
                    (Family::Above, true, 0) => level(a, 120.0),
                    (Family::Dominant, true, 0) => level(a, if s == 0 { 40.0 } else { 0.0 }),
                    (Family::Constant, true, _) => buffer.get(at(0, d)),
                    (Family::Zero, ..) => 0.0,
                    (Family::Tiny, ..) => x * 1e-7,
                    (Family::Normal | Family::Constant, ..) => x,
                    (Family::Below | Family::Above | Family::Dominant, ..) => x * REST,
                };
                buffer.set(at(s, d), value);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use qkvault_graph::{Attention, DType, validate};

    use super::*;
    use crate::forward;
    use crate::random::Choice;

    #[test]
    fn each_family_has_the_scores_that_it_promises() {
        let a = Attention::bshd(2, (4, 2), (9, 40), 64, DType::BF16).with_stats();
        let a = validate(a).expect("valid");
        let stats = |family| {
            let inputs = Inputs::random_with(&a, 3, &Choice { family, ..Choice::default() }).expect("random");
            let outputs = forward(&a, &inputs).expect("computes");
            let stats = outputs.get(Role::Stats).expect("asked for").values().to_vec();
            let least = stats.iter().copied().fold(f64::INFINITY, f64::min);
            (least, stats.iter().copied().fold(f64::NEG_INFINITY, f64::max))
        };
        let all = (40.0_f64).ln();
        let near = |family, low: f64, high: f64| {
            let (least, most) = stats(family);
            assert!(least >= low && most <= high, "{family}: {least} to {most}");
        };
        near(Family::Normal, 0.0, 10.0);
        near(Family::Below, -122.0 + all, -118.0 + all);
        near(Family::Above, 118.0 + all, 122.0 + all);
        near(Family::Dominant, 38.0, 42.0);
        near(Family::Zero, all - 1e-9, all + 1e-9);
        near(Family::Tiny, all - 1e-6, all + 1e-6);
        for family in Family::ALL {
            assert_eq!(family.name().parse(), Ok(family));
        }
        assert!("odd".parse::<Family>().is_err_and(|error| error.to_string().contains("below")));
    }
}
