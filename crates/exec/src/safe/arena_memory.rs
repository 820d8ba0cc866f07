//! The slices of an arena with their lock and their one order among streams.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, CudaStream};

use crate::safe::order::Uses;

/// Memory that the launches of a step share.
pub(crate) struct ArenaMemory {
    inner: Mutex<ArenaSlices>,
    context: Arc<CudaContext>,
}

/// A slice of cudarc's whose element type its slot knows, and the stream that allocated it.
pub(crate) type ArenaSlice = (Box<dyn Any + Send + Sync>, Arc<CudaStream>);

pub(crate) struct ArenaSlices {
    pub(crate) slices: Vec<ArenaSlice>,
    pub(crate) uses: Uses,
}

impl ArenaMemory {
    pub(crate) fn new(stream: &Arc<CudaStream>) -> Arc<ArenaMemory> {
        let inner = Mutex::new(ArenaSlices { slices: Vec::new(), uses: Uses::written(stream) });
        Arc::new(ArenaMemory { inner, context: Arc::clone(stream.context()) })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ArenaSlices> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) const fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }
}

impl Drop for ArenaSlices {
    fn drop(&mut self) {
        // Each slice is freed on the stream that allocated it, after every launch that uses it.
        for (_, home) in &self.slices {
            home.context().record_err(self.uses.write(home));
        }
    }
}
