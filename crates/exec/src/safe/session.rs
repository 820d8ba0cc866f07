//! Sessions and plans with cudarc: those of the raw layer, which keep the context alive and make it current.

use std::sync::Arc;

use qkvault_compile::{OnMiss, Plan, Planner};
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_graph::{Valid, ValidCacheAppend, ValidCombination, ValidConversion, ValidScaleUpdate};
use qkvault_sys::Library;

use crate::find::{self, PrepareError, Prepared};
use crate::raw;
use crate::raw::cudnn::CudnnSource;
use crate::raw::gpu::Gpu;
use crate::raw::load_error::LoadError;
use crate::raw::session::{SessionError, SessionOptions, SessionStats};
use crate::safe::constants::SliceConstants;
use crate::safe::device::Device;
use crate::safe::plan::LoadedPlan;
use qkvault_compile::Machine;

/// One GPU, with one cuDNN where plans need it. Cheap to clone; clones share one session.
///
/// A session of a [`Search`](qkvault_sys::Search) looks for cuDNN when a plan of cuDNN is loaded first, and never where
/// all plans are of kernels. One of a loaded cuDNN creates its handles at once, which takes longer the first time in a
/// process.
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
    constants: Arc<SliceConstants>,
}

impl Session {
    /// Opens a session with the default options.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if cuDNN fails on this GPU.
    pub fn open(device: &Device, cudnn: impl Into<CudnnSource>) -> Result<Session, SessionError> {
        Session::with_options(device, cudnn, SessionOptions::default())
    }

    /// Opens a session.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if cuDNN fails on this GPU.
    pub fn with_options(
        device: &Device,
        cudnn: impl Into<CudnnSource>,
        options: SessionOptions,
    ) -> Result<Session, SessionError> {
        let raw = raw::RawSession::open(cudnn.into(), options, Box::new(device.clone()))?;
        Ok(Session { raw, device: device.clone(), constants: Arc::default() })
    }

    /// The GPU.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The GPU, as the driver tells it.
    #[must_use]
    pub fn gpu(&self) -> Gpu {
        self.raw.gpu()
    }

    /// The cuDNN of the session, which the first call loads.
    ///
    /// # Errors
    ///
    /// [`SessionError::NoCudnn`] if there is none; [`SessionError`] if it fails on this GPU.
    pub fn library(&self) -> Result<&Arc<Library>, SessionError> {
        self.raw.library()
    }

    /// The properties that decide whether a plan of cuDNN loads here.
    ///
    /// # Errors
    ///
    /// As [`Session::library`].
    pub fn machine(&self) -> Result<&Machine, SessionError> {
        self.raw.machine()
    }

    /// The target of cuDNN's plans for this GPU. The session reads it once.
    ///
    /// # Errors
    ///
    /// As [`Session::library`]; [`SessionError::Properties`] if this version of qkvault cannot read the device
    /// properties.
    pub fn target(&self) -> Result<&Target, SessionError> {
        self.raw.target()
    }

    /// Creates handles until there are this many, ahead of launches that run at one time or are captured.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if the context cannot be made current or cuDNN creates no handle.
    pub fn reserve_handles(&self, handles: usize) -> Result<(), SessionError> {
        self.raw.reserve_handles(handles)
    }

    /// The counters of the session.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        self.raw.stats()
    }

    /// The session of the raw layer, for launches on addresses.
    #[must_use]
    pub fn raw(&self) -> &raw::RawSession {
        &self.raw
    }

    /// Loads a plan. It takes well under a millisecond, except for the first plan of a process, for which cuDNN loads
    /// its libraries.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if the plan is for another machine, needs too much workspace, or cuDNN refuses it. Everything that
    /// is known to matter is compared before cuDNN loads the plan.
    pub fn load(&self, plan: &Plan) -> Result<LoadedPlan, LoadError> {
        Ok(LoadedPlan::new(self.raw.load(plan)?, &self.device, &self.constants, Vec::new(), None))
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
            find::prepare_on(planner, self.gpu().sm, || Ok(self.target()?), attention, options, on_miss, load)?;
        let plan = self.described(plan, attention)?;
        Ok(Prepared { plan, answer, target })
    }

    /// The plan of a conversion to or from 8 bits, looked up in the planner's vault, compiled by NVRTC if it is missing
    /// and `on_miss` allows that, and loaded. Do not call it while a stream is captured.
    ///
    /// Its operands are bound by role: [`Role::Wide`](qkvault_graph::Role::Wide) and the roles after it.
    ///
    /// # Errors
    ///
    /// [`PrepareError::Refused`] for a GPU without 8 bits; [`PrepareError`] if the plan is missing or does not load.
    pub fn prepare_conversion(
        &self,
        planner: &Planner,
        of: &ValidConversion,
        on_miss: OnMiss,
    ) -> Result<LoadedPlan, PrepareError> {
        let (plan, _) = self.raw.prepare_conversion(planner, of, on_miss)?;
        Ok(LoadedPlan::new(plan, &self.device, &self.constants, Vec::new(), None))
    }

    /// The plan of an update of scales, looked up in the planner's vault, compiled by NVRTC if it is missing and
    /// `on_miss` allows that, and loaded. Do not call it while a stream is captured.
    ///
    /// # Errors
    ///
    /// As [`Session::prepare_conversion`].
    pub fn prepare_scale_update(
        &self,
        planner: &Planner,
        of: &ValidScaleUpdate,
        on_miss: OnMiss,
    ) -> Result<LoadedPlan, PrepareError> {
        let (plan, _) = self.raw.prepare_scale_update(planner, of, on_miss)?;
        Ok(LoadedPlan::new(plan, &self.device, &self.constants, Vec::new(), None))
    }

    /// The plan of an append to caches, looked up in the planner's vault, compiled by NVRTC if it is missing and
    /// `on_miss` allows that, and loaded. Do not call it while a stream is captured.
    ///
    /// Its operands are bound by role ([`ValidCacheAppend::bindings`]): those of the attention that reads the caches,
    /// and the new keys and values.
    ///
    /// # Errors
    ///
    /// As [`Session::prepare_conversion`]; [`PrepareError::Refused`] for what the kernel cannot count.
    pub fn prepare_append(
        &self,
        planner: &Planner,
        of: &ValidCacheAppend,
        on_miss: OnMiss,
    ) -> Result<LoadedPlan, PrepareError> {
        let (plan, _) = self.raw.prepare_append(planner, of, on_miss)?;
        Ok(LoadedPlan::new(plan, &self.device, &self.constants, Vec::new(), None))
    }

    /// The plan of a merge, a sum, a copy or a fill, looked up in the planner's vault, compiled by NVRTC if it is
    /// missing and `on_miss` allows that, and loaded. Do not call it while a stream is captured.
    ///
    /// Its operands are bound by role ([`ValidCombination::bindings`]).
    ///
    /// # Errors
    ///
    /// [`PrepareError`] if the plan is missing or does not load.
    pub fn prepare_combination(
        &self,
        planner: &Planner,
        of: &ValidCombination,
        on_miss: OnMiss,
    ) -> Result<LoadedPlan, PrepareError> {
        let (plan, _) = self.raw.prepare_combination(planner, of, on_miss)?;
        Ok(LoadedPlan::new(plan, &self.device, &self.constants, Vec::new(), None))
    }

    /// A plan with its description, which has the names of its operands and the values of constant ones.
    fn described(&self, raw: raw::RawPlan, attention: &Valid) -> Result<LoadedPlan, PrepareError> {
        let stream = self.device.context().default_stream();
        let constants = self
            .constants
            .uploaded(&stream, attention)
            .map_err(|error| PrepareError::Constants { detail: crate::driver::words::of_cudarc(&error) })?;
        Ok(LoadedPlan::new(raw, &self.device, &self.constants, constants, Some(attention.clone())))
    }
}
