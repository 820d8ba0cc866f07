//! A session: one GPU, a cuDNN with a pool of handles where plans need it, and counters.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use qkvault_cudnn::Target;
use qkvault_sys::Library;

use crate::driver::{NoDriver, driver};
use crate::properties::PropertiesError;
use crate::raw::constants::RawConstants;
use crate::raw::cubins::Modules;
use crate::raw::cudnn::{CudnnSource, SessionCudnn};
use crate::raw::gpu::Gpu;
use crate::raw::launch_error::LaunchError;
use crate::raw::primary::{self, PrimaryContext};
use qkvault_compile::Machine;

/// Options of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Most bytes of scratch memory that a plan may need. Loading refuses plans that need more. Default: no limit.
    pub workspace_limit: Option<u64>,
    /// Handles that are created with a session's cuDNN. When more launches run at one time, they create further
    /// handles, which takes milliseconds and must not happen while a stream is captured. Default: 1.
    pub handles: usize,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions { workspace_limit: None, handles: 1 }
    }
}

/// Why a session could not be opened or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// There is no driver.
    #[error(transparent)]
    NoDriver(#[from] NoDriver),
    /// cuDNN could not create a handle.
    #[error("cuDNN could not be initialised on the GPU: {0}")]
    Cudnn(#[from] qkvault_sys::Error),
    /// The plan is one of cuDNN, and there is none.
    #[error("a plan of cuDNN is needed, and there is no cuDNN here: {0}")]
    NoCudnn(#[source] qkvault_sys::CudnnLoadError),
    /// The properties of the GPU are unknown.
    #[error(transparent)]
    Properties(#[from] PropertiesError),
    /// The GPU's context could not be made current on this thread.
    #[error("the CUDA context could not be made current: {detail}")]
    Context {
        /// The error of the driver.
        detail: String,
    },
    /// A constant operand of a plan could not be uploaded.
    #[error("the constant operands of the plan (ALiBi slopes) could not be uploaded: {detail}")]
    Constants {
        /// The error of the driver.
        detail: String,
    },
}

/// Counters of a session since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionStats {
    /// Plans loaded.
    pub loads: u64,
    /// Loads that failed.
    pub load_failures: u64,
    /// Time of all loads, in microseconds, failures included.
    pub load_micros: u64,
    /// Handles created.
    pub handles: u64,
}

/// Keeps the GPU's context alive and makes it current.
pub(crate) trait ContextGuard: Send + Sync + fmt::Debug {
    /// Makes the context current on this thread, until the value is dropped or for good.
    fn enter(&self) -> Result<Entered, String>;

    /// The same before a launch, where it is not the caller who does so.
    fn enter_to_launch(&self) -> Result<Entered, String> {
        Ok(Entered::stays())
    }
}

/// A context that is current. Dropping the value makes the former one current again, where the guard does that.
pub(crate) struct Entered(Option<usize>);

impl Entered {
    /// The context stays current.
    pub(crate) const fn stays() -> Entered {
        Entered(None)
    }

    /// The context is left again, for this one.
    pub(crate) const fn leaves_for(former: usize) -> Entered {
        Entered(Some(former))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(former) = self.0 {
            primary::make_current(former);
        }
    }
}

/// Context guard for the raw layer: assumes the caller has already made the context current.
#[derive(Debug)]
struct CallerContext;

impl ContextGuard for CallerContext {
    fn enter(&self) -> Result<Entered, String> {
        Ok(Entered::stays())
    }
}

/// One GPU, with one cuDNN where plans need it. Cheap to clone; clones share one session.
///
/// A session of a [`Search`](qkvault_sys::Search) looks for cuDNN when a plan of cuDNN is loaded first, and never where
/// all plans are of kernels. One of a loaded cuDNN creates its handles at once.
///
/// Plans and bound plans keep their session alive. The thread that drops the session last destroys its handles; the end
/// of a thread destroys none.
#[derive(Clone, Debug)]
pub struct RawSession {
    pub(crate) inner: Arc<SessionInner>,
}

#[derive(Debug)]
pub(crate) struct SessionInner {
    cudnn: OnceLock<SessionCudnn>,
    source: CudnnSource,
    /// Held while cuDNN is opened, so that one thread does it.
    opening: Mutex<()>,
    /// Handles that cuDNN is opened with.
    handles: AtomicUsize,
    pub(crate) gpu: Gpu,
    pub(crate) options: SessionOptions,
    pub(crate) loads: AtomicU64,
    pub(crate) load_failures: AtomicU64,
    pub(crate) load_micros: AtomicU64,
    /// Read by launches until the last plan is gone.
    pub(crate) constants: RawConstants,
    /// The cubins of its plans.
    pub(crate) modules: Modules,
    // Last, so that the context outlives the handles.
    pub(crate) context: Box<dyn ContextGuard>,
}

impl Drop for SessionInner {
    fn drop(&mut self) {
        // Handles need their context to be destroyed.
        let entered = self.context.enter();
        if let Err(detail) = &entered {
            tracing::warn!(detail, "handles are destroyed without their context");
        }
        if let Some(cudnn) = self.cudnn.get() {
            cudnn.pool.clear();
        }
        // The driver waits for launches that read them.
        self.constants.free();
    }
}

impl RawSession {
    /// Opens a session on the GPU whose context is current on this thread.
    ///
    /// # Safety
    ///
    /// The context must be the primary one of its GPU (the one that the CUDA runtime uses). It must stay alive as long
    /// as the session and everything made with it, and be current on every thread that loads, launches or drops any of
    /// these.
    ///
    /// # Errors
    ///
    /// [`SessionError`] without a driver or a GPU, or if cuDNN fails.
    pub unsafe fn on_current(
        cudnn: impl Into<CudnnSource>,
        options: SessionOptions,
    ) -> Result<RawSession, SessionError> {
        RawSession::open(cudnn.into(), options, Box::new(CallerContext))
    }

    /// Opens a session on the primary context of a GPU, by CUDA's ordinal, and keeps that context alive. Every call of
    /// the session makes the context current and restores the former one afterwards, so any thread may load, launch and
    /// drop.
    ///
    /// # Errors
    ///
    /// [`SessionError`] without a driver or a GPU, or if cuDNN fails.
    pub fn on_primary(
        ordinal: i32,
        cudnn: impl Into<CudnnSource>,
        options: SessionOptions,
    ) -> Result<RawSession, SessionError> {
        driver()?;
        let context = PrimaryContext::retain(ordinal).map_err(|detail| SessionError::Context { detail })?;
        RawSession::open(cudnn.into(), options, Box::new(context))
    }

    pub(crate) fn open(
        source: CudnnSource,
        options: SessionOptions,
        context: Box<dyn ContextGuard>,
    ) -> Result<RawSession, SessionError> {
        driver()?;
        let in_context = |detail| SessionError::Context { detail };
        let entered = context.enter().map_err(in_context)?;
        let gpu = Gpu::current().map_err(in_context)?;
        let cudnn = match &source {
            CudnnSource::Loaded(library) => OnceLock::from(SessionCudnn::open(library, options.handles)?),
            CudnnSource::Search(_) => OnceLock::new(),
        };
        drop(entered);
        let inner = SessionInner {
            cudnn,
            source,
            opening: Mutex::new(()),
            handles: AtomicUsize::new(options.handles),
            gpu,
            options,
            loads: AtomicU64::new(0),
            load_failures: AtomicU64::new(0),
            load_micros: AtomicU64::new(0),
            constants: RawConstants::default(),
            modules: Modules::default(),
            context,
        };
        Ok(RawSession { inner: Arc::new(inner) })
    }

    /// The GPU, as the driver tells it.
    #[must_use]
    pub fn gpu(&self) -> Gpu {
        self.inner.gpu
    }

    /// The session's cuDNN, which the first call opens.
    pub(crate) fn cudnn(&self) -> Result<&SessionCudnn, SessionError> {
        if let Some(cudnn) = self.inner.cudnn.get() {
            return Ok(cudnn);
        }
        let _opening = self.inner.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cudnn) = self.inner.cudnn.get() {
            return Ok(cudnn);
        }
        let library = self.inner.source.library()?;
        let _entered = self.enter()?;
        let cudnn = SessionCudnn::open(&library, self.inner.handles.load(Ordering::Relaxed))?;
        Ok(self.inner.cudnn.get_or_init(|| cudnn))
    }

    /// The cuDNN of a plan of cuDNN that is loaded in this session.
    pub(crate) fn cudnn_of_plan(&self) -> &SessionCudnn {
        self.inner.cudnn.get().expect("loading the plan has opened it")
    }

    /// The cuDNN of the session, which the first call loads.
    ///
    /// # Errors
    ///
    /// [`SessionError::NoCudnn`] if there is none; [`SessionError`] if it fails on this GPU.
    pub fn library(&self) -> Result<&Arc<Library>, SessionError> {
        Ok(&self.cudnn()?.library)
    }

    /// The properties that decide whether a plan of cuDNN loads here.
    ///
    /// # Errors
    ///
    /// As [`RawSession::library`].
    pub fn machine(&self) -> Result<&Machine, SessionError> {
        Ok(&self.cudnn()?.machine)
    }

    /// The target of cuDNN's plans for this GPU. The session reads it once.
    ///
    /// # Errors
    ///
    /// As [`RawSession::library`]; [`SessionError::Properties`] if this version of qkvault cannot read the device
    /// properties.
    pub fn target(&self) -> Result<&Target, SessionError> {
        Ok(self.cudnn()?.target()?)
    }

    /// Creates handles until there are this many, ahead of launches that run at one time or are captured. Where cuDNN
    /// is not open yet, it is opened with as many.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if the context cannot be made current or cuDNN creates no handle.
    pub fn reserve_handles(&self, handles: usize) -> Result<(), SessionError> {
        self.inner.handles.fetch_max(handles, Ordering::Relaxed);
        let Some(cudnn) = self.inner.cudnn.get() else { return Ok(()) };
        let _entered = self.enter()?;
        Ok(cudnn.pool.reserve(handles)?)
    }

    /// The counters of the session.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        let SessionInner { cudnn, loads, load_failures, load_micros, .. } = &*self.inner;
        SessionStats {
            loads: loads.load(Ordering::Relaxed),
            load_failures: load_failures.load(Ordering::Relaxed),
            load_micros: load_micros.load(Ordering::Relaxed),
            handles: cudnn.get().map_or(0, |cudnn| cudnn.pool.created()),
        }
    }

    pub(crate) fn enter(&self) -> Result<Entered, SessionError> {
        self.inner.context.enter().map_err(|detail| SessionError::Context { detail })
    }

    /// Makes the context current for a launch, of a session that does so itself.
    pub(crate) fn enter_to_launch(&self) -> Result<Entered, LaunchError> {
        self.inner.context.enter_to_launch().map_err(|detail| LaunchError::Context { detail })
    }
}
