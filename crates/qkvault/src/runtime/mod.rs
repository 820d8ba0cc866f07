//! The runtime: a GPU, the vault, the loaded plans, and cuDNN where they need it, behind one door.

mod loaded;
mod options;
mod preload;
#[cfg(feature = "parallel")]
mod shared;
mod target;
mod tensors;
mod warm;

use std::fmt;
use std::sync::{Arc, OnceLock};

use qkvault_cache::Vault;
use qkvault_compile::{OnMiss, Planner};
use qkvault_cudnn::Target;
use qkvault_exec::cudarc::driver::CudaStream;
use qkvault_exec::{
    Device, Fp8Training, LoadedPlan, Prepared, ScaleRecipe, Scales, Served, Session, Training, TrainingPair,
};
use qkvault_graph::{Valid, ValidScaleUpdate};
use qkvault_serving::{Buckets, ServeLayer};

use crate::offline::{Offline, profile};
use crate::record::Recorder;
use crate::{Error, ErrorKind};
use loaded::LoadedPlans;
pub(crate) use options::RECORD_VARIABLE;
pub use options::RuntimeOptions;
pub use preload::Preload;
pub use warm::Warmed;

/// A GPU, the vault, and the plans that are loaded. Cheap to clone; clones share everything, and so may threads.
///
/// cuDNN is looked for when the first plan of cuDNN is loaded or compiled. A host whose plans are all of kernels
/// ([`EnginePolicy`](qkvault_graph::EnginePolicy)) needs none.
///
/// ```no_run
/// use half::bf16;
/// use qkvault::prelude::*;
///
/// let runtime = Runtime::open()?; // "no driver" and "no GPU" are error values
/// let attention = Attention::bshd(1, (32, 8), (4096, 4096), 128, DType::BF16).causal();
/// let plan = runtime.plan(&attention.validate()?)?;
///
/// let stream = runtime.device()?.context().new_stream()?;
/// let q = stream.alloc_zeros::<bf16>(4096 * 32 * 128)?;
/// let (k, v) = (stream.alloc_zeros::<bf16>(4096 * 8 * 128)?, stream.alloc_zeros::<bf16>(4096 * 8 * 128)?);
/// let mut o = stream.alloc_zeros::<bf16>(4096 * 32 * 128)?;
/// plan.launch(&stream, Args::new().q(&q).k(&k).v(&v).o(&mut o))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<RuntimeInner>,
}

struct RuntimeInner {
    place: Place,
    offline: Offline,
    on_miss: OnMiss,
    recorder: Option<Recorder>,
}

/// Where plans run.
enum Place {
    Here(OnGpu),
    /// A GPU that is not here, by its name, and the target with the cuDNN that compiles here.
    Elsewhere(String, Box<OnceLock<Target>>),
}

struct OnGpu {
    // Dropped before the session that they are loaded in.
    loaded: LoadedPlans,
    session: Session,
}

impl Runtime {
    /// Opens the runtime of GPU 0 with the user's vault. It compiles nothing: plans come from the vault. The usual
    /// search finds cuDNN when a plan needs it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`] without a driver or a GPU; [`ErrorKind::Vault`] if the vault cannot be used.
    pub fn open() -> Result<Runtime, Error> {
        Runtime::options().open()
    }

    /// Opens a runtime for a GPU that need not be here, by its name (`qkvault profile ls`), with the user's vault: it
    /// checks, explains, compiles and lists, and launches nothing.
    ///
    /// ```no_run
    /// use qkvault::prelude::*;
    ///
    /// let attention = Attention::bshd(1, (32, 8), (4096, 4096), 128, DType::BF16).causal().validate()?;
    /// let runtime = Runtime::for_target("h200")?;
    /// println!("{}", runtime.check(&attention)?);
    /// for plan in runtime.warm(&[attention], |_, done| println!("{done} done"))? {
    ///     println!("in {} ms, in {:?}", plan?.milliseconds, runtime.vault().folder());
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Refused`] for a name that is not known, with those that are; [`ErrorKind::Vault`] if the vault
    /// cannot be used.
    pub fn for_target(gpu: &str) -> Result<Runtime, Error> {
        Runtime::options().open_for(gpu)
    }

    /// Options to open a runtime with.
    #[must_use]
    pub fn options() -> RuntimeOptions {
        RuntimeOptions::default()
    }

    fn with(options: RuntimeOptions) -> Result<Runtime, Error> {
        let recorder = options.recorder(std::env::var_os(RECORD_VARIABLE));
        let RuntimeOptions { gpu, device, search, vault, session, compile, on_miss, plans, plan_bytes, .. } = options;
        let device = device.map_or_else(|| Device::open(gpu), Ok)?;
        let offline = Offline::new(Vault::open(vault)?, &search, compile);
        let session = Session::with_options(&device, &search, session)?;
        let place = Place::Here(OnGpu { loaded: LoadedPlans::new(plans, plan_bytes), session });
        Ok(Runtime { inner: Arc::new(RuntimeInner { place, offline, on_miss, recorder }) })
    }

    fn elsewhere(options: RuntimeOptions, gpu: &str) -> Result<Runtime, Error> {
        profile(gpu)?;
        let recorder = options.recorder(std::env::var_os(RECORD_VARIABLE));
        let RuntimeOptions { search, vault, compile, on_miss, .. } = options;
        let offline = Offline::new(Vault::open(vault)?, &search, compile);
        let place = Place::Elsewhere(gpu.to_owned(), Box::default());
        Ok(Runtime { inner: Arc::new(RuntimeInner { place, offline, on_miss, recorder }) })
    }

    /// The GPU, where there is one.
    fn here(&self) -> Result<&OnGpu, Error> {
        match &self.inner.place {
            Place::Here(gpu) => Ok(gpu),
            Place::Elsewhere(gpu, _) => Err(Error::elsewhere(gpu)),
        }
    }

    /// The plan of an attention, loaded on the GPU: one that is loaded already in nanoseconds, one of the vault in
    /// about a millisecond. Of threads that ask at once for a new one, one loads it and the others wait. Keep it for as
    /// long as you like: a plan that you hold stays loaded.
    ///
    /// Do not call it while a stream is captured, except for a plan that is loaded already.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Refused`] with reasons if the attention cannot run here; [`ErrorKind::Missing`] if the vault has no
    /// plan of it and none may be built; [`ErrorKind::Library`] if the plan is one of cuDNN and there is no cuDNN;
    /// [`ErrorKind::Build`] and [`ErrorKind::Load`] if that fails.
    pub fn plan(&self, attention: &Valid) -> Result<Arc<LoadedPlan>, Error> {
        let OnGpu { loaded, session } = self.here()?;
        let RuntimeInner { offline, on_miss, recorder, .. } = &*self.inner;
        let (planner, compile) = (offline.on_miss(*on_miss), &offline.compile);
        let of = attention.fingerprint();
        if let Some(plan) = loaded.get(&of) {
            return Ok(plan);
        }
        let load = || session.prepare(planner, attention, compile, *on_miss).map(|Prepared { plan, .. }| plan);
        let plan = loaded.get_or_load(&of, load).map_err(Error::from);
        // One that is missing is what a record is for; one that is refused cannot be compiled for the next run either.
        if let Some(recorder) = recorder.as_ref().filter(|_| !plan.as_ref().is_err_and(Error::is_refused)) {
            recorder.record(attention);
        }
        plan
    }

    /// Both plans of a training step, each as [`Runtime::plan`] gives it.
    ///
    /// # Errors
    ///
    /// As [`Runtime::plan`], of the forward, else of the backward.
    pub fn training(&self, training: &Training) -> Result<TrainingPair, Error> {
        let (forward, backward) = (self.plan(training.forward())?, self.plan(training.backward())?);
        Ok(TrainingPair::from_plans(training, &forward, &backward)?)
    }

    /// The scales of a layer's training in 8 bits, and the kernel that updates them, loaded as [`Runtime::plan`] loads
    /// and keeps plans.
    ///
    /// # Errors
    ///
    /// As [`Runtime::plan`].
    pub fn fp8_training(
        &self,
        training: &Training,
        recipe: ScaleRecipe,
        stream: &Arc<CudaStream>,
    ) -> Result<Fp8Training, Error> {
        let (OnGpu { loaded, session }, on_miss) = (self.here()?, self.inner.on_miss);
        let planner = self.inner.offline.on_miss(on_miss);
        let plan = |of: &ValidScaleUpdate| {
            loaded.get_or_load(&of.fingerprint(), || session.prepare_scale_update(planner, of, on_miss))
        };
        let plan = Scales::new(training, recipe).update().as_ref().map(plan).transpose()?;
        Ok(Fp8Training::new(training, recipe, plan.as_deref(), stream)?)
    }

    /// Every plan of a layer's serving set, each as [`Runtime::plan`] gives it. Sizes that are refused are a part of
    /// the result.
    ///
    /// # Errors
    ///
    /// As [`Runtime::plan`], of the first plan that is missing or does not load.
    pub fn serving(&self, layer: &ServeLayer, buckets: &Buckets) -> Result<Served, Error> {
        Served::new(layer, buckets, |attention| match self.plan(attention) {
            Ok(plan) => Ok(Ok(LoadedPlan::clone(&plan))),
            Err(error) => error.into_refusal().map(Err),
        })
    }

    /// Loads plans in the background, so that the first launches of a service need not wait.
    #[must_use]
    pub fn preload(&self, attentions: impl IntoIterator<Item = Valid>) -> Preload {
        Preload::start(self.clone(), attentions.into_iter().collect())
    }

    /// Unloads every plan that nothing else holds.
    pub fn unload_unused(&self) {
        if let Ok(gpu) = self.here() {
            gpu.loaded.clear();
        }
    }

    /// The number of plans that the runtime keeps loaded.
    #[must_use]
    pub fn loaded_plans(&self) -> usize {
        self.here().map_or(0, |gpu| gpu.loaded.len())
    }

    /// What records the attentions that the runtime is asked for, if something does ([`RuntimeOptions::record`]).
    #[cfg(feature = "models")]
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.inner.recorder.as_ref()
    }

    /// The GPU, for streams and memory.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`] of a runtime for a GPU that is not here.
    pub fn device(&self) -> Result<&Device, Error> {
        Ok(self.session()?.device())
    }

    /// The session. Its counters include every load.
    ///
    /// # Errors
    ///
    /// As [`Runtime::device`].
    pub fn session(&self) -> Result<&Session, Error> {
        Ok(&self.here()?.session)
    }

    /// The planner. The counters of its vault include every hit, miss and build.
    #[must_use]
    pub fn planner(&self) -> &Planner {
        self.inner.offline.on_miss(self.inner.on_miss)
    }

    /// The vault: what it has ([`Vault::ls`]), and its counters.
    #[must_use]
    pub fn vault(&self) -> &Vault {
        self.planner().vault()
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Runtime");
        match &self.inner.place {
            Place::Here(gpu) => shown.field("device", gpu.session.device()).field("loaded_plans", &gpu.loaded.len()),
            Place::Elsewhere(gpu, _) => shown.field("target", gpu),
        };
        shown.field("on_miss", &self.inner.on_miss).finish_non_exhaustive()
    }
}

/// A runtime may be shared among threads.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Runtime>();
    shared::<ErrorKind>();
};
