//! Compares the output of a device with exact numbers, and checks that the device wrote every element and nothing else.

use std::fmt;

use qkvault_graph::expr::Lowest;
use qkvault_graph::{DType, Role};

use crate::outputs::Defined;
use crate::{Buffer, ExactOutput, ForwardRow, View};

/// The largest acceptable differences between a result and the exact numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutputTolerance {
    /// Bound on the Frobenius norm of the difference, divided by the norm of the exact numbers.
    pub relative: f64,
    /// Bound on the difference of each element, in addition to two steps of f32 at its size: near 3,000 the steps of a
    /// log-sum-exp are 2.4e-4.
    pub absolute: f64,
}

/// Two steps of f32, relative to the number.
const STEPS: f64 = 1.0 / (1 << 22) as f64;

impl OutputTolerance {
    /// The default bounds. Relative: 5e-3 for bf16, 1e-3 for f16, 8e-2 and 1.5e-1 for 8-bit formats, 1e-4 for other
    /// f32 outputs. Absolute: 1e-4 for Stats and Max.
    ///
    /// The 16-bit bounds leave a margin on the H200, where errors of about 2.3e-3 were measured for bf16.
    #[must_use]
    pub const fn for_role(role: Role, dtype: DType) -> OutputTolerance {
        if matches!(role, Role::Stats | Role::Max) {
            return OutputTolerance { relative: f64::INFINITY, absolute: 1e-4 };
        }
        let relative = match dtype {
            DType::BF16 => 5e-3,
            DType::F16 => 1e-3,
            DType::E4M3 => 8e-2,
            DType::E5M2 => 1.5e-1,
            _ => 1e-4,
        };
        OutputTolerance { relative, absolute: f64::INFINITY }
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Number of elements compared.
    pub elements: usize,
    /// Frobenius norm of the difference, divided by the norm of the exact numbers.
    pub relative: f64,
    /// Largest difference of one element.
    pub max_abs: f64,
    /// The element with the largest difference; `None` if all are equal.
    pub worst: Option<Worst>,
    /// Number of elements that are NaN or infinite although the exact number is not, or the reverse.
    pub non_finite: usize,
    /// Number of elements that were not written.
    pub unwritten: usize,
    /// Number of poisoned elements outside the tensor that were written.
    pub touched: usize,
    /// Whether the result is within the tolerance, completely written, and finite where it must be.
    pub good: bool,
}

/// The element with the largest difference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worst {
    /// Batch, head, sequence, head dim.
    pub index: [usize; 4],
    /// The exact number.
    pub expected: f64,
    /// The number that the device wrote.
    pub actual: f64,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Comparison { elements, relative, max_abs, worst, non_finite, unwritten, touched, good } = self;
        let verdict = if *good { "good" } else { "wrong" };
        write!(
            f,
            "{verdict}: relative error {relative:.3e}, largest difference {max_abs:.3e} over {elements} elements"
        )?;
        if let Some(Worst { index, expected, actual }) = worst {
            write!(f, ", at {index:?}: {actual} for {expected}")?;
        }
        for (n, what) in [(non_finite, "not finite"), (unwritten, "never written"), (touched, "written outside")] {
            if *n > 0 {
                write!(f, ", {n} {what}")?;
            }
        }
        Ok(())
    }
}

/// Compares a buffer that a device wrote with the exact output.
///
/// Fill the buffer with [poison](Buffer::poison) before the launch; the comparison then also finds elements that were
/// not written, and elements outside the tensor that were. It skips rows that the description leaves undefined. A
/// buffer may be longer than the output; the elements missing from a shorter one count as unwritten.
#[must_use]
pub fn compare(expected: &ExactOutput, actual: &Buffer, tolerance: OutputTolerance) -> Comparison {
    let mut tally = CompareTally::default();
    for (at, (&x, &defined)) in expected.values().iter().zip(expected.defined()).enumerate() {
        match defined {
            _ if at >= actual.len() => tally.unwritten += usize::from(defined == Defined::Value),
            Defined::Undefined => {}
            Defined::Outside => tally.touched += usize::from(!actual.is_poison(at)),
            Defined::Value => tally.element(at, x, actual),
        }
    }
    tally.finish(tolerance, |at| expected.index_of(at))
}

/// Compares chosen rows of O, Stats, Max or Sum_exp, computed by [`crate::forward_rows`], with a buffer that a device
/// wrote. `view` gives the addresses of rows in the buffer ([`View::new`]).
#[must_use]
pub fn compare_rows(
    rows: &[ForwardRow],
    role: Role,
    view: &View,
    actual: &Buffer,
    tolerance: OutputTolerance,
) -> Comparison {
    let mut tally = CompareTally::default();
    let mut places = Vec::new();
    for row in rows {
        let (b, h, s) = row.at;
        let numbers: &[f64] = match role {
            Role::Stats => &[row.stats],
            Role::Max => &[row.max],
            Role::SumExp => &[row.sum_exp],
            _ => &row.o,
        };
        for (d, &x) in numbers.iter().enumerate() {
            let at = view.at(b, h, s, d);
            places.push((at, [b, h, s, d]));
            if at < actual.len() { tally.element(at, x, actual) } else { tally.unwritten += 1 }
        }
    }
    tally.finish(tolerance, |at| places.iter().find(|(place, _)| *place == at).map(|(_, index)| *index))
}

/// How far a number is off. Near the lowest float, order is all that kernels keep.
pub(crate) fn off(expected: f64, actual: f64) -> f64 {
    let lowest = |x: f64| x <= f64::from(Lowest::BEGIN);
    if lowest(actual) && lowest(expected) { 0.0 } else { (actual - expected).abs() }
}

#[derive(Default)]
struct CompareTally {
    elements: usize,
    difference: f64,
    norm: f64,
    worst: Option<(usize, f64, f64)>,
    max_abs: f64,
    /// Largest difference, less the allowed steps of f32.
    beyond: f64,
    non_finite: usize,
    unwritten: usize,
    touched: usize,
}

impl CompareTally {
    fn element(&mut self, at: usize, expected: f64, buffer: &Buffer) {
        self.elements += 1;
        let actual = buffer.get(at);
        if buffer.is_poison(at) && expected != actual {
            self.unwritten += 1;
            return;
        }
        if !actual.is_finite() || !expected.is_finite() {
            // A number too large for the format is infinite in any result.
            let both_nan = actual.is_nan() && expected.is_nan();
            let same = both_nan || actual == expected || actual == crate::round(buffer.dtype(), expected);
            self.non_finite += usize::from(!same);
            return;
        }
        let off = off(expected, actual);
        self.difference += off * off;
        self.norm += expected * expected;
        self.beyond = self.beyond.max(off - STEPS * expected.abs());
        if off > self.max_abs {
            self.max_abs = off;
            self.worst = Some((at, expected, actual));
        }
    }

    fn finish(self, tolerance: OutputTolerance, index_of: impl Fn(usize) -> Option<[usize; 4]>) -> Comparison {
        let CompareTally { elements, difference, norm, worst, max_abs, beyond, non_finite, unwritten, touched } = self;
        let relative = match (difference, norm) {
            (0.0, _) => 0.0,
            (_, 0.0) => f64::INFINITY,
            _ => (difference / norm).sqrt(),
        };
        let within = relative <= tolerance.relative && beyond <= tolerance.absolute;
        let worst = worst.and_then(|(at, expected, actual)| Some(Worst { index: index_of(at)?, expected, actual }));
        let good = within && non_finite + unwritten + touched == 0;
        Comparison { elements, relative, max_abs, worst, non_finite, unwritten, touched, good }
    }
}

#[cfg(test)]
mod tests {
    use qkvault_graph::{Attention, validate};

    use super::*;
    use crate::{Inputs, forward};

    fn exact() -> ExactOutput {
        let a = validate(Attention::bshd(1, (1, 1), (2, 3), 8, DType::BF16)).expect("sound");
        let outputs = forward(&a, &Inputs::random(&a, 1).expect("random")).expect("computes");
        outputs.get(Role::O).expect("always").clone()
    }

    /// From the self-test (seed 61, case 2071): the result was 2925.8146973 for 2925.8144655, which is the next f32.
    #[test]
    fn a_large_log_sum_exp_may_be_off_by_a_step_of_its_format() {
        let tolerance = OutputTolerance::for_role(Role::Stats, DType::F32);
        let judged = |expected: f64, actual: f64| {
            let mut tally = CompareTally::default();
            let written = Buffer::new(DType::F32, (actual as f32).to_ne_bytes().to_vec()).expect("one number");
            tally.element(0, expected, &written);
            tally.finish(tolerance, |_| None).good
        };
        assert!(judged(2_925.814_465_533_044, 2_925.814_697_265_625));
        assert!(!judged(2_925.814_465_533_044, 2_925.816_5), "nine steps");
        assert!(judged(1.5, 1.500_05) && !judged(1.5, 1.500_2));
    }

    /// Kernels compress scores as low as the lowest float, and so their log-sum-exp.
    #[test]
    fn a_log_sum_exp_near_the_lowest_float_is_right_wherever_it_is_that_low() {
        let judged = |expected: f64, actual: f32| {
            let mut tally = CompareTally::default();
            tally.element(0, expected, &Buffer::from_values(DType::F32, [f64::from(actual)]));
            tally.finish(OutputTolerance::for_role(Role::Stats, DType::F32), |_| None).good
        };
        let lowest = f64::from(f32::MIN);
        assert!(judged(lowest, f32::MIN) && judged(lowest, -2.275e38) && judged(-3e38, -2.25e38));
        assert!(!judged(lowest, -2e38) && !judged(-1e38, -3e38));
        assert!(!judged(lowest, f32::NEG_INFINITY) && !judged(lowest, f32::NAN));
    }

    #[test]
    fn each_kind_of_wrong_is_told_apart() {
        let (o, tolerance) = (exact(), OutputTolerance::for_role(Role::O, DType::BF16));
        let good = o.buffer();
        assert!(compare(&o, &good, tolerance).good);
        let mut late = good.clone();
        late.set(9, o.values()[9] + 3.0);
        let found = compare(&o, &late, tolerance);
        assert!(!found.good && (found.max_abs - 3.0).abs() < 0.1);
        assert_eq!(found.worst.expect("one differs").index, [0, 0, 1, 1]);
        assert!(found.to_string().starts_with("wrong: relative error"), "{found}");
        let norm = o.values().iter().map(|x| x * x).sum::<f64>().sqrt();
        assert!((found.relative - 3.0 / norm).abs() < 0.05);
        let mut infinite = good.clone();
        infinite.set(0, f64::INFINITY);
        assert_eq!(compare(&o, &infinite, tolerance).non_finite, 1);
        let never = Buffer::poisoned(DType::BF16, good.len());
        assert_eq!(compare(&o, &never, tolerance).unwritten, 16);
        let short = Buffer::new(DType::BF16, good.bytes()[..28].to_vec()).expect("whole");
        assert_eq!(compare(&o, &short, tolerance).unwritten, 2);
    }
}
