//! Sessions and plans over cudarc: the raw layer's, with the context kept alive and entered by themselves.

use std::ops::Deref;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use qkvault_compile::{BuildPolicy, Plan, PlanFacts, Planner};
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

/// One GPU with one cuDNN. Cloning gives another hand on the same session.
#[derive(Clone, Debug)]
pub struct Session {
    raw: raw::RawSession,
    device: Device,
}

impl Session {
    /// A session with the default options. Makes a cuDNN handle, which takes a while the first time in a process.
    ///
    /// # Errors
    ///
    /// [`SessionError`].
    pub fn open(device: &Device, library: &Arc<Library>) -> Result<Session, SessionError> {
        Session::with_options(device, library, SessionOptions::default())
    }

    /// A session.
    ///
    /// # Errors
    ///
    /// [`SessionError`].
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

    /// Loads a plan: well under a millisecond, except for a process's first, which waits for cuDNN to load its own libraries.
    ///
    /// # Errors
    ///
    /// [`LoadError`]; what is known to matter is compared before cuDNN is asked.
    pub fn load(&self, plan: &Plan) -> Result<LoadedPlan, LoadError> {
        Ok(LoadedPlan { raw: self.raw.load(plan)?, device: self.device.clone(), constants: Arc::default() })
    }

    /// Finds the plan of an attention for this machine and loads it, building it if it is missing and `build` allows.
    ///
    /// ALiBi's slopes, where the attention says which a tensor holds ([`TensorSpec::alibi`](qkvault_graph::expr::TensorSpec::alibi), as
    /// that of [`library::alibi`](qkvault_graph::expr::library::alibi) does), are put on the GPU here once, and need not be bound. Not to
    /// be done while a stream is captured.
    ///
    /// # Errors
    ///
    /// [`PrepareError`].
    pub fn prepare(
        &self,
        planner: &Planner,
        attention: &Valid,
        policy: &CompileOptions,
        build: BuildPolicy,
    ) -> Result<Prepared<LoadedPlan>, PrepareError> {
        let load = |plan: &Plan| self.raw.load(plan);
        let Prepared { plan, answer, target } = find::prepare(planner, self.target()?, attention, policy, build, load)?;
        let stream = self.device.context().default_stream();
        let constants = BoundConstant::upload(&stream, attention)
            .map_err(|error| PrepareError::Constants { detail: error.to_string() })?
            .into();
        Ok(Prepared { plan: LoadedPlan { raw: plan, device: self.device.clone(), constants }, answer, target })
    }
}

/// Machine, target, counters and handles are those of the raw session.
impl Deref for Session {
    type Target = raw::RawSession;

    fn deref(&self) -> &raw::RawSession {
        &self.raw
    }
}

/// A plan on a device. Cloning gives another hand on the same one; threads may share it: see [`raw::RawPlan`].
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

    /// Everything known of the plan.
    #[must_use]
    pub fn facts(&self) -> &PlanFacts {
        self.raw.facts()
    }

    /// Bytes of scratch memory that a launch needs.
    #[must_use]
    pub fn workspace(&self) -> u64 {
        self.raw.workspace()
    }

    /// Bytes of operands that the plan has on the GPU by itself: ALiBi's slopes.
    #[must_use]
    pub fn constant_bytes(&self) -> u64 {
        self.constants.iter().map(BoundConstant::bytes).sum()
    }

    /// Whether the plan has this operand on the GPU by itself, so that it need not be bound.
    #[must_use]
    pub fn provides(&self, role: Role) -> bool {
        self.constants.iter().any(|constants| constants.role == role)
    }

    /// The plan of the raw layer.
    #[must_use]
    pub fn raw(&self) -> &raw::RawPlan {
        &self.raw
    }

    /// Binds slices and scalars by role, after checking them all. Scratch memory that the plan needs and `bindings` do not bring is allocated
    /// on `stream`, once, and belongs to the bound plan. Not to be done while a stream is captured.
    ///
    /// # Errors
    ///
    /// [`BindFailure::Wrong`] with everything that is wrong.
    pub fn bind<'a>(&self, bindings: Bindings<'a>, stream: &Arc<CudaStream>) -> Result<Bound<'a>, BindFailure> {
        let own = Arc::clone(&self.constants);
        Bound::new(&self.raw, &self.device, own, bindings, |bytes| Workspace::allocate(stream, bytes))
    }
}
