//! The GPU of a context, as the driver tells it: what plans of kernels need to know, without any cuDNN.

use std::ffi::c_int;

use crate::driver::open;
use crate::raw::primary::checked;

type GetDevice = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const CAPABILITY: [c_int; 2] = [75, 76];

/// A GPU, as far as plans of kernels depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// CUDA's ordinal of the GPU in this process.
    pub ordinal: i32,
    /// Compute capability, major * 10 + minor.
    pub sm: u32,
    /// CUDA version of the driver, major * 1000 + minor * 10.
    pub driver: i64,
}

impl Gpu {
    /// The GPU of the context that is current on this thread.
    pub(crate) fn current() -> Result<Gpu, String> {
        let driver = open().map_err(|error| error.to_string())?;
        let lacks = |error: libloading::Error| format!("the driver lacks a function: {error}");
        // SAFETY: every driver since CUDA 5 has these functions with these signatures.
        let (device, attribute, version) = unsafe {
            (
                *driver.get::<GetDevice>("cuCtxGetDevice").map_err(lacks)?,
                *driver.get::<GetAttribute>("cuDeviceGetAttribute").map_err(lacks)?,
                *driver.get::<GetVersion>("cuDriverGetVersion").map_err(lacks)?,
            )
        };
        let (mut ordinal, mut capability, mut cuda) = (0, [0; 2], 0);
        // SAFETY: the number is writable.
        checked("tell the GPU of the context", unsafe { device(&raw mut ordinal) })?;
        for (number, which) in capability.iter_mut().zip(CAPABILITY) {
            // SAFETY: the number is writable, and the device is the one of the context.
            checked("tell the GPU's compute capability", unsafe { attribute(number, which, ordinal) })?;
        }
        // SAFETY: the number is writable.
        checked("tell its version", unsafe { version(&raw mut cuda) })?;
        let [major, minor] = capability.map(c_int::unsigned_abs);
        Ok(Gpu { ordinal, sm: major * 10 + minor, driver: i64::from(cuda) })
    }
}
