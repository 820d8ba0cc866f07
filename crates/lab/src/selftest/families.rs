//! Families of data of a run, and what their roundings explain: where one dim of Q and K decides the scores, gradients
//! of that dim are sums of large numbers that cancel.

use qkvault_graph::{DType, Role, Valid};
use qkvault_reference::{Buffer, Family, Inputs, Output, UnknownFamily, View};

/// The families of data of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Families {
    /// One of them.
    One(Family),
    /// One after the other.
    Mixed,
}

/// Reads families.
pub(super) fn read(text: &str) -> Result<Families, UnknownFamily> {
    if text == "mixed" { Ok(Families::Mixed) } else { text.parse().map(Families::One) }
}

impl Families {
    /// The family of a case. Batches of serving are every second or fourth case, so families change in groups of four.
    pub(super) const fn of(self, number: u64) -> Family {
        match self {
            Families::One(family) => family,
            Families::Mixed => Family::ALL[(number / 4) as usize % Family::ALL.len()],
        }
    }
}

/// What the largest score of a family is, before an expression.
const fn level(family: Family) -> f64 {
    match family {
        Family::Below | Family::Above => 120.0,
        Family::Dominant => 40.0,
        Family::Normal | Family::Constant | Family::Zero | Family::Tiny => 0.0,
    }
}

/// Roundings of a gradient of scores that a sum over keys may keep.
const ROUNDINGS: f64 = 8.0;

/// Steps of f32 that a log-sum-exp may be off where an expression makes large scores larger.
const STEPS: f64 = 8.0 / (1 << 22) as f64;

/// What a launch wrote, with the exact number wherever the roundings of a family explain the difference. What is no
/// number stays.
pub(super) fn settled(family: Family, attention: &Valid, inputs: &Inputs, output: &Output, written: &Buffer) -> Buffer {
    let mut settled = written.clone();
    let level = level(family);
    if level == 0.0 {
        return settled;
    }
    let ulp = if attention.q.dtype == DType::F16 { 1e-3 } else { 8e-3 };
    // The first dim of K is the score over the scale, and a gradient of scores is of the order of 1.
    let of_d_q = ROUNDINGS * ulp * level / f64::from(attention.default_scale());
    let mut settle = |at: usize, most: &dyn Fn(f64) -> f64| {
        if let Some(&exact) = output.values().get(at).filter(|_| at < written.len())
            && (written.get(at) - exact).abs() <= most(exact)
        {
            settled.set(at, exact);
        }
    };
    match output.role() {
        Role::DQ => {
            let Ok(view) = View::new(attention, Role::DQ, inputs) else { return settled };
            let [batch, heads, rows, _] = attention.q.dims.map(|n| n as usize);
            for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
                (0..rows).for_each(|s| settle(view.at(b, h, s, 0), &|_| of_d_q));
            }
        }
        Role::Stats => (0..output.values().len()).for_each(|at| settle(at, &|exact| STEPS * exact.abs())),
        _ => {}
    }
    settled
}

#[cfg(test)]
mod tests {
    use qkvault_graph::{Attention, BackwardOptions, validate};
    use qkvault_reference::{Choice, backward};

    use super::*;

    #[test]
    fn roundings_of_a_constant_dim_are_settled_and_what_is_no_number_is_not() {
        let a = Attention::bshd(1, (1, 1), (4, 64), 64, DType::BF16).with_stats();
        let a = validate(a.backward(BackwardOptions::default())).expect("valid");
        let choice = Choice { family: Family::Below, ..Choice::default() };
        let inputs = Inputs::random_with(&a, 1, &choice).expect("random");
        let outputs = backward(&a, &inputs).expect("computes");
        let d_q = outputs.get(Role::DQ).expect("a gradient");
        let first = (0..d_q.values().len()).find(|at| d_q.index_of(*at) == Some([0, 0, 1, 0])).expect("it is there");
        let with = |at: usize, by: f64| {
            let mut written = d_q.buffer();
            written.set(at, d_q.values()[at] + by);
            settled(Family::Below, &a, &inputs, d_q, &written).get(at) - d_q.buffer().get(at)
        };
        assert_eq!(with(first, 7.0), 0.0);
        assert!(with(first, 100.0) > 90.0 && with(first + 1, 7.0) > 6.0 && with(first, f64::NAN).is_nan());
        assert_eq!((read("mixed"), Families::Mixed.of(4)), (Ok(Families::Mixed), Family::Below));
    }
}
