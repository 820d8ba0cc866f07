//! Operands whose values follow from the description, resident on the GPU from when a plan is prepared: ALiBi's slopes.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DriverError, SyncOnDrop};
use qkvault_graph::expr::{Grad, library};
use qkvault_graph::{Attention, DType, Role};

use crate::safe::operands::{Bindings, Tracked};

/// One such operand.
#[derive(Clone, Debug)]
pub(crate) struct Resident {
    pub(crate) role: Role,
    values: Arc<CudaSlice<f32>>,
}

/// Keeps the operand alive as long as it is bound, and orders launches after its upload.
struct Held(Arc<CudaSlice<f32>>);

impl Tracked for Held {
    fn acquire<'s>(&'s mut self, stream: &'s CudaStream) -> SyncOnDrop<'s> {
        self.0.device_ptr(stream).1
    }
}

/// The usual slopes of ALiBi, where the score expression reads the tensor that [`library::alibi`] does, of that form, and wants no
/// gradient of it. Names are no part of a key, so that this follows from the description at hand and not from a plan.
pub(crate) fn slopes(attention: &Attention) -> Option<(Role, Vec<f32>)> {
    let score = attention.score.as_ref()?;
    let tensor = score.tensor_named(library::ALIBI_SLOPES)?;
    let spec = score.tensors().get(tensor.0 as usize)?;
    let heads = attention.q.heads().unsigned_abs();
    let usual = spec.dtype == DType::F32 && spec.dims == [1, heads, 1, 1] && spec.grad == Grad::None;
    let role = Role::ScoreTensor(u16::try_from(tensor.0).ok()?);
    usual.then(|| (role, library::alibi_slopes(heads as usize)))
}

impl Resident {
    /// Uploads, and waits until it is done.
    pub(crate) fn upload(stream: &Arc<CudaStream>, attention: &Attention) -> Result<Option<Resident>, DriverError> {
        let Some((role, values)) = slopes(attention) else { return Ok(None) };
        let values = Arc::new(stream.clone_htod(&values)?);
        stream.synchronize()?;
        Ok(Some(Resident { role, values }))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.values.num_bytes() as u64
    }

    /// Adds the operand to what a caller binds, who may bind one of their own in its place.
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
    use qkvault_graph::expr::{TensorSpec, score, slot, tensor};

    fn of(score: qkvault_graph::expr::Expr) -> Option<(Role, Vec<f32>)> {
        let score = score.build_score().expect("a score");
        slopes(&Attention::bshd(1, (4, 2), (8, 8), 16, DType::BF16).with_score(score))
    }

    #[test]
    fn slopes_are_known_by_name_and_form_and_nothing_else_is() {
        let softcapped = library::softcap(library::alibi(score(), 4), slot("cap"));
        assert_eq!(of(softcapped), Some((Role::ScoreTensor(0), vec![0.25, 0.0625, 0.015_625, 0.003_906_25])));
        let named = |name: &str, spec| library::alibi_with(score(), tensor(name, spec));
        let spec = TensorSpec::new(DType::F32, [1, 4, 1, 1]);
        assert_eq!(of(named("slopes", spec)), None);
        assert_eq!(of(named(library::ALIBI_SLOPES, spec.with_grad())), None);
        assert_eq!(of(named(library::ALIBI_SLOPES, TensorSpec::new(DType::F32, [1, 1, 1, 1]))), None);
    }
}
