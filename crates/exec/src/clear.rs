//! Clearing buffers on a stream with the driver, because the raw layer has no cudarc.

use std::ffi::{c_int, c_uchar, c_void};
use std::sync::OnceLock;

use crate::driver;

type MemsetD8Async = unsafe extern "C" fn(u64, c_uchar, usize, *mut c_void) -> c_int;

/// Queues a write of zeros to `bytes` bytes from `address` on.
///
/// # Safety
///
/// The memory must be of the GPU whose context is current, the stream of that context, and nothing else may use the
/// memory meanwhile.
///
/// # Errors
///
/// The status of the driver.
pub(crate) unsafe fn clear(address: u64, bytes: u64, stream: *mut c_void) -> Result<(), String> {
    static FUNCTION: OnceLock<Option<MemsetD8Async>> = OnceLock::new();
    let function = FUNCTION.get_or_init(|| {
        let library = driver::open().ok()?;
        // SAFETY: every driver of CUDA 4 or later has this function with this signature.
        unsafe { library.get::<MemsetD8Async>("cuMemsetD8Async") }.ok().map(|f| *f)
    });
    let function = function.ok_or("the driver has no cuMemsetD8Async")?;
    let length = usize::try_from(bytes).map_err(|_| format!("{bytes} bytes are more than can be addressed"))?;
    // SAFETY: the caller's promise.
    match unsafe { function(address, 0, length, stream) } {
        0 => Ok(()),
        status => Err(format!("the driver answered {status}")),
    }
}
