//! Constant operands: operands whose values follow from the description (ALiBi slopes), uploaded when a plan is
//! prepared.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DriverError, SyncOnDrop};
use qkvault_graph::{Attention, Role};

use crate::safe::operands::Bindings;
use crate::safe::tracked::Tracked;

/// A constant operand on the GPU.
#[derive(Clone, Debug)]
pub(crate) struct BoundConstant {
    pub(crate) role: Role,
    values: Arc<CudaSlice<f32>>,
}

/// Keeps a constant operand alive while it is bound, and orders launches after its upload.
struct Held(Arc<CudaSlice<f32>>);

impl Tracked for Held {
    fn acquire<'s>(&'s mut self, stream: &'s CudaStream) -> SyncOnDrop<'s> {
        self.0.device_ptr(stream).1
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
    /// Uploads all constant operands of an attention, and waits for the upload.
    pub(crate) fn upload(stream: &Arc<CudaStream>, attention: &Attention) -> Result<Vec<BoundConstant>, DriverError> {
        let upload = |(role, values): (Role, Vec<f32>)| {
            Ok(BoundConstant { role, values: Arc::new(stream.clone_htod(&values)?) })
        };
        let all: Vec<BoundConstant> = slopes(attention).into_iter().map(upload).collect::<Result<_, DriverError>>()?;
        if !all.is_empty() {
            stream.synchronize()?;
        }
        Ok(all)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.values.num_bytes() as u64
    }

    /// Adds the operand to a caller's bindings, unless the caller has bound the role.
    pub(crate) fn bind<'a>(&self, bindings: Bindings<'a>) -> Bindings<'a> {
        if bindings.raw.operands.iter().any(|operand| operand.role == self.role) {
            return bindings;
        }
        let mut bindings = bindings;
        let address = self.values.device_ptr(self.values.stream()).0;
        bindings.raw = bindings.raw.tensor(self.role, address, self.bytes());
        bindings.tracked.push(Box::new(Held(Arc::clone(&self.values))));
        bindings
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
