//! Bound plans with cudarc's slices, and their launch.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::CUstreamCaptureStatus;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use qkvault_graph::Role;

use crate::bind_error::BindErrors;
use crate::bindings::Number;
use crate::raw;
use crate::raw::launch_error::{LaunchError, ScalarError};
use crate::safe::constants::BoundConstant;
use crate::safe::device::Device;
use crate::safe::operands::Bindings;
use crate::safe::tracked::{StepMemory, Tracked};
use crate::safe::workspace::{Workspace, WorkspaceError};

/// Why a plan was not bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindFailure {
    /// The bindings have errors.
    #[error(transparent)]
    Wrong(#[from] BindErrors),
    /// The workspace could not be allocated.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// cuDNN refuses the bindings.
    #[error(transparent)]
    Cudnn(Box<raw::RawBindFailure>),
}

impl From<raw::RawBindFailure> for BindFailure {
    fn from(failure: raw::RawBindFailure) -> BindFailure {
        match failure {
            raw::RawBindFailure::Wrong(errors) => BindFailure::Wrong(errors),
            other @ raw::RawBindFailure::Cudnn { .. } => BindFailure::Cudnn(Box::new(other)),
        }
    }
}

/// A plan with its slices, to be launched any number of times.
///
/// # Threads
///
/// `Send`, not `Sync`: it may move between threads, and one thread at a time launches it. Several threads may launch
/// several bound plans of one loaded plan.
///
/// ```no_run
/// # use qkvault_exec::{Bound, cudarc::driver::CudaStream};
/// # use qkvault_graph::Role;
/// # fn run(mut bound: Bound<'_>, stream: &std::sync::Arc<CudaStream>) -> Result<(), Box<dyn std::error::Error>> {
/// bound.launch(stream)?;
/// bound.set_scalar(Role::Scale, 0.1_f32)?; // from the next launch on
/// bound.launch(stream)?;
/// // As a CUDA graph: one launch recorded, replayed without cuDNN.
/// let mut captured = bound.capture(stream)?;
/// captured.launch()?;
/// # Ok(())
/// # }
/// ```
pub struct Bound<'a> {
    pub(crate) raw: raw::RawBound,
    pub(crate) operands: Operands<'a>,
    constants: Arc<[BoundConstant]>,
    pub(crate) device: Device,
}

/// The operands that a launch waits for, and that later work waits for.
pub(crate) struct Operands<'a> {
    tracked: Vec<Box<dyn Tracked + 'a>>,
    workspace: Option<Arc<Workspace>>,
    batch: Option<Arc<StepMemory>>,
}

impl Operands<'_> {
    /// Runs `then` between cudarc's waits and records for every operand. It takes one stack frame per operand and
    /// allocates nothing.
    pub(crate) fn hold<R>(&mut self, stream: &CudaStream, then: &mut dyn FnMut() -> R) -> R {
        match &self.workspace {
            None => hold_batch(&mut self.tracked, self.batch.as_ref(), stream, then),
            Some(workspace) => {
                let mut memory = workspace.lock();
                let _guard = memory.device_ptr_mut(stream).1;
                hold_batch(&mut self.tracked, self.batch.as_ref(), stream, then)
            }
        }
    }
}

fn hold_batch<R>(
    tracked: &mut [Box<dyn Tracked + '_>],
    batch: Option<&Arc<StepMemory>>,
    stream: &CudaStream,
    then: &mut dyn FnMut() -> R,
) -> R {
    match batch {
        None => hold(tracked, stream, then),
        Some(batch) => {
            let memory = batch.lock();
            let _guard = memory.device_ptr(stream).1;
            hold(tracked, stream, then)
        }
    }
}

fn hold<R>(tracked: &mut [Box<dyn Tracked + '_>], stream: &CudaStream, then: &mut dyn FnMut() -> R) -> R {
    match tracked.split_first_mut() {
        None => then(),
        Some((first, rest)) => {
            let _guard = first.acquire(stream);
            hold(rest, stream, then)
        }
    }
}

impl<'a> Bound<'a> {
    pub(crate) fn new(
        plan: &raw::RawPlan,
        device: &Device,
        constants: Arc<[BoundConstant]>,
        bindings: Bindings<'a>,
        allocate: impl FnOnce(u64) -> Result<Arc<Workspace>, WorkspaceError>,
    ) -> Result<Bound<'a>, BindFailure> {
        let bindings = constants.iter().fold(bindings, |bindings, constants| constants.bind(bindings));
        let Bindings { raw, tracked, workspace, batch } = bindings;
        let workspace = match (workspace, plan.workspace()) {
            (Some(given), _) => Some(given),
            (None, 0) => None,
            (None, bytes) => Some(allocate(bytes)?),
        };
        let memory = workspace.as_ref().map_or((0, 0), |workspace| (workspace.address(), workspace.bytes()));
        let raw = plan.bind(&raw, memory)?;
        Ok(Bound { raw, operands: Operands { tracked, workspace, batch }, constants, device: device.clone() })
    }

    /// Replaces all slices and scalars. The workspace stays, unless `bindings` have one.
    ///
    /// # Errors
    ///
    /// [`BindFailure`], as for [`LoadedPlan::bind`](crate::LoadedPlan::bind).
    pub fn rebind<'b>(self, bindings: Bindings<'b>) -> Result<Bound<'b>, BindFailure> {
        let Bound { raw, operands: Operands { tracked: _, workspace: own, batch: _ }, constants, device } = self;
        let workspace = bindings.workspace.clone().or(own);
        let bindings = Bindings { workspace, ..bindings };
        Bound::new(raw.plan(), &device, constants, bindings, |bytes| {
            Err(WorkspaceError { bytes, ordinal: device.ordinal(), detail: "the plan had none".to_owned() })
        })
    }

    /// The bound plan of the raw layer, for launches that the caller orders ([`raw::RawBound::launch`]).
    #[must_use]
    pub fn raw(&self) -> &raw::RawBound {
        &self.raw
    }

    /// Sets another value of a scalar, from the next launch on. Nothing is built or bound again.
    ///
    /// # Errors
    ///
    /// [`ScalarError`] if the plan has no such scalar or the type differs; the scalar keeps its value then.
    pub fn set_scalar(&mut self, role: Role, value: impl Into<Number>) -> Result<(), ScalarError> {
        self.raw.set_scalar(role, value)
    }

    /// Queues a launch on a stream, after the work on the operands that cudarc knows of.
    ///
    /// It probes, hashes, allocates and looks up nothing. While the stream is captured, cudarc's event tracking must be
    /// off; [`Bound::capture`] does not need that.
    ///
    /// # Errors
    ///
    /// [`LaunchError`]. Nothing was queued then, except if the driver failed to record an event after the launch.
    pub fn launch(&mut self, stream: &CudaStream) -> Result<(), LaunchError> {
        ready(&self.device, stream)?;
        let Bound { raw, operands, constants: _, device } = self;
        if device.context().is_managing_stream_synchronization() && is_captured(stream) {
            return Err(LaunchError::TrackedCapture);
        }
        operands.hold(stream, &mut || {
            // SAFETY: the stream is of this context, which is current; operands are borrowed, and `hold` orders them.
            unsafe { raw.launch(stream.cu_stream().cast()) }
        })?;
        // cudarc keeps the errors of waits and records for this call.
        device.context().check_err().map_err(|e| driver_error("order the launch among streams", &e))
    }
}

/// Checks that the stream is of the plan's context, and makes the context current.
pub(crate) fn ready(device: &Device, stream: &CudaStream) -> Result<(), LaunchError> {
    let (ours, theirs) = (device.context(), stream.context());
    if !Arc::ptr_eq(ours, theirs) && ours.cu_ctx() != theirs.cu_ctx() {
        return Err(LaunchError::OtherContext { stream: theirs.ordinal(), plan: ours.ordinal() });
    }
    ours.bind_to_thread().map_err(|e| driver_error("make the context current", &e))
}

pub(crate) fn driver_error(step: &'static str, error: &cudarc::driver::DriverError) -> LaunchError {
    LaunchError::Driver { step, detail: error.to_string() }
}

/// Whether the stream is being captured. The default stream cannot be; asking it fails while another one is captured.
fn is_captured(stream: &CudaStream) -> bool {
    stream.capture_status().is_ok_and(|status| status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

impl fmt::Debug for Bound<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("raw", &self.raw).field("device", &self.device).finish_non_exhaustive()
    }
}
