//! What a training pair writes to the GPU and reads back for its backward: the seed of dropout, and fingerprints.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUstreamCaptureStatus};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut, DriverError, result};
use qkvault_graph::{DType, Role};

use crate::driver::words::of_cudarc;
use crate::safe::order::aside;
use crate::safe::plan::LoadedPlan;
use crate::safe::train_error::TrainStepError;
use crate::training::Fingerprints;

/// Writes a number to the GPU in the order of the stream, without host memory that must outlive the call. A captured
/// write is not ordered with other streams.
pub(crate) fn put(
    cell: &mut CudaSlice<i64>,
    value: i64,
    stream: &Arc<CudaStream>,
    captured: bool,
) -> Result<(), TrainStepError> {
    let other = captured.then(|| aside(stream));
    let (address, guard) = cell.device_ptr_mut(other.as_ref().unwrap_or(stream));
    let bits = value.cast_unsigned();
    for (at, word) in [(address, bits as u32), (address + 4, (bits >> 32) as u32)] {
        // SAFETY: one of two words of a live allocation of this context, exclusively borrowed and ordered by the guard.
        unsafe { sys::cuMemsetD32Async(at, word, 1, stream.cu_stream()) }
            .result()
            .map_err(|error| TrainStepError::Driver { step: "dropout's seed", detail: of_cudarc(&error) })?;
    }
    if captured {
        std::mem::forget(guard);
    }
    Ok(())
}

/// Fingerprints of every operand of a plan that a forward reads or writes, and that its backward (or `other` pass) has
/// in the same type: a pair of 8 and 16 bits has two of Q.
pub(crate) fn fingerprints(
    (plan, other): (&LoadedPlan, &LoadedPlan),
    bound: &crate::raw::RawBindings,
    stream: &Arc<CudaStream>,
) -> Result<Fingerprints, TrainStepError> {
    let driver =
        |error: DriverError| TrainStepError::Driver { step: "the check of saved operands", detail: of_cudarc(&error) };
    if stream.capture_status().map_err(driver)? != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
        return Err(TrainStepError::CheckedCapture);
    }
    // Any stream may have written the operands, so wait for all.
    stream.context().synchronize().map_err(driver)?;
    let mut fingerprints = Fingerprints::new();
    let gradient = |role: Role| role == Role::DO || (role != Role::O && role.is_output(true));
    let same = |role: Role, dtype: DType| other.facts().bindings.iter().all(|b| b.role != role || b.dtype == dtype);
    let all = plan.facts().bindings.iter();
    for binding in all.filter(|b| !b.scalar && !gradient(b.role) && same(b.role, b.dtype)) {
        let Some(operand) = bound.operands.iter().find(|o| o.role == binding.role) else { continue };
        let mut bytes = vec![0_u8; usize::try_from(binding.bytes.min(operand.bytes)).unwrap_or(0)];
        // SAFETY: the operand is bound, so it has this many bytes of device memory; nothing writes to them now.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, operand.address) }.map_err(driver)?;
        fingerprints.add(binding.role, &bytes);
    }
    Ok(fingerprints)
}
