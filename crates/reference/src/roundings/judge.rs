//! The judgement of what a launch wrote by the roundings of its elements: each element, each row, and the whole.

use super::{ErrorPart, steps, variance};
use crate::Buffer;
use crate::compare::off;
use crate::outputs::{Defined, ExactOutput};

/// How many standard deviations of its independent errors an element may be off.
const ELEMENT: f64 = 8.0;
/// The same of the distance of a row. A row of a gradient may be one number times a row of K or Q, so its elements need
/// not be independent.
const ROW: f64 = 5.0;
/// The same of the distance of a whole output.
const WHOLE: f64 = 2.0;

/// The judgement of one output.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The largest difference relative to what was allowed: at most 1 for a right output.
    pub worst: f64,
    /// What is wrong, and where; `None` for a right output.
    pub fault: Option<String>,
}

/// Sums of squares: what was allowed, and what was found.
#[derive(Clone, Copy, Default)]
struct RoundingDistance {
    allowed: f64,
    found: f64,
}

impl RoundingDistance {
    /// The distance found relative to what is allowed.
    fn ratio(self, times: f64) -> f64 {
        if self.found == 0.0 { 0.0 } else { (self.found / self.allowed).sqrt() / times }
    }
}

pub(super) fn judge(part: &ErrorPart, expected: &ExactOutput, written: &Buffer) -> Judged {
    let [step, least] = steps(written.dtype());
    let mut whole = RoundingDistance::default();
    let mut worst = (0.0_f64, String::new());
    let mut take = |ratio: f64, of: &dyn Fn() -> String| {
        if ratio > worst.0 || ratio.is_nan() {
            // Records are JSON, which has no infinity.
            worst = (if ratio.is_nan() { f64::MAX } else { ratio.min(f64::MAX) }, of());
        }
    };
    expected.each_row(|[b, h, s], places| {
        let mut row = RoundingDistance::default();
        for at in places.clone().filter(|&at| at < written.len() && expected.defined()[at] == Defined::Value) {
            let (x, y) = (expected.values()[at], written.get(at));
            // Whether both are infinite or no number is compared elsewhere.
            if !(x.is_finite() && y.is_finite()) {
                continue;
            }
            // What was written has been rounded, and need not be near zero where the exact number is.
            let random = part.variance.values()[at] + variance(step * x.abs().max(y.abs())) + variance(least);
            let common = part.common.values()[at];
            let (off, most) = (off(x, y), ELEMENT * random.sqrt() + common);
            if off > 0.0 {
                let d = at - places.start;
                take(off / most, &|| {
                    format!(
                        "element [{b}, {h}, {s}, {d}] is {y} for {x}, {:.1} times what roundings explain",
                        off / most
                    )
                });
            }
            row.found += off * off;
            row.allowed += random + common * common;
        }
        // Few elements are not independent enough to be judged together.
        if places.len() >= 16 {
            let ratio = row.ratio(ROW);
            take(ratio, &|| format!("row [{b}, {h}, {s}] is {ratio:.1} times as far off as roundings explain"));
        }
        whole.found += row.found;
        whole.allowed += row.allowed;
    });
    let ratio = whole.ratio(WHOLE);
    take(ratio, &|| format!("it is {ratio:.1} times as far off as roundings explain"));
    let (worst, fault) = worst;
    Judged { worst, fault: (worst > 1.0).then_some(fault) }
}
