//! Constant operands: operands whose values follow from the description (ALiBi slopes), uploaded when a plan is
//! prepared.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DriverError};
use qkvault_graph::{Attention, Role};

use crate::raw::DeviceBuffer;

/// A constant operand on the GPU.
#[derive(Clone, Debug)]
pub(crate) struct BoundConstant {
    pub(crate) role: Role,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

/// The constant operands of all plans of a session, by their values. Nothing writes them after the upload and they stay
/// until the session ends, so launches need not order them.
#[derive(Debug, Default)]
pub(crate) struct Constants(Mutex<Vec<(Vec<u32>, CudaSlice<f32>)>>);

impl Constants {
    /// The constant operands of an attention, of which new ones are uploaded, waiting for the upload.
    pub(crate) fn of(
        &self,
        stream: &Arc<CudaStream>,
        attention: &Attention,
    ) -> Result<Vec<BoundConstant>, DriverError> {
        slopes(attention).into_iter().map(|(role, values)| self.upload(stream, role, &values)).collect()
    }

    fn upload(&self, stream: &Arc<CudaStream>, role: Role, values: &[f32]) -> Result<BoundConstant, DriverError> {
        let bits: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match all.iter().position(|(other, _)| *other == bits) {
            Some(at) => at,
            None => {
                let slice = stream.clone_htod(values)?;
                stream.synchronize()?;
                all.push((bits, slice));
                all.len() - 1
            }
        };
        let slice = &all[at].1;
        Ok(BoundConstant { role, address: slice.device_ptr(stream).0, bytes: slice.num_bytes() as u64 })
    }
}

impl Drop for Constants {
    fn drop(&mut self) {
        // No event says which launches read them. Nothing to free is the usual case.
        let all = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, slice)) = all.first() {
            let context = slice.stream().context();
            context.record_err(context.synchronize());
        }
    }
}

/// The ALiBi slopes of the tensors in a description's expressions. They are not part of a plan, so that attentions with
/// other slopes share one.
pub(crate) fn slopes(attention: &Attention) -> Vec<(Role, Vec<f32>)> {
    let expressions = [attention.score_mod.as_ref(), attention.mask.mask_mod.as_ref()];
    let specs = expressions.into_iter().flatten().flat_map(|e| e.tensors());
    let held = specs.zip(0_u16..).filter_map(|(spec, number)| {
        let heads = spec.dims[1];
        Some((Role::ScoreTensor(number), spec.alibi?.values(heads)))
    });
    held.collect()
}

impl BoundConstant {
    pub(crate) const fn buffer(&self) -> DeviceBuffer {
        DeviceBuffer { address: self.address, bytes: self.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_graph::DType;
    use qkvault_graph::expr::{AlibiSlopes, Expr, TensorSpec, library, scalar, score, tensor};

    fn of(score: Expr) -> Vec<(Role, Vec<f32>)> {
        let score = score.build_score_mod().expect("a score");
        slopes(&Attention::bshd(1, (4, 2), (8, 8), 16, DType::BF16).with_score_mod(score))
    }

    #[test]
    fn slopes_are_known_by_the_description_and_not_by_a_name() {
        let softcapped = library::softcap(library::alibi(score(), 4), scalar("cap"));
        assert_eq!(of(softcapped), [(Role::ScoreTensor(0), vec![0.25, 0.0625, 0.015_625, 0.003_906_25])]);
        let named = |name: &str, spec| library::alibi_with(score(), tensor(name, spec));
        let spec = TensorSpec::new(DType::F32, [1, 4, 1, 1]);
        assert_eq!(of(named(library::ALIBI_SLOPES, spec)), []);
        assert_eq!(of(named("other", TensorSpec::of_slopes(4, AlibiSlopes::of(4)))).len(), 1);
    }

    #[test]
    fn slopes_are_those_of_the_models_maximum_and_heads() {
        let slopes = |slopes| of(library::alibi_of(score(), 4, slopes)).remove(0).1;
        let steep = AlibiSlopes::of(4).with_bias_max(16.0).expect("finite");
        assert_eq!(slopes(steep), [0.0625, 0.003_906_25, 2_f32.powi(-12), 2_f32.powi(-16)]);
        // The second of two GPUs of a model of 8 heads.
        assert_eq!(
            slopes(AlibiSlopes::of(8).from_head(4)),
            [2_f32.powi(-5), 2_f32.powi(-6), 2_f32.powi(-7), 2_f32.powi(-8)]
        );
    }
}
