//! A session: one GPU, one cuDNN, a pool of handles, and what was counted.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use qkvault_graph::Target;
use qkvault_sys::Library;

use crate::driver::{NoDriver, driver};
use crate::machine::Machine;
use crate::properties::{self, PropertiesError};
use crate::raw::pool::Pool;

/// What a session is opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Most bytes of scratch memory that a plan may need; plans that need more are refused when they are loaded. No limit by default.
    pub workspace_limit: Option<u64>,
    /// Handles made when the session is opened. Further ones are made when more launches run at one time, which takes milliseconds and must
    /// not happen while a stream is captured.
    pub handles: usize,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions { workspace_limit: None, handles: 1 }
    }
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Nothing can run here.
    #[error(transparent)]
    NoDriver(#[from] NoDriver),
    /// cuDNN gives no handle.
    #[error("cuDNN could not be readied on the GPU: {0}")]
    Cudnn(#[from] qkvault_sys::Error),
    /// The properties of the GPU are not known.
    #[error(transparent)]
    Properties(#[from] PropertiesError),
    /// The GPU's context could not be made current on this thread.
    #[error("the CUDA context could not be made current: {detail}")]
    Context {
        /// The driver's reason.
        detail: String,
    },
}

/// What a session has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionStats {
    /// Plans loaded.
    pub loads: u64,
    /// Plans that could not be loaded.
    pub load_failures: u64,
    /// Time spent loading, in microseconds, failures included.
    pub load_micros: u64,
    /// Handles made.
    pub handles: u64,
}

/// The GPU's context: how it is made current, and what keeps it alive.
pub(crate) trait ContextGuard: Send + Sync + fmt::Debug {
    fn enter(&self) -> Result<(), String>;
}

/// The raw layer's: the caller has made it current.
#[derive(Debug)]
struct CallerContext;

impl ContextGuard for CallerContext {
    fn enter(&self) -> Result<(), String> {
        Ok(())
    }
}

/// One GPU with one cuDNN. Cloning gives another hand on the same session.
///
/// Plans and bound plans keep their session alive. Handles are destroyed with it, by whichever thread lets go of it last, and never by the
/// end of a thread.
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
    /// What `properties` say in full, read when it is first asked for: loading needs only what `machine` has.
    target: OnceLock<Target>,
    pub(crate) loads: AtomicU64,
    pub(crate) load_failures: AtomicU64,
    pub(crate) load_micros: AtomicU64,
    // Last, so that the context outlives the handles.
    pub(crate) context: Box<dyn ContextGuard>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Handles are destroyed next; that wants their context current, and nobody is left to tell if it cannot be.
        let _ = self.context.enter();
    }
}

impl RawSession {
    /// A session on the GPU whose context is current on this thread.
    ///
    /// # Safety
    ///
    /// The context must be the primary one of its GPU (the one that the CUDA runtime uses), must stay alive as long as the session and
    /// everything made with it, and must be current on every thread that loads, launches or drops any of that.
    ///
    /// # Errors
    ///
    /// [`SessionError`], without a driver or a GPU too.
    pub unsafe fn on_current(library: &Arc<Library>, options: SessionOptions) -> Result<RawSession, SessionError> {
        RawSession::open(library, options, Box::new(CallerContext))
    }

    pub(crate) fn open(
        library: &Arc<Library>,
        options: SessionOptions,
        context: Box<dyn ContextGuard>,
    ) -> Result<RawSession, SessionError> {
        driver()?;
        context.enter().map_err(|detail| SessionError::Context { detail })?;
        let pool = Pool::new(library);
        pool.reserve(options.handles.max(1))?;
        let properties = properties::json_of_handle(pool.lease(std::ptr::null_mut())?.handle())?;
        let machine = properties::machine(&properties, library)?;
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
            context,
        };
        Ok(RawSession { inner: Arc::new(inner) })
    }

    /// The cuDNN.
    #[must_use]
    pub fn library(&self) -> &Arc<Library> {
        &self.inner.library
    }

    /// What decides whether a plan loads here.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.inner.machine
    }

    /// What plans for this GPU are compiled for.
    ///
    /// # Errors
    ///
    /// [`PropertiesError`].
    pub fn target(&self) -> Result<&Target, PropertiesError> {
        let Inner { target, properties, library, .. } = &*self.inner;
        match target.get() {
            Some(target) => Ok(target),
            None => properties::target(properties, library).map(|read| target.get_or_init(|| read)),
        }
    }

    /// Makes handles until there are this many, ahead of launches that run at one time or are captured.
    ///
    /// # Errors
    ///
    /// [`SessionError`].
    pub fn reserve_handles(&self, handles: usize) -> Result<(), SessionError> {
        self.enter()?;
        Ok(self.inner.pool.reserve(handles)?)
    }

    /// What was counted.
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

    pub(crate) fn enter(&self) -> Result<(), SessionError> {
        self.inner.context.enter().map_err(|detail| SessionError::Context { detail })
    }
}
