//! Bound plans with cudarc's slices, and their launch.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use qkvault_graph::Role;

use crate::bind_error::BindErrors;
use crate::bindings::Number;
use crate::raw;
use crate::raw::DeviceBuffer;
use crate::raw::launch_error::{LaunchError, ScalarError};
use crate::safe::args::{Args, Which};
use crate::safe::device::ready;
use crate::safe::element::Element;
use crate::safe::order::{WAIT, driver_error, is_captured};
use crate::safe::plan::LoadedPlan;
use crate::safe::tracked::TrackedOperands;
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
    pub(crate) operands: TrackedOperands<'a>,
    plan: LoadedPlan,
}

impl LoadedPlan {
    /// Checks arguments and binds them, to be launched any number of times. If the plan needs a workspace and the
    /// arguments have none, allocates one on `stream` for the bound plan. Do not call it while a stream is captured.
    ///
    /// # Errors
    ///
    /// [`BindFailure::Wrong`] with all errors in the arguments; [`BindFailure::Workspace`] without memory for the
    /// workspace; [`BindFailure::Cudnn`] if cuDNN refuses the bindings.
    pub fn bind<'a>(&self, args: Args<'a>, stream: &Arc<CudaStream>) -> Result<Bound<'a>, BindFailure> {
        Bound::new(self, args, stream)
    }
}

impl<'a> Bound<'a> {
    pub(crate) fn new(plan: &LoadedPlan, args: Args<'a>, stream: &Arc<CudaStream>) -> Result<Bound<'a>, BindFailure> {
        let mut args = args;
        let (bindings, errors) = plan.bindings_of(&mut args);
        let own = |bytes| Workspace::allocate(stream, bytes);
        let workspace = match (args.workspace.take(), plan.workspace()) {
            (Some(given), _) => Some(given),
            (None, 0) => None,
            (None, bytes) => Some(own(bytes)?),
        };
        let memory = workspace.as_ref().map_or_else(DeviceBuffer::default, |workspace| workspace.buffer());
        if !errors.is_empty() {
            return Err(plan.all_errors(errors, &bindings, memory).into());
        }
        let raw = plan.raw().bind(&bindings, memory)?;
        let held = args.operands.into_iter().map(|given| (plan.first_role(&given), given.held));
        let operands = TrackedOperands::new(held, workspace, args.batch.map(|batch| batch.memory));
        Ok(Bound { raw, operands, plan: plan.clone() })
    }

    /// The plan.
    #[must_use]
    pub const fn plan(&self) -> &LoadedPlan {
        &self.plan
    }

    /// Replaces all operands and scalars. The workspace stays, unless `args` have one. On an error nothing changes.
    ///
    /// # Errors
    ///
    /// [`BindFailure`], as for [`LoadedPlan::bind`].
    pub fn rebind(&mut self, args: Args<'a>, stream: &Arc<CudaStream>) -> Result<(), BindFailure> {
        *self = self.another(args, stream)?;
        Ok(())
    }

    /// The plan with other arguments, and with this workspace if they have none.
    pub(crate) fn another(&self, args: Args<'a>, stream: &Arc<CudaStream>) -> Result<Bound<'a>, BindFailure> {
        let workspace = args.workspace.clone().or_else(|| self.operands.workspace().cloned());
        Bound::new(&self.plan, Args { workspace, ..args }, stream)
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
    pub fn set_scalar<'n>(&mut self, which: impl Into<Which<'n>>, value: impl Into<Number>) -> Result<(), ScalarError> {
        let (which, value) = (which.into(), value.into());
        let matcher = self.plan.matcher();
        let roles = matcher.scalars_of(which);
        if roles.is_empty() {
            return Err(ScalarError::NoSuchName(Box::new(matcher.unknown(which, false, true))));
        }
        roles.into_iter().try_for_each(|role| self.raw.set_scalar(role, value))
    }

    /// Sets the positions of the first query and the first key, from the next launch on.
    ///
    /// # Errors
    ///
    /// As [`RawBound::set_origins`](raw::RawBound::set_origins).
    pub fn set_origins(&mut self, origins: [i32; 2]) -> Result<(), ScalarError> {
        self.raw.set_origins(origins)
    }

    /// An owned operand, to be read: `None` for another role, type or a borrowed operand. cudarc orders what is done
    /// with it after the launches so far.
    pub fn slice<T: Element>(&mut self, role: Role) -> Option<&CudaSlice<T>> {
        self.operands.owned(role)?.as_any().downcast_ref()
    }

    /// An owned operand, to be written. The next launch waits for what is done with it.
    pub fn slice_mut<T: Element>(&mut self, role: Role) -> Option<&mut CudaSlice<T>> {
        self.operands.owned(role)?.as_any_mut().downcast_mut()
    }

    /// Queues a launch on a stream, after the work on the operands that cudarc knows of.
    ///
    /// It probes, hashes, allocates and looks up nothing.
    ///
    /// # Errors
    ///
    /// [`LaunchError`]. Nothing was queued then, except if the driver failed to record an event after the launch.
    pub fn launch(&mut self, stream: &Arc<CudaStream>) -> Result<(), LaunchError> {
        let Bound { raw, operands, plan } = self;
        ready(plan.device(), stream)?;
        if is_captured(stream) {
            return Err(LaunchError::Captured);
        }
        let launched = operands.hold(stream, || {
            // SAFETY: the stream is of this context, which is current; operands are held, and `hold` orders them.
            unsafe { raw.launch(stream.cu_stream().cast()) }
        });
        launched.map_err(|e| driver_error(WAIT, &e))??;
        // cudarc keeps the errors of waits and records for this call.
        plan.device().context().check_err().map_err(|e| driver_error("order the launch among streams", &e))
    }

    /// Records a launch into the capture of a stream.
    ///
    /// # Safety
    ///
    /// Until the graph is destroyed and its last replay is finished, this bound plan and its operands must live, and
    /// nothing that conflicts with a replay may use them: no event orders a replay.
    ///
    /// # Errors
    ///
    /// [`LaunchError`]. A refused launch can make the capture invalid.
    pub unsafe fn launch_captured(&self, stream: &CudaStream) -> Result<(), LaunchError> {
        ready(self.plan.device(), stream)?;
        // SAFETY: the stream is of this context, which is current; the caller promises the rest.
        unsafe { self.raw.launch(stream.cu_stream().cast()) }
    }
}

impl fmt::Debug for Bound<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("raw", &self.raw).finish_non_exhaustive()
    }
}
