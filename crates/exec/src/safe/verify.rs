//! Debug checks of what lies on the GPU: lengths, offsets and page tables that callers bind themselves, and scales.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DriverError, result};
use qkvault_graph::Valid;

use crate::bind_error::{BindError, BindErrors};
use crate::driver::words::of_cudarc;
use crate::raw::RawBindings;
use crate::raw::launch_error::LaunchError;
use crate::safe::args::Args;
use crate::safe::batch::{BatchError, driver};
use crate::safe::plan::LoadedPlan;
use crate::scales;
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
        let layout = StepLayout::for_plan(attention, self.facts())?;
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

    /// Copies the scales of 8-bit operands of `args` back from the device, and checks that each is a positive finite
    /// number, and each of a block a number. A launch does not look at them: a scale of zero gives zeros or NaN and no
    /// error.
    ///
    /// It waits for the stream and copies four bytes for each scale of a tensor (6 in a forward, 12 in a backward),
    /// which takes some 10 microseconds each; block scales are a thirty-second of their tensor. Use it for debugging
    /// and in the first steps of a training. [`TrainingPair::checked`](crate::TrainingPair::checked) does it in every
    /// step.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Arguments`] with every scale that is wrong or missing; [`LaunchError::Driver`].
    pub fn verify_scales(&self, args: Args<'_>, stream: &Arc<CudaStream>) -> Result<(), LaunchError> {
        let mut args = args;
        let bindings = self.bindings_of(&mut args).0;
        self.verify_scales_of(&bindings, stream)
    }

    /// [`LoadedPlan::verify_scales`] for arguments by role.
    pub(crate) fn verify_scales_of(&self, bindings: &RawBindings, stream: &Arc<CudaStream>) -> Result<(), LaunchError> {
        let failed = |error: DriverError| LaunchError::Driver { step: "read scales back", detail: of_cudarc(&error) };
        stream.context().bind_to_thread().map_err(failed)?;
        let mut errors = Vec::new();
        for (role, dtype, bytes) in scales::read_by(self.facts()) {
            let Some(bound) = bindings.operands.iter().find(|operand| operand.role == role) else {
                errors.push(BindError::Missing { role, scalar: false, dtype, bytes });
                continue;
            };
            if bound.bytes < bytes {
                errors.push(BindError::TooSmall { role, needed: bytes, given: bound.bytes });
                continue;
            }
            let mut copy = vec![0_u8; usize::try_from(bytes).unwrap_or(0)];
            // SAFETY: the bindings borrow the operand, or their caller promised that its address is valid, and it has
            // this many bytes. The stream is synchronised before `copy` is used or moved.
            unsafe { result::memcpy_dtoh_async(&mut copy, bound.address, stream.cu_stream()) }.map_err(failed)?;
            if let Err(error) = stream.synchronize() {
                // The copy may still be under way.
                std::mem::forget(copy);
                return Err(failed(error));
            }
            errors.extend(scales::error(role, dtype, &copy));
        }
        Ok(BindErrors::check(self.facts(), errors)?)
    }
}
