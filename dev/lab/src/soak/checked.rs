//! The outputs of one lane of a soak: the first are compared with the oracle, and later ones with the first.

use anyhow::{anyhow, bail};
use cudarc::driver::CudaStream;
use qkvault_exec::cudarc;
use qkvault_graph::Role;
use qkvault_reference::{Buffer, ExactOutputs, OutputTolerance, compare};

/// What a lane's launches must give.
pub(super) struct CheckedOutputs {
    what: String,
    /// Outputs of a forward, or of a forward and its backward.
    expected: Vec<ExactOutputs>,
    /// Whether every launch gives the same bits. Backwards that sum dQ in any order do not, nor do decodes, whose parts
    /// of the keys are summed in any order.
    same_bits: bool,
    first: Vec<(Role, Buffer)>,
}

impl CheckedOutputs {
    pub(super) fn new(what: impl Into<String>, expected: Vec<ExactOutputs>, same_bits: bool) -> CheckedOutputs {
        CheckedOutputs { what: what.into(), expected, same_bits, first: Vec::new() }
    }

    /// Checks the outputs of a launch, which `read` copies from the GPU. Wrong ones are read once more when the GPU is
    /// idle: a launch that is late is another fault than one that never wrote.
    ///
    /// # Errors
    ///
    /// The first output that is wrong.
    pub(super) fn check(
        &mut self,
        stream: &CudaStream,
        read: impl Fn() -> anyhow::Result<Vec<(Role, Buffer)>>,
    ) -> anyhow::Result<()> {
        let Err(wrong) = self.check_once(read()?) else { return Ok(()) };
        stream.context().synchronize()?;
        match self.check_once(read()?) {
            Ok(()) => bail!("{wrong}; right when the GPU was idle, so it was written late"),
            Err(still) if still.to_string() == wrong.to_string() => bail!("{wrong}; the same when the GPU was idle"),
            Err(still) => bail!("{wrong}; when the GPU was idle: {still}"),
        }
    }

    fn check_once(&mut self, found: Vec<(Role, Buffer)>) -> anyhow::Result<()> {
        if self.first.is_empty() || !self.same_bits {
            found.iter().try_for_each(|(role, buffer)| self.compare(*role, buffer))?;
            self.first = found;
            return Ok(());
        }
        for ((role, first), (_, now)) in self.first.iter().zip(&found) {
            if first.bytes() != now.bytes() {
                let differ = first.bytes().iter().zip(now.bytes()).filter(|(a, b)| a != b).count();
                let all = now.bytes().len();
                let oracle = self.compare(*role, now).map_or_else(|wrong| wrong.to_string(), |()| "right".to_owned());
                bail!("{}: {role}: {differ} of {all} bytes differ from the first launch; oracle: {oracle}", self.what);
            }
        }
        Ok(())
    }

    fn compare(&self, role: Role, buffer: &Buffer) -> anyhow::Result<()> {
        let mut all = self.expected.iter();
        let expected = all
            .find_map(|outputs| outputs.get(role))
            .ok_or_else(|| anyhow!("{}: the oracle has no {role}", self.what))?;
        let usual = OutputTolerance::for_role(role, buffer.dtype());
        // Kernels round probabilities and their gradients to 16 bits before they multiply them.
        let times = if matches!(role, Role::O | Role::Stats) { 1.0 } else { 4.0 };
        let found = compare(expected, buffer, OutputTolerance { relative: times * usual.relative, ..usual });
        if found.good { Ok(()) } else { bail!("{}: {role}: {found}", self.what) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_graph::{Attention, DType, Valid, validate};
    use qkvault_reference::{Inputs, forward};

    fn right() -> (Valid, ExactOutputs, Buffer) {
        let attention = validate(Attention::bshd(1, (1, 1), (8, 8), 16, DType::BF16)).expect("valid");
        let mut inputs = Inputs::random(&attention, 1).expect("random operands");
        inputs.set_f32(Role::Scale, 0.25);
        let outputs = forward(&attention, &inputs).expect("the oracle can do it");
        let o = outputs.buffer(Role::O).expect("it has O");
        (attention, outputs, o)
    }

    #[test]
    fn a_first_output_that_is_wrong_is_found_by_the_oracle() {
        let (_, outputs, o) = right();
        let mut wrong = o.clone();
        wrong.set(5, 100.0);
        let mut checked = CheckedOutputs::new("one", vec![outputs], true);
        let error = checked.check_once(vec![(Role::O, wrong)]).expect_err("it is wrong");
        assert!(error.to_string().starts_with("one: O"), "{error}");
        checked.check_once(vec![(Role::O, o)]).expect("this one is right");
    }

    #[test]
    fn a_later_output_may_differ_in_bits_only_where_the_order_of_sums_is_free() {
        let (_, outputs, o) = right();
        let mut nearly = o.clone();
        nearly.bytes_mut()[0] ^= 1;
        for same_bits in [true, false] {
            let mut checked = CheckedOutputs::new("one", vec![outputs.clone()], same_bits);
            checked.check_once(vec![(Role::O, o.clone())]).expect("right");
            let found = checked.check_once(vec![(Role::O, nearly.clone())]);
            assert_eq!(found.is_err(), same_bits);
            let told = found.err().map(|error| error.to_string());
            assert!(told.is_none_or(|told| told.contains("1 of 256 bytes") && told.ends_with("oracle: right")));
        }
    }
}
