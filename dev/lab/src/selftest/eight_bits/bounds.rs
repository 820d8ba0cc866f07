//! What an 8-bit launch may differ from the exact numbers by: what its formats cost, and no matter of taste.
//!
//! The oracle computes each case twice: exactly, and with the roundings of the description (P, dS and the outputs). A
//! kernel rounds the same quantities to the same formats, though P before its sum divides it, so its distance to the
//! exact numbers is about that of the oracle's rounded result; twice of it is good. Besides, tensor cores keep few bits
//! of sums ([`rows::ACCUMULATED`]). Each sequence is compared by itself as well.

use qkvault_graph::{DType, Role, Scaled, Valid};
use qkvault_reference::{
    Buffer, Comparison, Defined, ExactOutput, ExactOutputs, Inputs, OutputTolerance, ReferenceError, backward_of_o,
    compare, compare_launch, forward,
};

use super::distance::{Distance, OutputSequence, sequences};
use super::rows::Noise;

/// Times the oracle's own rounding error, of a whole output.
const WHOLE: f64 = 2.0;
/// The same of one sequence, which may have a few rows whose errors are not independent.
const SEQUENCE: f64 = 4.0;
/// Times the largest error before the last rounding, of a largest magnitude.
const LARGEST: f64 = 3.0;
/// Relative error that f32 and its approximate exponential leave.
const SINGLE: f64 = 1.0 / 256.0;

/// What gradients are, relative to the noise of their terms, where these cancel wholly.
const NOTHING: f64 = 1e-3;

/// The weight of a row of four equal keys.
const MOST: f64 = 0.5;

/// The expected outputs of one case.
pub(in crate::selftest) struct Expected {
    /// With the roundings of the description.
    rounded: ExactOutputs,
    /// Without any.
    exact: ExactOutputs,
    noise: Noise,
}

/// The judgement of one output.
pub(in crate::selftest) struct OutputJudgement {
    /// Distance to the exact numbers over the oracle's own.
    pub(in crate::selftest) ratio: f64,
    pub(in crate::selftest) fault: Option<String>,
    /// What Amax_S is the largest of.
    pub(in crate::selftest) note: Option<&'static str>,
}

impl Expected {
    pub(in crate::selftest) fn for_attention(a: &Valid, inputs: &Inputs) -> Result<Expected, ReferenceError> {
        let compute = |inputs: &Inputs| if a.is_backward() { backward_of_o(a, inputs) } else { forward(a, inputs) };
        Ok(Expected {
            rounded: compute(inputs)?,
            exact: compute(&inputs.widened())?,
            noise: Noise::for_attention(a, inputs)?,
        })
    }

    /// Every output that a launch writes.
    pub(in crate::selftest) fn roles(&self) -> impl Iterator<Item = Role> {
        self.exact.iter().map(ExactOutput::role)
    }

    /// What a launch without errors would write.
    pub(in crate::selftest) fn rounded(&self, role: Role) -> Option<Buffer> {
        self.rounded.buffer(role)
    }

    /// Judges what a launch wrote to the output of a role.
    pub(in crate::selftest) fn judge(
        &self,
        a: &Valid,
        inputs: &Inputs,
        role: Role,
        actual: &Buffer,
    ) -> OutputJudgement {
        let (Some(exact), Some(rounded)) = (self.exact.get(role), self.rounded.get(role)) else {
            return OutputJudgement {
                ratio: 0.0,
                fault: Some(format!("{role} is not an output of the oracle")),
                note: None,
            };
        };
        let any = OutputTolerance { relative: f64::INFINITY, absolute: f64::INFINITY };
        let written = compare(rounded, actual, any);
        if !written.good {
            return fault(role, &written);
        }
        match role {
            Role::Stats => {
                let tolerance = OutputTolerance { relative: f64::INFINITY, absolute: 1e-4 + self.noise.stats };
                let found = compare(exact, actual, tolerance);
                OutputJudgement {
                    fault: (!found.good).then(|| format!("{role}: {found}")),
                    ..OutputJudgement::good(found.max_abs)
                }
            }
            Role::DSink => {
                let found = compare_launch(a, exact, actual);
                OutputJudgement {
                    fault: (!found.good).then(|| format!("{role}: {found}")),
                    ..OutputJudgement::good(found.relative)
                }
            }
            Role::Amax(Scaled::S) => self.largest_probability(a, exact.values()[0], actual.get(0)),
            Role::Amax(which) => self.largest(a, which, [exact.values()[0], actual.get(0)]),
            _ => self.tensor(a, inputs, [exact, rounded], actual),
        }
    }

    /// Compares the whole output and each of its sequences.
    fn tensor(
        &self,
        a: &Valid,
        inputs: &Inputs,
        [exact, rounded]: [&ExactOutput; 2],
        actual: &Buffer,
    ) -> OutputJudgement {
        let role = exact.role();
        let (oracle, most) = (rounded.buffer(), largest_finite(actual.dtype()));
        let sequences = match sequences(a, inputs, role) {
            Ok(sequences) => sequences,
            Err(error) => return OutputJudgement { ratio: 0.0, fault: Some(format!("{role}: {error}")), note: None },
        };
        let mut all = Distance::default();
        let mut fault = None;
        for OutputSequence { number, keys, places } in sequences {
            let mut of = Distance::default();
            for at in places.into_iter().filter(|&at| exact.defined()[at] == Defined::Value) {
                // A number that leaves the type becomes its largest, which costs no accuracy here.
                of.add(exact.values()[at].clamp(-most, most), oracle.get(at), actual.get(at));
            }
            let (off, most) =
                (of.actual.sqrt(), SEQUENCE * of.oracle.sqrt() + self.floor(a, inputs, role, Some(number), &of));
            if off > most && fault.is_none() {
                fault = Some(format!(
                    "{role}: sequence {number} ({keys} keys): distance {off:.3e}, at most {most:.3e} of {:.3e}",
                    of.exact.sqrt()
                ));
            }
            all.join(&of);
        }
        let (off, most) = (all.actual.sqrt(), WHOLE * all.oracle.sqrt() + self.floor(a, inputs, role, None, &all));
        if off > most {
            fault = Some(format!(
                "{role}: distance {off:.3e}, at most {most:.3e} of {:.3e}; the formats cost {:.3e}",
                all.exact.sqrt(),
                all.oracle.sqrt()
            ));
        }
        let ratio = if all.oracle > 0.0 { (all.actual / all.oracle).sqrt() } else { 0.0 };
        OutputJudgement { ratio, fault, note: None }
    }

    /// What short sums may leave, as a norm over the elements that were compared: of one sequence, or of all.
    fn floor(&self, a: &Valid, inputs: &Inputs, role: Role, sequence: Option<usize>, of: &Distance) -> f64 {
        // Probabilities have the errors of scores and of the log-sum-exp.
        let relative = (self.noise.score + self.noise.stats + SINGLE) * of.exact.sqrt();
        let (other, scale) = match role {
            Role::DQ => (Role::K, Scaled::DQ),
            Role::DK => (Role::Q, Scaled::DK),
            _ => return relative,
        };
        let which = if other == Role::K { Scaled::K } else { Scaled::Q };
        let number = |role| inputs.get(role).map_or(1.0, |b| b.get(0).abs());
        // Elements of Q and K are of the order of 32 before their descale.
        let size = 32.0 * number(Role::Descale(which)) * number(Role::ScaleOf(scale));
        // The gradient of a score is a difference, which may cancel; its noise has the weight of its probability.
        let noise = 2.0 * self.noise.d_s * self.noise.weight(sequence);
        relative + noise * size * (a.head_dims().0 as f64).sqrt()
    }

    /// Largest magnitudes of outputs are of real numbers before the last rounding.
    fn largest(&self, a: &Valid, which: Scaled, [exact, actual]: [f64; 2]) -> OutputJudgement {
        let role = Role::Amax(which);
        let bound = if which == Scaled::DP {
            exact * (4.0 * self.noise.score + SINGLE) + 2.0 * self.noise.d_s
        } else {
            let out = match which {
                Scaled::DQ => Role::DQ,
                Scaled::DK => Role::DK,
                Scaled::DV => Role::DV,
                _ => Role::O,
            };
            let scale = self.scale_of(out, exact);
            let off = match (self.exact.get(out), self.rounded.get(out)) {
                (Some(exact), Some(rounded)) => {
                    let pairs = exact.values().iter().zip(rounded.values());
                    pairs.fold(0.0_f64, |most, (x, y)| most.max((x - y).abs()))
                }
                _ => 0.0,
            };
            let noise = self.cancelled(a, which, exact);
            LARGEST * off * scale + exact * (2.0 * self.noise.score + SINGLE) + noise
        };
        let off = (actual - exact).abs();
        let bad = off > bound || off.is_nan();
        let text = format!("{role}: {actual} for {exact}, at most {bound:.3e} apart");
        OutputJudgement { fault: bad.then_some(text), ..OutputJudgement::good(off / bound.max(f64::MIN_POSITIVE)) }
    }

    /// What short sums leave in an element of dQ or dK where one key has most of a row's weight.
    fn cancelled(&self, a: &Valid, which: Scaled, exact: f64) -> f64 {
        let one_key = a.mask.band.is_some_and(|band| band.left == Some(1) && band.right == Some(0));
        let [query, key] = self.noise.rows;
        let queries = (a.seq().0 * a.q.heads() / a.k.heads()) as f64;
        let noise = match which {
            Scaled::DQ => 2.0 * self.noise.d_s * key,
            Scaled::DK => 2.0 * self.noise.d_s * query * if one_key { 1.0 } else { queries.sqrt() },
            _ => 0.0,
        };
        if self.noise.largest_weight() >= MOST || exact < NOTHING * noise { noise } else { 0.0 }
    }

    /// The factor from stored numbers of an output to real ones: its largest magnitudes tell it.
    fn scale_of(&self, out: Role, exact: f64) -> f64 {
        let stored = self.exact.get(out).map_or(0.0, |out| {
            let defined = out.values().iter().zip(out.defined()).filter(|(_, d)| **d == Defined::Value);
            defined.fold(0.0_f64, |most, (x, _)| most.max(x.abs()))
        });
        if stored > 0.0 { exact / stored } else { 0.0 }
    }

    /// Amax_S is the largest probability, or the largest exponential before its sum divides it: both are taken, and
    /// the record counts which.
    fn largest_probability(&self, a: &Valid, exact: f64, actual: f64) -> OutputJudgement {
        let survivors = a.dropout.map_or(1.0, |d| 1.0 / (1.0 - f64::from(d.probability)));
        let near = |of: f64| (actual - of).abs() <= of * (self.noise.score + self.noise.stats + SINGLE);
        let note = match (near(exact), near(survivors)) {
            (true, true) => "both",
            (true, false) => "probabilities",
            (false, true) => "exponentials",
            (false, false) => {
                let text = format!(
                    "{}: {actual}; the largest probability is {exact}, the largest exponential {survivors}",
                    Role::Amax(Scaled::S)
                );
                return OutputJudgement { fault: Some(text), note: Some("neither"), ..OutputJudgement::good(0.0) };
            }
        };
        OutputJudgement { note: Some(note), ..OutputJudgement::good(0.0) }
    }
}

/// The number that larger ones become: 8-bit types have no infinity, or do not use it.
fn largest_finite(dtype: DType) -> f64 {
    dtype.largest_fp8().map_or(f64::INFINITY, f64::from)
}

impl OutputJudgement {
    const fn good(ratio: f64) -> OutputJudgement {
        OutputJudgement { ratio, fault: None, note: None }
    }
}

fn fault(role: Role, found: &Comparison) -> OutputJudgement {
    OutputJudgement { ratio: 0.0, fault: Some(format!("{role}: {found}")), note: None }
}

#[cfg(test)]
mod tests {
    use qkvault_graph::{Attention, BackwardOptions, Fp8, validate};

    use super::*;

    fn case(backward: bool) -> (Valid, Inputs, Expected) {
        let mut a = Attention::bshd(2, (2, 2), (65, 100), 128, DType::E4M3).with_lengths();
        a.fp8 = Some(Fp8::Delayed);
        let a = if backward { a.with_stats().backward(BackwardOptions::default()) } else { a.with_stats() };
        let a = validate(a).expect("valid");
        let inputs = Inputs::random(&a, 5).expect("random");
        let expected = Expected::for_attention(&a, &inputs).expect("computes");
        (a, inputs, expected)
    }

    fn fault_of(with: &(Valid, Inputs, Expected), role: Role, change: impl FnOnce(&mut Buffer)) -> Option<String> {
        let (a, inputs, expected) = with;
        let mut written = expected.rounded(role).expect("an output");
        change(&mut written);
        expected.judge(a, inputs, role, &written).fault
    }

    #[test]
    fn the_oracles_own_result_is_right_in_both_directions() {
        for backward in [false, true] {
            let with = case(backward);
            for role in with.2.roles().collect::<Vec<_>>() {
                assert_eq!(fault_of(&with, role, |_| {}), None, "{role}");
            }
        }
    }

    /// Stored numbers that are a step of E4M3 too large everywhere are a wrong scale.
    #[test]
    fn a_wrong_scale_missing_rows_and_unwritten_numbers_are_faults() {
        for (backward, role) in [(false, Role::O), (true, Role::DQ), (true, Role::DK), (true, Role::DV)] {
            let with = case(backward);
            let scaled = |buffer: &mut Buffer| {
                (0..buffer.len()).for_each(|at| {
                    if !buffer.is_poison(at) {
                        buffer.set(at, 1.15 * buffer.get(at));
                    }
                })
            };
            let fault = fault_of(&with, role, scaled).expect("15 % off");
            assert!(fault.contains("distance"), "{fault}");
            // One sequence alone: its share of the whole is small.
            let (a, inputs, _) = &with;
            let last = sequences(a, inputs, role).expect("valid").pop().expect("two sequences");
            let fault = fault_of(&with, role, |buffer| last.places.iter().for_each(|&at| buffer.set(at, 0.0)));
            assert!(fault.expect("zeros").contains("distance"), "{role}");
            let fault = fault_of(&with, role, |buffer| buffer.set(last.places[7], f64::NAN));
            assert!(fault.expect("not finite").contains("1 "), "{role}");
            let fault = fault_of(&with, role, Buffer::poison);
            assert!(fault.expect("unwritten").contains("never written"), "{role}");
        }
    }

    #[test]
    fn magnitudes_and_log_sum_exps_have_bounds_of_their_own() {
        let (forward, backward) = (case(false), case(true));
        let by = |factor: f64| move |buffer: &mut Buffer| buffer.set(0, factor * buffer.get(0));
        for (with, which) in [(&forward, Scaled::O), (&backward, Scaled::DQ), (&backward, Scaled::DV)] {
            assert!(fault_of(with, Role::Amax(which), by(1.005)).is_none(), "{which:?}");
            assert!(fault_of(with, Role::Amax(which), by(1.5)).is_some(), "{which:?}");
        }
        assert!(fault_of(&backward, Role::Amax(Scaled::DP), by(1.1)).is_some());
        assert!(fault_of(&forward, Role::Stats, |buffer| buffer.set(0, buffer.get(0) + 0.04)).is_some());
        let (a, inputs, expected) = &forward;
        let note = |x: f64| {
            let found = expected.judge(a, inputs, Role::Amax(Scaled::S), &Buffer::from_values(DType::F32, [x]));
            (found.note, found.fault.is_some())
        };
        let largest = expected.exact.get(Role::Amax(Scaled::S)).expect("an output").values()[0];
        assert_eq!(note(largest), (Some("probabilities"), false));
        assert_eq!(note(1.0), (Some("exponentials"), false));
        assert_eq!(note(0.5 * (1.0 + largest)), (Some("neither"), true));
    }
}
