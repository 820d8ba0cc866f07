//! The cuDNN of a session: loaded with it, or when a plan of cuDNN needs it first.

use std::sync::{Arc, OnceLock};

use qkvault_cudnn::Target;
use qkvault_sys::{Library, Search};

use crate::properties::{self, PropertiesError};
use crate::raw::pool::HandlePool;
use crate::raw::session::SessionError;
use qkvault_compile::Machine;

/// Where a session has its cuDNN from.
#[derive(Clone, Debug)]
pub enum CudnnSource {
    /// A cuDNN that is loaded, whose handles are created with the session.
    Loaded(Arc<Library>),
    /// Where to look for one as soon as a plan of cuDNN is loaded. Plans of kernels need none.
    Search(Search),
}

impl From<&Arc<Library>> for CudnnSource {
    fn from(library: &Arc<Library>) -> CudnnSource {
        CudnnSource::Loaded(Arc::clone(library))
    }
}

impl From<&Search> for CudnnSource {
    fn from(search: &Search) -> CudnnSource {
        CudnnSource::Search(search.clone())
    }
}

impl CudnnSource {
    /// The library.
    pub(crate) fn library(&self) -> Result<Arc<Library>, SessionError> {
        match self {
            CudnnSource::Loaded(library) => Ok(Arc::clone(library)),
            CudnnSource::Search(search) => Library::open(search).map_err(SessionError::NoCudnn),
        }
    }
}

/// A cuDNN on a GPU.
#[derive(Debug)]
pub(crate) struct SessionCudnn {
    pub(crate) pool: HandlePool,
    pub(crate) library: Arc<Library>,
    pub(crate) machine: Machine,
    properties: Vec<u8>,
    /// Read from `properties` on the first use, because loading needs only `machine`.
    target: OnceLock<Target>,
}

impl SessionCudnn {
    /// Creates handles on the GPU whose context is current.
    pub(crate) fn open(library: &Arc<Library>, handles: usize) -> Result<SessionCudnn, SessionError> {
        let pool = HandlePool::new(library);
        pool.reserve(handles.max(1))?;
        let properties = properties::json_of_handle(pool.any()?.handle())?;
        let machine = properties::machine(&properties, library)?;
        Ok(SessionCudnn { pool, library: Arc::clone(library), machine, properties, target: OnceLock::new() })
    }

    pub(crate) fn target(&self) -> Result<&Target, PropertiesError> {
        match self.target.get() {
            Some(target) => Ok(target),
            None => properties::target(&self.properties, &self.library).map(|read| self.target.get_or_init(|| read)),
        }
    }
}
