//! A debug check for callers who bind their own lengths, offsets and page tables.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::{CudaStream, result};
use qkvault_graph::Valid;

use crate::safe::args::Args;
use crate::safe::batch::{BatchError, driver};
use crate::safe::plan::LoadedPlan;
use crate::serving::{BatchInputError, BatchInputErrors, StepLayout};

impl LoadedPlan {
    /// Copies the lengths, offsets and page tables of `args` back from the device, and checks them as a kernel
    /// reads them: page ids within the pool, offsets that neither decrease nor exceed the tokens, lengths within the
    /// plan, sequences of dQ at the places of those of Q.
    ///
    /// It waits for the stream. Use it for debugging, and for tables that other kernels write;
    /// [`BatchMetadata::verify`](crate::BatchMetadata::verify) checks those of a batch.
    ///
    /// # Errors
    ///
    /// [`BatchError::Step`] with the operands that are wrong.
    pub fn verify_step(&self, attention: &Valid, args: Args<'_>, stream: &Arc<CudaStream>) -> Result<(), BatchError> {
        let layout = StepLayout::of(attention, self.facts())?;
        stream.context().bind_to_thread().map_err(driver("read back"))?;
        let mut args = args;
        let bindings = self.bindings_of(&mut args).0;
        let mut read = BTreeMap::new();
        for (role, _, words) in layout.operands() {
            let Some(bound) = bindings.operands.iter().find(|operand| operand.role == role) else { continue };
            if bound.bytes < 4 * words as u64 {
                let what = format!("{role} has {} bytes, and a step's has {}", bound.bytes, 4 * words);
                return Err(BatchInputErrors::from(BatchInputError::NoStep { what }).into());
            }
            let mut copy = vec![0_i32; words];
            // SAFETY: the bindings borrow the operand, or their caller promised that its address is valid, and it has
            // this many words. The stream is synchronised before `copy` is used or moved.
            unsafe { result::memcpy_dtoh_async(&mut copy, bound.address, stream.cu_stream()) }
                .map_err(driver("read back"))?;
            if let Err(error) = stream.synchronize() {
                // The copy may still be under way.
                std::mem::forget(copy);
                return Err(driver("read back")(error));
            }
            read.insert(role, copy);
        }
        Ok(layout.check_operands(&read)?)
    }
}
