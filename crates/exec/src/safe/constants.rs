//! Constant operands: operands whose values follow from the description (ALiBi slopes), uploaded when a plan is
//! prepared.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DriverError};
use qkvault_graph::{Attention, Role};

use crate::constants::slopes;

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
pub(crate) struct SliceConstants(Mutex<Vec<(Vec<u32>, CudaSlice<f32>)>>);

impl SliceConstants {
    /// The constant operands of an attention, of which new ones are uploaded, waiting for the upload.
    pub(crate) fn uploaded(
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

impl Drop for SliceConstants {
    fn drop(&mut self) {
        // No event says which launches read them. Nothing to free is the usual case.
        let all = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, slice)) = all.first() {
            let context = slice.stream().context();
            context.record_err(context.synchronize());
        }
    }
}
