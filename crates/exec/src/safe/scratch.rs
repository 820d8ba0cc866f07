//! Scratch memory of launches with arguments: blocks that belong to a stream, each leased by one launch at a time.
//!
//! A launch is several enqueues, such as a write of zeros to a counter in the scratch memory and the kernel that counts
//! there. When two threads launch on one stream, these can interleave, so the order of the stream alone does not let
//! both use one block. A block that a launch gives back is free for the next one on its stream, whose work comes later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::CudaStream;

use crate::raw::launch_error::LaunchError;
use crate::safe::workspace::{Workspace, WorkspaceError};

/// Blocks that are kept. Beyond it the block that was used longest ago is freed, on its stream.
const KEPT: usize = 64;

/// The blocks of a GPU that no launch uses now; the one that was used last is at the end.
///
/// A block keeps its stream alive, so that no other stream gets its address.
#[derive(Default)]
pub(crate) struct ScratchPool(Mutex<Vec<(usize, Arc<Workspace>)>>);

/// A block, until its launch is queued.
pub(crate) struct Leased<'a> {
    of: &'a ScratchPool,
    stream: usize,
    block: Arc<Workspace>,
}

impl ScratchPool {
    /// A block of at least so many bytes on a stream. A smaller one of the stream is freed.
    pub(crate) fn lease(&self, stream: &Arc<CudaStream>, bytes: u64) -> Result<Leased<'_>, LaunchError> {
        let address = stream.cu_stream() as usize;
        let found = {
            let mut kept = self.kept();
            kept.iter().rposition(|(of, _)| *of == address).map(|at| kept.remove(at).1)
        };
        let block = match found {
            Some(block) if block.bytes() >= bytes => block,
            smaller => {
                drop(smaller);
                let refused = |error: WorkspaceError| LaunchError::Workspace { bytes, detail: error.detail };
                Workspace::allocate(stream, bytes).map_err(refused)?
            }
        };
        Ok(Leased { of: self, stream: address, block })
    }

    fn kept(&self) -> MutexGuard<'_, Vec<(usize, Arc<Workspace>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leased<'_> {
    pub(crate) fn block(&self) -> &Arc<Workspace> {
        &self.block
    }
}

impl Drop for Leased<'_> {
    fn drop(&mut self) {
        let mut kept = self.of.kept();
        let oldest = (kept.len() >= KEPT).then(|| kept.remove(0));
        kept.push((self.stream, Arc::clone(&self.block)));
        drop(kept);
        drop(oldest);
    }
}
