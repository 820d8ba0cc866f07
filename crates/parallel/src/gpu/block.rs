//! The memory of a rank: one allocation, which ranks of other processes can open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{CudaContext, result};
use qkvault_exec::cudarc;

use super::RunError;

/// What the driver divides the memory of a GPU into.
const PAGE: usize = 2 << 20;

/// An allocation that is poisoned: a number that nobody writes is seen.
pub(super) struct RankBlock {
    pub(super) address: u64,
    context: Arc<CudaContext>,
    /// Whether other ranks may still write it, after an error: it is never freed then.
    kept: AtomicBool,
}

impl RankBlock {
    pub(super) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<RankBlock, RunError> {
        context.bind_to_thread().map_err(RunError::driver("make the context current"))?;
        // Memory of a stream's pool cannot be opened by another process, and small allocations share pages with others,
        // which would be opened with them.
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        // SAFETY: every byte is set below.
        let address = unsafe { result::malloc_sync(bytes) };
        let address = address.map_err(RunError::driver("allocate the memory of a rank"))?;
        let block = RankBlock { address, context: Arc::clone(context), kept: AtomicBool::new(false) };
        block.set(0, 0xff, bytes)?;
        Ok(block)
    }

    /// Sets bytes from a place of the block on, and waits until they are set: the driver queues it on a stream, behind
    /// which no other one is.
    pub(super) fn set(&self, place: u64, value: u8, bytes: usize) -> Result<(), RunError> {
        let wrong = RunError::driver;
        if bytes == 0 {
            return Ok(());
        }
        let stream = self.context.new_stream().map_err(wrong("create a stream"))?;
        // SAFETY: the caller names bytes of the block, which nothing else uses yet.
        unsafe { result::memset_d8_async(self.address + place, value, bytes, stream.cu_stream()) }
            .map_err(wrong("set the memory of a rank"))?;
        stream.synchronize().map_err(wrong("set the memory of a rank"))
    }

    /// Leaves the memory to the end of the process.
    pub(super) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    pub(super) fn kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }
}

impl Drop for RankBlock {
    fn drop(&mut self) {
        if self.kept() {
            return;
        }
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: the rank has waited for the last launch, and frees its memory once.
        self.context.record_err(unsafe { result::free_sync(self.address) });
    }
}
