//! A session: one GPU, one cuDNN, a pool of handles, and counters.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use qkvault_graph::Target;
use qkvault_sys::Library;

use crate::driver::{NoDriver, driver};
use crate::machine::Machine;
use crate::properties::{self, PropertiesError};
use crate::raw::constants::Constants;
use crate::raw::launch_error::LaunchError;
use crate::raw::pool::Pool;
use crate::raw::primary::{self, PrimaryContext};

/// Options of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Most bytes of scratch memory that a plan may need. Loading refuses plans that need more. Default: no limit.
    pub workspace_limit: Option<u64>,
    /// Handles that opening the session creates. When more launches run at one time, they create further handles, which
    /// takes milliseconds and must not happen while a stream is captured. Default: 1.
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

/// One GPU with one cuDNN. Cheap to clone; clones share one session.
///
/// Plans and bound plans keep their session alive. The thread that drops the session last destroys its handles; the end
/// of a thread destroys none.
#[derive(Clone, Debug)]
pub struct RawSession {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) pool: Pool,
    pub(crate) library: Arc<Library>,
    pub(crate) machine: Machine,
    pub(crate) options: SessionOptions,
    properties: Vec<u8>,
    /// Read from `properties` on the first use, because loading needs only `machine`.
    target: OnceLock<Target>,
    pub(crate) loads: AtomicU64,
    pub(crate) load_failures: AtomicU64,
    pub(crate) load_micros: AtomicU64,
    /// Read by launches until the last plan is gone.
    pub(crate) constants: Constants,
    // Last, so that the context outlives the handles.
    pub(crate) context: Box<dyn ContextGuard>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Handles need their context to be destroyed.
        let entered = self.context.enter();
        if let Err(detail) = &entered {
            tracing::warn!(detail, "handles are destroyed without their context");
        }
        self.pool.clear();
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
    pub unsafe fn on_current(library: &Arc<Library>, options: SessionOptions) -> Result<RawSession, SessionError> {
        RawSession::open(library, options, Box::new(CallerContext))
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
        library: &Arc<Library>,
        options: SessionOptions,
    ) -> Result<RawSession, SessionError> {
        driver()?;
        let context = PrimaryContext::retain(ordinal).map_err(|detail| SessionError::Context { detail })?;
        RawSession::open(library, options, Box::new(context))
    }

    pub(crate) fn open(
        library: &Arc<Library>,
        options: SessionOptions,
        context: Box<dyn ContextGuard>,
    ) -> Result<RawSession, SessionError> {
        driver()?;
        let entered = context.enter().map_err(|detail| SessionError::Context { detail })?;
        let pool = Pool::new(library);
        pool.reserve(options.handles.max(1))?;
        let properties = properties::json_of_handle(pool.any()?.handle())?;
        let machine = properties::machine(&properties, library)?;
        drop(entered);
        let inner = Inner {
            pool,
            library: Arc::clone(library),
            machine,
            options,
            properties,
            target: OnceLock::new(),
            loads: AtomicU64::new(0),
            load_failures: AtomicU64::new(0),
            load_micros: AtomicU64::new(0),
            constants: Constants::default(),
            context,
        };
        Ok(RawSession { inner: Arc::new(inner) })
    }

    /// The cuDNN of the session.
    #[must_use]
    pub fn library(&self) -> &Arc<Library> {
        &self.inner.library
    }

    /// The properties that decide whether a plan loads here.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.inner.machine
    }

    /// The target of plans for this GPU. The session reads it once.
    ///
    /// # Errors
    ///
    /// [`PropertiesError`] if this version of qkvault cannot read the device properties.
    pub fn target(&self) -> Result<&Target, PropertiesError> {
        let Inner { target, properties, library, .. } = &*self.inner;
        match target.get() {
            Some(target) => Ok(target),
            None => properties::target(properties, library).map(|read| target.get_or_init(|| read)),
        }
    }

    /// Creates handles until there are this many, ahead of launches that run at one time or are captured.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if the context cannot be made current or cuDNN creates no handle.
    pub fn reserve_handles(&self, handles: usize) -> Result<(), SessionError> {
        let _entered = self.enter()?;
        Ok(self.inner.pool.reserve(handles)?)
    }

    /// The counters of the session.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        let Inner { pool, loads, load_failures, load_micros, .. } = &*self.inner;
        SessionStats {
            loads: loads.load(Ordering::Relaxed),
            load_failures: load_failures.load(Ordering::Relaxed),
            load_micros: load_micros.load(Ordering::Relaxed),
            handles: pool.created(),
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
