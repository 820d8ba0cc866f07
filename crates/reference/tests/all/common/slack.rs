//! How far an interpreted op graph may be from the oracle.
//!
//! Some inputs are in f32: the factor of dropout, the forward's results that a backward reads, and constants of
//! derivatives. In 8 bits, such a difference of 1e-7 can move a number of P or dS that lies between two 8-bit numbers
//! to the other one, which changes one row of a gradient by one step of the format.

use qkvault_graph::{DType, Fp8, Role, Scaled, Valid};
use qkvault_reference::{ExactOutput, ExactOutputs, Inputs};

/// The differences that are accepted in one output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slack {
    relative: f64,
    /// Relative differences of numbers smaller than this count as if they were this large.
    floor: f64,
    /// The largest difference from one number of P or dS that is rounded the other way.
    pub(crate) flip: f64,
    /// The number of elements that may be off by that.
    pub(crate) flips: usize,
}

impl Slack {
    pub(crate) fn for_output(a: &Valid, inputs: &Inputs, exact: &ExactOutputs, out: &ExactOutput) -> Slack {
        let relative = if a.dropout.is_some() || a.is_backward() { 1e-5 } else { 0.0 };
        let mut slack = Slack { relative, floor: 1.0, flip: 0.0, flips: 0 };
        if a.fp8.is_none() || relative == 0.0 {
            return slack;
        }
        // Gradients are differences, so their errors are relative to the largest.
        let largest = |values: &[f64]| values.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
        slack.floor = largest(out.values()).max(f64::MIN_POSITIVE);
        // The graph of a microscaled backward rounds neither P nor dS.
        if a.fp8 == Some(Fp8::Block) && a.is_backward() {
            return slack;
        }
        let number = |role: Role| inputs.get(role).map_or(1.0, |buffer| buffer.get(0));
        let of = |role: Role| {
            inputs.get(role).map_or(0.0, |buffer| {
                (0..buffer.len())
                    .map(|at| buffer.get(at))
                    .filter(|x| x.is_finite())
                    .fold(0.0, |m: f64, x| m.max(x.abs()))
            })
        };
        // Block scales are in a buffer of their own, of which the largest counts.
        let real = |role: Role, which: Scaled| match a.fp8 {
            Some(Fp8::Block) => of(role) * of(Role::Descale(which)),
            _ => of(role) * number(Role::Descale(which)),
        };
        // One step of E4M3 and E5M2 relative to the number that is stored, and the steps below the normal numbers.
        let step = |dtype: DType, most: f64, which: Scaled| {
            let stored = most * number(Role::ScaleOf(which));
            let step = match dtype {
                DType::E4M3 => stored.min(448.0) / 8.0 + 2f64.powi(-9),
                _ => stored.min(57_344.0) / 4.0 + 2f64.powi(-16),
            };
            step * number(Role::Descale(which))
        };
        let keep = a.dropout.map_or(1.0, |d| 1.0 - f64::from(d.probability));
        let p = step(a.q.dtype, 1.0 / keep, Scaled::S);
        // The largest dS is known if it is an output; otherwise any number may be stored.
        let d_s = exact.get(Role::Amax(Scaled::DP)).map_or(f64::INFINITY, |out| largest(out.values()));
        let d_o = a.stored(Role::DO).map_or(a.q.dtype, |t| t.dtype);
        let d_s = step(d_o, d_s, Scaled::DP);
        let (flip, scale) = match out.role() {
            Role::O | Role::Amax(Scaled::O) => (p * real(Role::V, Scaled::V), Scaled::O),
            Role::DV | Role::Amax(Scaled::DV) => (p * real(Role::DO, Scaled::DO), Scaled::DV),
            Role::DQ | Role::Amax(Scaled::DQ) => (d_s * real(Role::K, Scaled::K), Scaled::DQ),
            Role::DK | Role::Amax(Scaled::DK) => (d_s * real(Role::Q, Scaled::Q), Scaled::DK),
            _ => return slack,
        };
        let measured = matches!(out.role(), Role::Amax(_));
        slack.flip = flip * if measured { 1.0 } else { number(Role::ScaleOf(scale)) };
        // Two rows.
        slack.flips = 2 * out.operand().tensor.dims[3] as usize;
        slack
    }

    /// The accepted difference from this number.
    pub(crate) fn of_number(&self, x: f64) -> f64 {
        self.relative * x.abs().max(self.floor)
    }
}
