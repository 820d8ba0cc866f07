//! A bound plan: operands, scalars and workspace in a variant pack that launches reuse.

use std::ffi::c_void;

use qkvault_graph::{DType, PlanKey, Role};
use qkvault_sys::{Descriptor, Error};

use crate::bindings::{Bindings, Number};
use crate::clear::clear;
use crate::raw::bind::BindFailure;
use crate::raw::cells::Cells;
use crate::raw::load::LoadedPlan;

/// Why a scalar kept its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScalarError {
    /// The plan has no such scalar.
    #[error("{role} is no scalar of the plan; it has {}", if scalars.is_empty() { "none".to_owned() } else { join(scalars) })]
    NoScalar {
        /// The role.
        role: Role,
        /// The scalars there are.
        scalars: Vec<Role>,
    },
    /// The scalar holds another type.
    #[error("scalar {role} is {needed}, and {given} was given")]
    WrongDType {
        /// The role.
        role: Role,
        /// What the plan wants.
        needed: DType,
        /// What was given.
        given: DType,
    },
}

fn join(roles: &[Role]) -> String {
    roles.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Why a launch was not queued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// cuDNN refused it.
    #[error(
        "plan {key} ({what}) was not launched: {source}; an error of an earlier kernel on this GPU can show here too"
    )]
    Refused {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// What cuDNN answered.
        source: Box<Error>,
    },
    /// The driver refused a step before or after it.
    #[error(
        "the launch could not {step}: {detail}; if it is an error of an earlier kernel or of something dropped before, it is reported here \
         because CUDA tells it late"
    )]
    Driver {
        /// What was tried.
        step: &'static str,
        /// What the driver answered.
        detail: String,
    },
    /// The stream is of another context than the plan.
    #[error(
        "the stream is of GPU {stream}'s context and the plan is loaded in one of GPU {plan}; use a stream of Session::device()"
    )]
    OtherContext {
        /// Ordinal of the stream's GPU.
        stream: usize,
        /// Ordinal of the plan's GPU.
        plan: usize,
    },
    /// The stream is being captured while cudarc tracks events, whose waits a capture does not allow.
    #[error(
        "the stream is being captured, and cudarc's event tracking is on, which would break the capture; use Bound::capture, or turn it off first \
         (CudaContext::disable_event_tracking) and order the streams yourself"
    )]
    TrackedCapture,
}

/// A plan with its operands, ready to be launched any number of times.
///
/// # Threads
///
/// `Send`, not `Sync`: it may move between threads; one at a time launches it.
#[derive(Debug)]
pub struct Bound {
    pub(crate) pack: Descriptor,
    pub(crate) cells: Cells,
    pub(crate) scalars: Vec<Scalar>,
    pub(crate) plan: LoadedPlan,
    pub(crate) workspace: (u64, u64),
}

/// Where a scalar's value lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar {
    pub(crate) role: Role,
    pub(crate) dtype: DType,
    pub(crate) cell: usize,
}

impl Bound {
    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &LoadedPlan {
        &self.plan
    }

    /// Gives a scalar another value, from the next launch on. Nothing is built or bound anew.
    ///
    /// A captured launch has read its scalars when it was captured: replays keep the values of then.
    ///
    /// # Errors
    ///
    /// [`ScalarError`]; then the scalar keeps its value.
    pub fn set_scalar(&mut self, role: Role, value: impl Into<Number>) -> Result<(), ScalarError> {
        let value = value.into();
        let Some(scalar) = self.scalars.iter().find(|scalar| scalar.role == role) else {
            return Err(ScalarError::NoScalar {
                role,
                scalars: self.scalars.iter().map(|scalar| scalar.role).collect(),
            });
        };
        if scalar.dtype != value.dtype() {
            return Err(ScalarError::WrongDType { role, needed: scalar.dtype, given: value.dtype() });
        }
        self.cells.set(scalar.cell, value.cell());
        Ok(())
    }

    /// Binds other operands and scalars in place of all that were bound; the workspace stays.
    ///
    /// # Errors
    ///
    /// As [`LoadedPlan::bind`]; then everything stays as it was.
    pub fn rebind(&mut self, bindings: &Bindings) -> Result<(), BindFailure> {
        self.plan.check(bindings, self.workspace)?;
        self.pack = self.plan.pack(bindings, self.workspace.0, &self.cells, &self.scalars)?;
        for scalar in &self.scalars {
            if let Some((_, value)) = bindings.scalars.iter().find(|(role, _)| *role == scalar.role) {
                self.cells.set(scalar.cell, value.cell());
            }
        }
        Ok(())
    }

    /// Queues a launch on a stream (a `cudaStream_t` or `CUstream`; null is the default stream).
    ///
    /// Nothing is probed, hashed, allocated or looked up; a handle that is already on this stream is used as it is.
    ///
    /// # Safety
    ///
    /// The stream must be of the session's GPU. Every address that was bound must be valid for what the plan does with that operand, and the
    /// workspace serve no other launch, until this one is finished on the stream. The session's context must be current on this thread.
    ///
    /// # Errors
    ///
    /// [`LaunchError`]; nothing was queued then.
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<(), LaunchError> {
        for &(offset, bytes) in self.plan.clear() {
            // SAFETY: a part of the workspace, which the caller promises to be this launch's alone.
            unsafe { clear(self.workspace.0 + offset, bytes, stream) }
                .map_err(|detail| LaunchError::Driver { step: "clear a buffer that the kernels sum in", detail })?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.queue(stream) }.map_err(|source| {
            let facts = self.plan.facts();
            LaunchError::Refused { key: facts.key, what: facts.what.clone(), source: Box::new(source) }
        })
    }

    /// # Safety
    ///
    /// As [`Bound::launch`].
    unsafe fn queue(&self, stream: *mut c_void) -> Result<(), Error> {
        let mut lease = self.plan.session().inner.pool.lease(stream)?;
        // SAFETY: the stream is of this GPU, and alive until the launch is queued.
        unsafe { lease.set_stream(stream) }?;
        let plan = self.plan.descriptor();
        // SAFETY: the addresses are the caller's promise; host numbers lie in cells of ours; plan and handle are of one session.
        unsafe { lease.handle().execute(&plan, &self.pack) }
    }
}
