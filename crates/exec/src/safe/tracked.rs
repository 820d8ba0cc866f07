//! The operands that a launch orders: bound slices, and the metadata of a batch on the device.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut, DriverError, SyncOnDrop};

/// A bound slice. `acquire` makes the stream wait for it, and the guard records an event for later work.
pub(crate) trait Tracked: Send {
    fn acquire<'s>(&'s mut self, stream: &'s CudaStream) -> SyncOnDrop<'s>;
}

/// The metadata of a batch on the device. Its lock orders updates with the launches that read it.
pub(crate) struct StepMemory {
    words: Mutex<CudaSlice<i32>>,
    address: u64,
}

impl StepMemory {
    pub(crate) fn upload(stream: &Arc<CudaStream>, words: &[i32]) -> Result<StepMemory, DriverError> {
        let mut words = stream.clone_htod(words)?;
        let address = words.device_ptr_mut(stream).0;
        Ok(StepMemory { words: Mutex::new(words), address })
    }

    /// The address of the block, which never changes.
    pub(crate) const fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, CudaSlice<i32>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
