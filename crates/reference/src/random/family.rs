//! Families of data: kinds of numbers that normal ones never are. Some faults of kernels show in one of them alone.

use std::fmt;
use std::str::FromStr;

use qkvault_graph::{Attention, DType, Fp8, Operand, Role, Scaled};

use super::added;
use crate::{Inputs, ReferenceError};

/// What kind of numbers the operands hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Normal numbers: a log-sum-exp is never below 0, and no row is constant.
    #[default]
    Normal,
    /// All scores of a row are near -120, by a constant dim of Q and K: a log-sum-exp is far below 0.
    Below,
    /// All scores of a row are near 120.
    Above,
    /// All scores of a row are near -30,000.
    FarBelow,
    /// All scores of a row are near 30,000.
    FarAbove,
    /// Tensors that are added to scores hold -30,000, -120, 120 or 30,000 in whole rows.
    Biased,
    /// Tensors that are added to the scores of a forward hold the lowest finite number of their type in whole rows, and
    /// for the last keys of others, as padding masks do. Every key of such a row weighs the same.
    Lowest,
    /// All keys of a head are equal, so all scores of a row are: every key weighs the same.
    Constant,
    /// The first key of each head has nearly all of each row's weight.
    Dominant,
    /// Q and K are zero.
    Zero,
    /// Q and K are as small as subnormal numbers of 16 bits.
    Tiny,
    /// V is near the largest numbers that sums of its type hold, and dO is small.
    Large,
    /// NaN stands wherever no row within lengths is: in padding, between sequences, in pages and behind their last
    /// rows.
    Behind,
}

impl Family {
    /// All families.
    pub const ALL: [Family; 13] = [
        Family::Normal,
        Family::Below,
        Family::Above,
        Family::FarBelow,
        Family::FarAbove,
        Family::Biased,
        Family::Lowest,
        Family::Constant,
        Family::Dominant,
        Family::Zero,
        Family::Tiny,
        Family::Large,
        Family::Behind,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Family::Normal => "normal",
            Family::Below => "below",
            Family::Above => "above",
            Family::FarBelow => "far-below",
            Family::FarAbove => "far-above",
            Family::Biased => "biased",
            Family::Lowest => "lowest",
            Family::Constant => "constant",
            Family::Dominant => "dominant",
            Family::Zero => "zero",
            Family::Tiny => "tiny",
            Family::Large => "large",
            Family::Behind => "behind",
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

/// Changes operands to numbers of a family.
pub(super) fn shape(
    a: &Attention,
    list: &[Operand],
    family: Family,
    inputs: &mut Inputs,
) -> Result<(), ReferenceError> {
    match family {
        Family::Normal | Family::Behind => Ok(()),
        Family::Biased | Family::Lowest => {
            added::shape(a, family, inputs);
            Ok(())
        }
        Family::Large if a.q.dtype.is_half() => {
            for (role, by) in [(Role::V, large(a.v.dtype)), (Role::DO, small(a.v.dtype))] {
                if let Some(buffer) = inputs.get_mut(role) {
                    (0..buffer.len()).for_each(|at| buffer.set(at, buffer.get(at) * by));
                }
            }
            Ok(())
        }
        Family::Large => Ok(()),
        _ => scores(a, list, family, inputs),
    }
}

/// The factor of normal numbers with which sums of a few thousand stay within f32, and single numbers within the type.
const fn large(dtype: DType) -> f64 {
    if matches!(dtype, DType::F16) { 8192.0 } else { (1_u128 << 100) as f64 }
}

/// The factor of dO with which its products with large values have moderate gradients.
const fn small(dtype: DType) -> f64 {
    if matches!(dtype, DType::F16) { 1.0 / 256.0 } else { 1.0 / (1_u64 << 60) as f64 }
}

/// Changes Q and K, by their real numbers where they are stored with a factor. Microscaled operands stay as they are.
fn scores(a: &Attention, list: &[Operand], family: Family, inputs: &mut Inputs) -> Result<(), ReferenceError> {
    if a.fp8 == Some(Fp8::Block) {
        return Ok(());
    }
    // An expression that makes scores of 30,000 larger has nothing left of their digits in f32.
    let far = if a.score_mod.as_ref().is_none_or(|e| added::only_adds(e.program())) { 30_000.0 } else { 120.0 };
    let factor = |which| inputs.get(Role::Descale(which)).map_or(1.0, |buffer| buffer.get(0));
    let stored = f64::from(a.default_scale()) * factor(Scaled::Q) * factor(Scaled::K);
    for operand in list.iter().filter(|operand| matches!(operand.role, Role::Q | Role::K)) {
        let side = usize::from(operand.role == Role::K);
        let [batch, heads, rows, columns] = operand.tensor.extents().map(|n| n as usize);
        let [sb, sh, ss, sd] = operand.tensor.strides.map(|n| n as usize);
        inputs.checked(operand)?;
        let Some(buffer) = inputs.get_mut(operand.role) else { continue };
        // Stored numbers whose products, over the first dims, add to this score, or come as near as they can.
        let first = |score: f64, columns: usize| split(score / stored / columns as f64, operand.tensor.dtype)[side];
        let places = (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..rows).map(move |s| (b, h, s))));
        for (b, h, s) in places {
            let at = |s: usize, d: usize| b * sb + h * sh + s * ss + d * sd;
            for d in 0..columns {
                let x = buffer.get(at(s, d));
                let level = match family {
                    Family::Below => Some(-120.0),
                    Family::Above => Some(120.0),
                    Family::FarBelow => Some(-far),
                    Family::FarAbove => Some(far),
                    Family::Dominant => Some(40.0),
                    _ => None,
                };
                let value = match (level, family, side) {
                    (Some(level), ..) => {
                        let needed = constant_dims(level / stored, operand.tensor.dtype, columns);
                        match (d < needed, family, side) {
                            (true, Family::Dominant, 1) if s > 0 => 0.0,
                            (true, ..) => first(level, needed),
                            (false, ..) => x * REST,
                        }
                    }
                    (None, Family::Constant, 1) => buffer.get(at(0, d)),
                    (None, Family::Zero, _) => 0.0,
                    (None, Family::Tiny, _) => x * 1e-7,
                    (None, ..) => x,
                };
                buffer.set(at(s, d), value);
            }
        }
    }
    Ok(())
}

/// The largest numbers that constant dims use.
fn most(dtype: DType) -> f64 {
    dtype.largest_fp8().map_or(32_768.0, f64::from)
}

/// How many dims of constant numbers have this product together: one in 16 bits, at most half of them in 8.
fn constant_dims(product: f64, dtype: DType, columns: usize) -> usize {
    let each = most(dtype) * most(dtype) / 4.0;
    ((product.abs() / each).ceil() as usize).clamp(1, (columns / 2).max(1))
}

/// Two numbers that a type holds, with about this product: the first is a power of two.
fn split(product: f64, dtype: DType) -> [f64; 2] {
    let most = most(dtype);
    let first =
        if product.abs() < 4096.0 && !dtype.is_fp8() { 1.0 } else { product.abs().sqrt().log2().round().exp2() };
    let first = first.min((most / 2.0).log2().floor().exp2());
    [first, (product / first).clamp(-most, most)]
}

#[cfg(test)]
mod tests {
    use qkvault_graph::{Attention, DType, validate};

    use super::*;
    use crate::forward;
    use crate::random::RandomChoice;

    #[test]
    fn each_family_has_the_scores_that_it_promises() {
        let a = Attention::bshd(2, (4, 2), (9, 40), 64, DType::BF16).with_stats();
        let a = validate(a).expect("valid");
        let stats = |family| {
            let inputs =
                Inputs::random_with(&a, 3, &RandomChoice { family, ..RandomChoice::default() }).expect("random");
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
        near(Family::FarBelow, -30_200.0, -29_800.0);
        near(Family::FarAbove, 29_800.0, 30_200.0);
        near(Family::Dominant, 38.0, 42.0);
        near(Family::Large, 0.0, 10.0);
        near(Family::Zero, all - 1e-9, all + 1e-9);
        near(Family::Tiny, all - 1e-6, all + 1e-6);
        for family in Family::ALL {
            assert_eq!(family.name().parse(), Ok(family));
        }
        assert!("odd".parse::<Family>().is_err_and(|error| error.to_string().contains("below")));
    }

    /// In 8 bits the numbers are stored with a factor, and 30,000 is beyond what two of them can have as a product.
    #[test]
    fn scores_of_eight_bits_are_near_the_same_levels() {
        let mut a = Attention::bshd(1, (2, 2), (5, 24), 128, DType::E4M3).with_stats();
        a.fp8 = Some(Fp8::Delayed);
        let a = validate(a).expect("valid");
        for (family, level) in [(Family::Below, -120.0), (Family::Above, 120.0)] {
            let inputs =
                Inputs::random_with(&a, 3, &RandomChoice { family, ..RandomChoice::default() }).expect("random");
            let outputs = forward(&a, &inputs).expect("computes");
            let stats = outputs.get(Role::Stats).expect("asked for").values();
            assert!(stats.iter().all(|stat| (stat - level).abs() < 12.0), "{family}: {stats:?}");
        }
    }

    #[test]
    fn nothing_but_rows_within_lengths_is_a_number_in_behind() {
        let a = validate(Attention::bshd(2, (1, 1), (6, 9), 16, DType::F16).with_lengths()).expect("valid");
        let inputs = Inputs::random_with(&a, 5, &RandomChoice { family: Family::Behind, ..RandomChoice::default() })
            .expect("random");
        let k = inputs.get(Role::K).expect("read");
        let lengths: Vec<usize> = (0..2).map(|b| inputs.get(Role::SeqLenKv).expect("read").int(b) as usize).collect();
        for (b, s) in (0..2).flat_map(|b| (0..9).map(move |s| (b, s))) {
            assert_eq!(k.get((b * 9 + s) * 16).is_nan(), s >= lengths[b], "{b} {s}");
        }
        assert!(
            forward(&a, &inputs)
                .expect("computes")
                .get(Role::O)
                .expect("an output")
                .values()
                .iter()
                .all(|x| x.is_finite())
        );
    }
}
