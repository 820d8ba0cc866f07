//! Workspaces: scratch memory of launches, which bound plans can share.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut, DriverError};

use crate::driver::words::of_cudarc;
use crate::raw::DeviceBuffer;
use crate::safe::order::Uses;

/// Why a workspace could not be allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bytes} bytes of workspace could not be allocated on GPU {ordinal}: {detail}; free memory, or compile with a \
     workspace limit"
)]
pub struct WorkspaceError {
    /// The size in bytes.
    pub bytes: u64,
    /// Ordinal of the GPU.
    pub ordinal: usize,
    /// The error of the driver.
    pub detail: String,
}

/// Scratch memory on a GPU.
///
/// Launches that share a workspace run one after the other, also on several streams. So share it among plans that do so
/// anyway, such as the layers of a model on one stream.
pub struct Workspace {
    memory: Mutex<WorkspaceMemory>,
    address: u64,
    bytes: u64,
    context: Arc<CudaContext>,
}

pub(crate) struct WorkspaceMemory {
    bytes: CudaSlice<u8>,
    pub(crate) uses: Uses,
}

impl Drop for WorkspaceMemory {
    fn drop(&mut self) {
        // The memory is freed on the stream that allocated it, after every launch that uses it.
        let home = Arc::clone(self.bytes.stream());
        home.context().record_err(self.uses.write(&home));
    }
}

impl Workspace {
    /// Allocates a workspace on the stream's GPU. Its contents are undefined, which cuDNN allows.
    ///
    /// # Errors
    ///
    /// [`WorkspaceError`] without memory.
    pub fn allocate(stream: &Arc<CudaStream>, bytes: u64) -> Result<Arc<Workspace>, WorkspaceError> {
        let ordinal = stream.context().ordinal();
        let refused = |error: DriverError| WorkspaceError { bytes, ordinal, detail: of_cudarc(&error) };
        let length = usize::try_from(bytes).map_err(|_| WorkspaceError {
            bytes,
            ordinal,
            detail: "more than can be addressed".to_owned(),
        })?;
        // SAFETY: every bit pattern is a byte, and only the GPU reads them, after it wrote them.
        let mut memory = unsafe { stream.alloc::<u8>(length) }.map_err(refused)?;
        // Dropping the guard records an event, so that other streams wait for the allocation.
        let address = memory.device_ptr_mut(stream).0;
        let memory = WorkspaceMemory { bytes: memory, uses: Uses::written(stream) };
        let context = Arc::clone(stream.context());
        Ok(Arc::new(Workspace { memory: Mutex::new(memory), address, bytes, context }))
    }

    /// Allocates a workspace in which every byte is 0xFF, a NaN in all floating-point types. For tests: a kernel that
    /// reads scratch memory before it writes it then returns NaN, where new memory often holds zeros.
    ///
    /// # Errors
    ///
    /// [`WorkspaceError`] without memory.
    pub fn poisoned(stream: &Arc<CudaStream>, bytes: u64) -> Result<Arc<Workspace>, WorkspaceError> {
        let workspace = Workspace::allocate(stream, bytes)?;
        let mut memory = workspace.lock();
        let length = memory.bytes.len();
        let filled = {
            let (address, _ordered) = memory.bytes.device_ptr_mut(stream);
            // SAFETY: the slice is locked and `length` bytes long; the guard orders the write before every later use.
            unsafe { cudarc::driver::result::memset_d8_async(address, 0xff, length, stream.cu_stream()) }
        };
        let refused = |error: DriverError| WorkspaceError {
            bytes,
            ordinal: stream.context().ordinal(),
            detail: of_cudarc(&error),
        };
        filled.map_err(refused)?;
        drop(memory);
        Ok(workspace)
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address on the GPU.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, WorkspaceMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Workspace {
    pub(crate) fn buffer(&self) -> DeviceBuffer {
        DeviceBuffer { address: self.address(), bytes: self.bytes() }
    }

    pub(crate) const fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Workspace({} bytes at {:#x})", self.bytes, self.address)
    }
}
