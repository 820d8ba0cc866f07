//! A debug check of what callers bind who keep lengths, offsets and page tables of their own.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::{CudaStream, result};
use qkvault_graph::Valid;

use crate::safe::batch::{BatchError, driver};
use crate::safe::operands::Bindings;
use crate::safe::session::LoadedPlan;
use crate::serving::{BatchInputError, BatchInputErrors, StepLayout};

impl LoadedPlan {
    /// Copies the lengths, offsets and page tables that are about to be bound back from the device and checks them as a kernel would
    /// read them: page ids within the pool, offsets that neither fall nor exceed the tokens, lengths within the plan, dQ's
    /// sequences where Q's are. It waits for the stream: for debugging, and for tables that other kernels write. A
    /// [`Batch`](crate::BatchMetadata) has a check of its own.
    ///
    /// # Errors
    ///
    /// [`BatchError::Step`] with the operands that are not as they should be.
    pub fn verify_step(
        &self,
        attention: &Valid,
        bindings: &Bindings<'_>,
        stream: &Arc<CudaStream>,
    ) -> Result<(), BatchError> {
        let layout = StepLayout::of(attention, self.facts())?;
        stream.context().bind_to_thread().map_err(driver("read back"))?;
        let mut read = BTreeMap::new();
        for (role, _, words) in layout.operands() {
            let Some(bound) = bindings.raw.operands.iter().find(|operand| operand.role == role) else { continue };
            if bound.bytes < 4 * words as u64 {
                let what = format!("{role} has {} bytes, and a step's has {}", bound.bytes, 4 * words);
                return Err(BatchInputErrors::from(BatchInputError::NoStep { what }).into());
            }
            let mut copy = vec![0_i32; words];
            // SAFETY: the operand is borrowed by the bindings, or promised by who gave its address; it has as many words, and the copy
            // has ended when the stream was waited for, which is before `copy` is touched or moved.
            unsafe { result::memcpy_dtoh_async(&mut copy, bound.address, stream.cu_stream()) }
                .map_err(driver("read back"))?;
            stream.synchronize().map_err(driver("read back"))?;
            read.insert(role, copy);
        }
        Ok(layout.check_operands(&read)?)
    }
}
