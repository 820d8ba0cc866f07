//! What a thread may do while streams are captured.
//!
//! Loading and unloading a plan, and creating a handle, allocate memory and load modules. While a stream is captured in
//! CUDA's global mode, which is the usual one, the driver refuses that on every thread and makes the capture invalid.
//! These calls do not belong to any capture, so the thread says so: in relaxed mode the driver lets them pass, and
//! captures stay valid. PyTorch's allocator does the same.

use std::ffi::c_int;
use std::marker::PhantomData;

use crate::raw::primary::exchange_capture_mode;

/// `CU_STREAM_CAPTURE_MODE_RELAXED` of the driver API.
pub(crate) const RELAXED: c_int = 2;

/// The relaxed mode of this thread, until the value is dropped.
pub(crate) struct RelaxedCaptures {
    former: Option<c_int>,
    /// The mode is that of one thread, so the value stays there.
    _thread: PhantomData<*const ()>,
}

impl RelaxedCaptures {
    /// Enters the mode. Without a driver there is none.
    pub(crate) fn enter() -> RelaxedCaptures {
        RelaxedCaptures { former: exchange_capture_mode(RELAXED), _thread: PhantomData }
    }
}

impl Drop for RelaxedCaptures {
    fn drop(&mut self) {
        if let Some(former) = self.former {
            exchange_capture_mode(former);
        }
    }
}
