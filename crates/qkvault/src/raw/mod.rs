//! The runtime for callers from other languages: it opens without a GPU, addresses are numbers, streams are pointers.

mod conversion;
#[cfg(feature = "parallel")]
mod ranks;
mod ready;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use qkvault_cache::{UnpackOptions, UnpackReport, Vault};
use qkvault_compile::{OnMiss, Planner, Resolution};
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_exec::raw::{self, CudnnSource, PlanName, PlanTable, RawDescribed, RawPlan, RawSession};
use qkvault_exec::{Prepared, SessionOptions, Training, prepare_on};
use qkvault_graph::{CudnnVersion, PlanKey, Valid, codec};
use qkvault_probe::Explanation;
use qkvault_sys::{Library, Search};

use crate::offline::{self, Offline};
use crate::record::Recorder;
use crate::runtime::RECORD_VARIABLE;
use crate::{Error, RuntimeOptions};
#[cfg(feature = "parallel")]
pub use ranks::RawRankPlans;
pub use ready::{PrepareTimes, RawReady};

/// The runtime of the raw layer: the vault and, as soon as a call needs them, a cuDNN, a compiler and a session on the
/// primary context of each GPU. Cheap to clone; clones share everything, and so may threads.
///
/// Loaded plans are in the table of the process ([`PlanTable::of_process`]), which never unloads them.
///
/// ```
/// use qkvault::Runtime;
/// use qkvault::cache::VaultOptions;
/// use qkvault::graph::{Attention, DType};
///
/// # let folder = tempfile::tempdir()?;
/// // No GPU, no driver, no cuDNN.
/// let runtime = Runtime::options().vault(VaultOptions::in_folder(folder.path())).open_raw()?;
/// let attention = Attention::bshd(1, (32, 8), (4096, 4096), 128, DType::BF16).causal().validate()?;
/// let answer = runtime.explain(&attention, &runtime.rules_target("h200", None)?);
/// assert!(answer.supported);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RawRuntime {
    inner: Arc<RawInner>,
}

struct RawInner {
    search: Search,
    offline: Offline,
    on_miss: OnMiss,
    handles: usize,
    /// What tells the names of plans with these options from those with other options, in the table of the process.
    salt: PlanName,
    library: OnceLock<Arc<Library>>,
    ready: RwLock<HashMap<(i32, PlanName), RawReady>>,
    recorder: Option<Recorder>,
    /// The sessions of ranks, by GPU.
    #[cfg(feature = "parallel")]
    ranks: std::sync::Mutex<HashMap<i32, qkvault_exec::Session>>,
}

impl RuntimeOptions {
    /// Opens the runtime of the raw layer, which needs no GPU and no cuDNN yet. The GPU is named in each call, and
    /// [`RuntimeOptions::keep`] does not apply.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Vault`](crate::ErrorKind::Vault) if the vault cannot be used.
    pub fn open_raw(self) -> Result<RawRuntime, Error> {
        let recorder = self.recorder(std::env::var_os(RECORD_VARIABLE));
        let RuntimeOptions { search, vault, session, compile, on_miss, .. } = self;
        let SessionOptions { workspace_limit, handles } = session;
        // Sessions are the process's, so a limit of one runtime cannot be theirs.
        let compile = CompileOptions { workspace_limit: workspace_limit.or(compile.workspace_limit), ..compile };
        let salt = match compile == CompileOptions::default() {
            true => [0; 32],
            false => *blake3::hash(&codec::encode(&compile)).as_bytes(),
        };
        let offline = Offline::new(Vault::open(vault)?, &search, compile);
        let (library, ready) = (OnceLock::new(), RwLock::default());
        let inner = RawInner {
            search,
            offline,
            on_miss,
            handles,
            salt,
            library,
            ready,
            recorder,
            #[cfg(feature = "parallel")]
            ranks: std::sync::Mutex::default(),
        };
        Ok(RawRuntime { inner: Arc::new(inner) })
    }
}

/// The value of a cell, made by the first call that succeeds.
fn get_or_try<T, E>(cell: &OnceLock<T>, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
    match cell.get() {
        Some(value) => Ok(value),
        None => make().map(|value| cell.get_or_init(|| value)),
    }
}

impl RawRuntime {
    /// The cuDNN, loaded by the first call.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Library`](crate::ErrorKind::Library) if the search finds none.
    pub fn library(&self) -> Result<&Arc<Library>, Error> {
        Ok(get_or_try(&self.inner.library, || Library::open(&self.inner.search))?)
    }

    /// The planner of the vault, which compiles nothing.
    #[must_use]
    pub fn planner(&self) -> &Planner {
        &self.inner.offline.planner
    }

    /// A GPU by its name with a cuDNN that is not loaded, for [`RawRuntime::explain`]. Without a version, the newest
    /// that the rules cover.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Refused`](crate::ErrorKind::Refused) for a name that is not known, with those that are.
    pub fn rules_target(&self, gpu: &str, cudnn: Option<CudnnVersion>) -> Result<Target, Error> {
        offline::rules_target(gpu, cudnn)
    }

    /// A GPU by its name, with the cuDNN that compiles here.
    ///
    /// # Errors
    ///
    /// As [`RawRuntime::rules_target`]; [`ErrorKind::Build`](crate::ErrorKind::Build) without a cuDNN.
    pub fn compile_target(&self, gpu: &str) -> Result<Target, Error> {
        self.inner.offline.compile_target(gpu)
    }

    /// What the rules say of an attention, with every reason, the nearest change, the memory of a launch, and the
    /// engine whose plan is looked for first. It needs no cuDNN and no GPU.
    #[must_use]
    pub fn explain(&self, attention: &Valid, target: &Target) -> Explanation {
        self.inner.offline.explain(attention, target)
    }

    /// The key of an attention's plan for a target, in microseconds.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Refused`](crate::ErrorKind::Refused) if no op graph can be written.
    pub fn plan_key(&self, attention: &Valid, target: &Target) -> Result<PlanKey, Error> {
        self.inner.offline.plan_key(attention, target)
    }

    /// The plan of an attention for a target ([`RawRuntime::compile_target`]), from the vault or compiled into it,
    /// which takes 0.3 to 1 second. It needs no GPU, and no cuDNN for a plan of kernels, of which the target says the
    /// compute capability alone ([`RawRuntime::rules_target`]).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Refused`](crate::ErrorKind::Refused) with the reasons;
    /// [`ErrorKind::Build`](crate::ErrorKind::Build) if compiling does not work here.
    pub fn warm(&self, attention: &Valid, target: &Target) -> Result<Resolution, Error> {
        self.inner.offline.warm(attention, target)
    }

    /// The plan of an attention for a target, if the vault has it. Compiles nothing and needs no GPU.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Missing`](crate::ErrorKind::Missing) if the vault lacks it;
    /// [`ErrorKind::Refused`](crate::ErrorKind::Refused) with the reasons.
    pub fn look(&self, attention: &Valid, target: &Target) -> Result<Resolution, Error> {
        self.inner.offline.look(attention, target)
    }

    /// The session of the process on a GPU's primary context, opened by the first call.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::ErrorKind::Device) without a driver or such a GPU.
    pub fn session(&self, gpu: i32) -> Result<RawSession, Error> {
        raw::driver()?;
        let options = SessionOptions { workspace_limit: None, handles: self.inner.handles };
        let cudnn = match self.inner.library.get() {
            Some(library) => CudnnSource::from(library),
            None => CudnnSource::from(&self.inner.search),
        };
        Ok(PlanTable::of_process().session(gpu, cudnn, options)?)
    }

    /// The plan of a description on a GPU, if this runtime has prepared it: in nanoseconds, from any thread, also while
    /// a stream is captured. `fingerprint` has the bytes of [`Valid::fingerprint`].
    #[must_use]
    pub fn find(&self, fingerprint: &[u8; 32], gpu: i32) -> Option<RawReady> {
        let ready = self.inner.ready.read().unwrap_or_else(PoisonError::into_inner);
        ready.get(&(gpu, self.name(fingerprint))).cloned()
    }

    fn beside_older(&self, error: Error) -> Error {
        self.inner.offline.beside_older(error)
    }

    /// The name of a description's plan in the table of the process.
    fn name(&self, fingerprint: &[u8; 32]) -> PlanName {
        let mut name = *fingerprint;
        name.iter_mut().zip(self.inner.salt).for_each(|(byte, salt)| *byte ^= salt);
        name
    }

    /// The plan of an attention, loaded on a GPU: one that is prepared already in nanoseconds, one of the vault in
    /// about a millisecond, else built if the options allow it. Of threads that ask at once, one loads it.
    ///
    /// # Safety
    ///
    /// `stream` must be null or a stream of this GPU that is alive.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Captured`](crate::ErrorKind::Captured) if the plan is not loaded and `stream` is being captured;
    /// else as [`Runtime::plan`](crate::Runtime::plan) and [`RawRuntime::session`].
    pub unsafe fn prepare(&self, attention: &Valid, gpu: i32, stream: *mut c_void) -> Result<RawReady, Error> {
        let fingerprint = attention.fingerprint();
        if let Some(ready) = self.find(fingerprint.bytes(), gpu) {
            return Ok(ready);
        }
        let started = Instant::now();
        self.session(gpu)?;
        let RawInner { offline, on_miss, ready, recorder, .. } = &*self.inner;
        let (planner, compile) = (offline.on_miss(*on_miss), &offline.compile);
        let name = self.name(fingerprint.bytes());
        let (mut source, mut engine, mut times) = (None, None, PrepareTimes::default());
        let load = |session: &RawSession| {
            let load = |plan: &_| session.load(plan);
            let here = || Ok(session.target()?);
            let Prepared { plan, answer, .. } =
                prepare_on(planner, session.gpu().sm, here, attention, compile, *on_miss, load)?;
            times.vault = Duration::from_secs_f64(answer.milliseconds / 1e3);
            times.load = RawPlan::load_times(&plan);
            (source, engine) = (Some(answer.source), Some(answer.engine));
            Ok(plan)
        };
        // SAFETY: the caller's promise.
        let loaded = unsafe { PlanTable::of_process().load(gpu, &name, stream, load) };
        let loaded = loaded.map_err(|error| self.beside_older(error.into()));
        // One that is missing is what a record is for; one that is refused cannot be compiled for the next run either.
        if let Some(recorder) = recorder.as_ref().filter(|_| !loaded.as_ref().is_err_and(Error::is_refused)) {
            recorder.record(attention);
        }
        let plan = PlanTable::of_process().plan(loaded?).cloned().expect("the table never unloads");
        let plan = RawDescribed::new(plan, attention)?;
        if source.is_some() {
            times.whole = started.elapsed();
        }
        let plan = RawReady::new(plan, source, engine, times);
        let mut ready = ready.write().unwrap_or_else(PoisonError::into_inner);
        Ok(ready.entry((gpu, name)).or_insert(plan).clone())
    }

    /// Both plans of a training step, forward and backward, each as [`RawRuntime::prepare`] gives it.
    ///
    /// # Safety
    ///
    /// As for [`RawRuntime::prepare`].
    ///
    /// # Errors
    ///
    /// As [`RawRuntime::prepare`], of the forward, else of the backward.
    pub unsafe fn prepare_training(
        &self,
        training: &Training,
        gpu: i32,
        stream: *mut c_void,
    ) -> Result<(RawReady, RawReady), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            let forward = self.prepare(training.forward(), gpu, stream)?;
            Ok((forward, self.prepare(training.backward(), gpu, stream)?))
        }
    }

    /// Stores the plans of a pack in the vault. The whole pack is checked before the first is stored.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Vault`](crate::ErrorKind::Vault) if the file cannot be read, or is no pack that may be used.
    pub fn unpack(&self, pack: &Path, options: &UnpackOptions) -> Result<UnpackReport, Error> {
        self.inner.offline.unpack(pack, options)
    }
}

impl fmt::Debug for RawRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RawInner { offline, on_miss, handles, .. } = &*self.inner;
        let mut shown = f.debug_struct("RawRuntime");
        shown
            .field("compile", &offline.compile)
            .field("on_miss", on_miss)
            .field("handles", handles)
            .finish_non_exhaustive()
    }
}

/// A runtime may be shared among threads.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<RawRuntime>();
    shared::<RawReady>();
};
