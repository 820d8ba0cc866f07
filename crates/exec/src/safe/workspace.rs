//! Scratch memory of launches, owned, and shared by as many bound plans as take turns with it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut, DriverError};

/// Why there is no workspace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bytes} bytes of workspace could not be allocated on GPU {ordinal}: {detail}; free memory, or compile with a workspace limit"
)]
pub struct WorkspaceError {
    /// What was asked for.
    pub bytes: u64,
    /// On which GPU.
    pub ordinal: usize,
    /// What the driver answered.
    pub detail: String,
}

/// Scratch memory on a GPU.
///
/// Bound plans that share one are ordered by cudarc's events when they run on several streams, so share among what runs one after the other
/// anyway: the layers of a model on one stream.
pub struct Workspace {
    memory: Mutex<CudaSlice<u8>>,
    address: u64,
    bytes: u64,
}

impl Workspace {
    /// Allocates scratch memory of the stream's GPU. Its contents are undefined, as cuDNN expects of a workspace.
    ///
    /// # Errors
    ///
    /// [`WorkspaceError`].
    pub fn allocate(stream: &Arc<CudaStream>, bytes: u64) -> Result<Arc<Workspace>, WorkspaceError> {
        let ordinal = stream.context().ordinal();
        let refused = |error: DriverError| WorkspaceError { bytes, ordinal, detail: error.to_string() };
        let length = usize::try_from(bytes).map_err(|_| WorkspaceError {
            bytes,
            ordinal,
            detail: "more than can be addressed".to_owned(),
        })?;
        // SAFETY: bytes have no invalid values, and only the GPU reads them, after it wrote them.
        let mut memory = unsafe { stream.alloc::<u8>(length) }.map_err(refused)?;
        // The guard records an event when it is dropped: other streams then wait for the allocation itself.
        let address = memory.device_ptr_mut(stream).0;
        Ok(Arc::new(Workspace { memory: Mutex::new(memory), address, bytes }))
    }

    /// Scratch memory that holds numbers which are none: every byte is 0xFF, a NaN in all floating-point types. For tests: a kernel
    /// that reads scratch memory before it has written it then shows NaN, where fresh memory often holds zeros.
    ///
    /// # Errors
    ///
    /// [`WorkspaceError`].
    pub fn poisoned(stream: &Arc<CudaStream>, bytes: u64) -> Result<Arc<Workspace>, WorkspaceError> {
        let workspace = Workspace::allocate(stream, bytes)?;
        let mut memory = workspace.lock();
        let length = memory.len();
        let filled = {
            let (address, _ordered) = memory.device_ptr_mut(stream);
            // SAFETY: the slice is locked and `length` bytes long; the guard orders the write before every later use.
            unsafe { cudarc::driver::result::memset_d8_async(address, 0xff, length, stream.cu_stream()) }
        };
        let refused = |error: DriverError| WorkspaceError {
            bytes,
            ordinal: stream.context().ordinal(),
            detail: error.to_string(),
        };
        filled.map_err(refused)?;
        drop(memory);
        Ok(workspace)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its address on the GPU.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, CudaSlice<u8>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Workspace({} bytes at {:#x})", self.bytes, self.address)
    }
}
