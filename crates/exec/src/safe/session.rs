//! Sessions and plans with cudarc: those of the raw layer, which keep the context alive and make it current.

use std::ops::Deref;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use qkvault_compile::{OnMiss, Plan, PlanFacts, Planner};
use qkvault_graph::{CompileOptions, Role, Valid};
use qkvault_sys::Library;

use crate::find::{self, PrepareError, Prepared};
use crate::raw;
use crate::raw::load_error::LoadError;
use crate::raw::session::{SessionError, SessionOptions};
use crate::safe::bound::{BindFailure, Bound};
use crate::safe::constants::BoundConstant;
use crate::safe::device::Device;
use crate::safe::operands::Bindings;
use crate::safe::workspace::Workspace;

/// One GPU with one cuDNN. Cheap to clone; clones share one session.
///
/// ```no_run
/// use qkvault_exec::{Device, Session, SessionOptions};
/// use qkvault_sys::{Library, Search};
///
/// // Two threads launch at a time, and no plan may take more than 1 GiB of scratch memory.
/// let options = SessionOptions { handles: 2, workspace_limit: Some(1 << 30) };
/// let session = Session::with_options(&Device::open(0)?, &Library::open(&Search::default())?, options)?;
/// println!("{} plans loaded", session.stats().loads);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Session {
    raw: raw::RawSession,
    device: Device,
}

impl Session {
    /// Opens a session with the default options. It creates a cuDNN handle, which takes longer the first time in a
    /// process.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if cuDNN fails on this GPU.
    pub fn open(device: &Device, library: &Arc<Library>) -> Result<Session, SessionError> {
        Session::with_options(device, library, SessionOptions::default())
    }

    /// Opens a session.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if cuDNN fails on this GPU.
    pub fn with_options(
        device: &Device,
        library: &Arc<Library>,
        options: SessionOptions,
    ) -> Result<Session, SessionError> {
        let raw = raw::RawSession::open(library, options, Box::new(device.clone()))?;
        Ok(Session { raw, device: device.clone() })
    }

    /// The GPU.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Loads a plan. It takes well under a millisecond, except for the first plan of a process, for which cuDNN loads
    /// its libraries.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if the plan is for another machine, needs too much workspace, or cuDNN refuses it. Everything that
    /// is known to matter is compared before cuDNN loads the plan.
    pub fn load(&self, plan: &Plan) -> Result<LoadedPlan, LoadError> {
        Ok(LoadedPlan { raw: self.raw.load(plan)?, device: self.device.clone(), constants: Arc::default() })
    }

    /// Looks up the plan of an attention for this machine and loads it; builds it if it is missing and `on_miss` allows
    /// that. Do not call it while a stream is captured.
    ///
    /// It uploads the plan's constant operands, which need not be bound then: the ALiBi slopes of tensors with
    /// [`TensorSpec::alibi`](qkvault_graph::expr::TensorSpec::alibi), such as that of
    /// [`library::alibi`](qkvault_graph::expr::library::alibi).
    ///
    /// # Errors
    ///
    /// [`PrepareError`] if the attention is refused, or its plan is missing, cannot be built or does not load.
    pub fn prepare(
        &self,
        planner: &Planner,
        attention: &Valid,
        options: &CompileOptions,
        on_miss: OnMiss,
    ) -> Result<Prepared<LoadedPlan>, PrepareError> {
        let load = |plan: &Plan| self.raw.load(plan);
        let Prepared { plan, answer, target } =
            find::prepare(planner, self.target()?, attention, options, on_miss, load)?;
        let stream = self.device.context().default_stream();
        let constants = BoundConstant::upload(&stream, attention)
            .map_err(|error| PrepareError::Constants { detail: error.to_string() })?
            .into();
        Ok(Prepared { plan: LoadedPlan { raw: plan, device: self.device.clone(), constants }, answer, target })
    }
}

/// Gives access to machine, target, counters and handles of the raw session.
impl Deref for Session {
    type Target = raw::RawSession;

    fn deref(&self) -> &raw::RawSession {
        &self.raw
    }
}

/// A plan on a device. Cheap to clone; clones share one plan, and so may threads: see [`raw::RawPlan`].
///
/// ```no_run
/// # use std::sync::Arc;
/// # use qkvault_exec::{Bindings, LoadedPlan, cudarc::driver::{CudaSlice, CudaStream}};
/// # use qkvault_graph::Role;
/// # type Slice = CudaSlice<half::bf16>;
/// # type Done = Result<(), Box<dyn std::error::Error>>;
/// # fn run(plan: &LoadedPlan, stream: &Arc<CudaStream>, [q, k, v]: [&Slice; 3], o: &mut Slice) -> Done {
/// println!("{} bytes of scratch memory", plan.workspace());
/// let bindings = Bindings::new().slice(Role::Q, q).slice(Role::K, k).slice(Role::V, v).slice_mut(Role::O, o);
/// let mut bound = plan.bind(bindings.scalar(Role::Scale, 0.125_f32), stream)?;
/// bound.launch(stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LoadedPlan {
    raw: raw::RawPlan,
    device: Device,
    constants: Arc<[BoundConstant]>,
}

impl LoadedPlan {
    pub(crate) const fn device(&self) -> &Device {
        &self.device
    }

    /// The facts of the plan.
    #[must_use]
    pub fn facts(&self) -> &PlanFacts {
        self.raw.facts()
    }

    /// Bytes of scratch memory that a launch needs.
    #[must_use]
    pub fn workspace(&self) -> u64 {
        self.raw.workspace()
    }

    /// Bytes of the plan's constant operands on the GPU (ALiBi slopes).
    #[must_use]
    pub fn constant_bytes(&self) -> u64 {
        self.constants.iter().map(BoundConstant::bytes).sum()
    }

    /// Whether this role is a constant operand of the plan, which need not be bound.
    #[must_use]
    pub fn provides(&self, role: Role) -> bool {
        self.constants.iter().any(|constants| constants.role == role)
    }

    /// The plan of the raw layer.
    #[must_use]
    pub fn raw(&self) -> &raw::RawPlan {
        &self.raw
    }

    /// Checks slices and scalars, and binds them by role. If the plan needs a workspace and `bindings` have none,
    /// allocates one on `stream` for the bound plan. Do not call it while a stream is captured.
    ///
    /// # Errors
    ///
    /// [`BindFailure::Wrong`] with all errors in the bindings; [`BindFailure::Workspace`] without memory for the
    /// workspace; [`BindFailure::Cudnn`] if cuDNN refuses the bindings.
    pub fn bind<'a>(&self, bindings: Bindings<'a>, stream: &Arc<CudaStream>) -> Result<Bound<'a>, BindFailure> {
        let own = Arc::clone(&self.constants);
        Bound::new(&self.raw, &self.device, own, bindings, |bytes| Workspace::allocate(stream, bytes))
    }
}
