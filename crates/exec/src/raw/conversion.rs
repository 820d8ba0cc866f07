//! Conversions to and from 8 bits with addresses of the caller's.

use std::ffi::c_void;

use qkvault_graph::Role;

use crate::raw::launch::{DeviceBuffer, RawArgs};
use crate::raw::launch_error::LaunchError;
use crate::raw::load::RawPlan;
use crate::raw::order::LaunchBuffers;

/// The memory of a launch of a conversion. What it does not read or write stays empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConversionArgs {
    /// The tensor in 16 or 32 bits.
    pub wide: DeviceBuffer,
    /// The tensor in 8 bits.
    pub narrow: DeviceBuffer,
    /// One f32: what numbers are multiplied by before they are stored in 8 bits. Read by delayed scaling, written by
    /// current scaling.
    pub scale: DeviceBuffer,
    /// One f32, or a power of two for every block: what numbers in 8 bits are multiplied by.
    pub descale: DeviceBuffer,
    /// One f32: the largest magnitude before scaling.
    pub amax: DeviceBuffer,
    /// As in [`RawArgs::workspace`].
    pub workspace: DeviceBuffer,
}

impl RawPlan {
    /// Queues a conversion on a stream as [`RawPlan::launch_with`] does, with memory by name.
    ///
    /// # Safety
    ///
    /// As for [`RawPlan::launch_with`].
    ///
    /// # Errors
    ///
    /// As for [`RawPlan::launch_with`]; a buffer that the conversion needs and the arguments leave empty is too small.
    pub unsafe fn convert(&self, args: &ConversionArgs, stream: *mut c_void) -> Result<(), LaunchError> {
        let ConversionArgs { wide, narrow, scale, descale, amax, workspace } = *args;
        let buffer = |role| match role {
            Role::Wide => wide,
            Role::Narrow => narrow,
            Role::NarrowScale => scale,
            Role::NarrowDescale => descale,
            Role::NarrowAmax => amax,
            _ => DeviceBuffer::default(),
        };
        let tensors: LaunchBuffers = self.tensors().iter().map(|tensor| buffer(tensor.role)).collect();
        let args = RawArgs { tensors: &tensors, scalars: &[], workspace, interleaved: &[] };
        // SAFETY: the caller's promise.
        unsafe { self.launch_with(&args, stream) }
    }
}
