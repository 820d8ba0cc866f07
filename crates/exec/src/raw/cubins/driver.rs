//! The driver's functions for cubins, tensor maps and launches, found at run time.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};
use std::sync::OnceLock;

use crate::driver::open;
use crate::raw::constants::{free, upload};
use crate::raw::cubins::filled::{FilledMap, NO_PAGE};
use crate::raw::launch::DeviceBuffer;
use crate::raw::primary::checked;

pub(super) type Any = *mut c_void;

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
pub(super) const SHARED: c_int = 8;

/// `CUlaunchConfig` of CUDA 12 and 13.
#[repr(C)]
pub(super) struct LaunchConfig {
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared: c_uint,
    pub(super) stream: Any,
    pub(super) attributes: *const Attribute,
    pub(super) count: c_uint,
}

/// `CUlaunchAttribute`: a number and a union of 64 bytes, eight bytes apart.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(super) struct Attribute {
    id: c_int,
    pad: c_int,
    value: [c_uint; 16],
}

impl Attribute {
    /// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
    pub(super) fn cluster([x, y, z]: [u32; 3]) -> Attribute {
        let mut value = [0; 16];
        (value[0], value[1], value[2]) = (x, y, z);
        Attribute { id: 4, pad: 0, value }
    }

    /// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
    pub(super) fn overlap() -> Attribute {
        let mut value = [0; 16];
        value[0] = 1;
        Attribute { id: 6, pad: 0, value }
    }
}

pub(super) type Encode = unsafe extern "C" fn(
    *mut u8,
    c_int,
    c_uint,
    u64,
    *const u64,
    *const u64,
    *const c_uint,
    *const c_uint,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

/// The functions that this room calls, as `cuda.h` of CUDA 12.4 and later declares them.
#[derive(Debug)]
pub(super) struct DriverFunctions {
    pub(super) load: unsafe extern "C" fn(*mut Any, *const c_void) -> c_int,
    pub(super) unload: unsafe extern "C" fn(Any) -> c_int,
    pub(super) get: unsafe extern "C" fn(*mut Any, Any, *const c_char) -> c_int,
    pub(super) param: unsafe extern "C" fn(Any, usize, *mut usize, *mut usize) -> c_int,
    pub(super) set_attribute: unsafe extern "C" fn(Any, c_int, c_int) -> c_int,
    pub(super) load_function: unsafe extern "C" fn(Any) -> c_int,
    pub(super) launch: unsafe extern "C" fn(*const LaunchConfig, Any, *mut Any, *mut Any) -> c_int,
    pub(super) set: unsafe extern "C" fn(u64, c_uchar, usize, Any) -> c_int,
    pub(super) encode: Encode,
    /// Brings bytes to memory of the GPU, and gives that memory back.
    pub(super) upload: fn(&[u8]) -> Result<DeviceBuffer, String>,
    pub(super) free: fn(DeviceBuffer) -> Result<(), String>,
}

impl DriverFunctions {
    /// Writes the tensor map of an operand: `at` has 128 bytes, at a multiple of 64.
    pub(super) fn encode(&self, map: &FilledMap, operand: DeviceBuffer, at: *mut u8) -> Result<(), String> {
        let dims = map.dims_over(operand).ok_or(NO_PAGE)?;
        let FilledMap { dtype, rank, strides, tile, swizzle, promotion, .. } = map;
        let ones = [1; 5];
        // SAFETY: `at` has room and alignment for a tensor map; the lists have at least as many numbers as the driver
        // reads. It does not follow the address.
        let status = unsafe {
            (self.encode)(
                at,
                *dtype,
                *rank,
                operand.address,
                dims.as_ptr(),
                strides.as_ptr(),
                tile.as_ptr(),
                ones.as_ptr(),
                NO_INTERLEAVE,
                *swizzle,
                *promotion,
                ZEROS_OUTSIDE,
            )
        };
        checked("make a tensor map", status)
    }
}

/// `CU_TENSOR_MAP_INTERLEAVE_NONE`.
const NO_INTERLEAVE: c_int = 0;
/// `CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE`: what a box reads outside of the tensor is 0.
const ZEROS_OUTSIDE: c_int = 0;

/// The functions of the driver, if it has all.
pub(super) fn functions() -> Option<&'static DriverFunctions> {
    static FUNCTIONS: OnceLock<Option<DriverFunctions>> = OnceLock::new();
    let find = || {
        let driver = open().ok()?;
        macro_rules! get {
            ($name:literal) => {
                // SAFETY: every driver since CUDA 12.4 has this function with this signature.
                unsafe { *driver.get($name).ok()? }
            };
        }
        Some(DriverFunctions {
            load: get!("cuModuleLoadData"),
            unload: get!("cuModuleUnload"),
            get: get!("cuModuleGetFunction"),
            param: get!("cuFuncGetParamInfo"),
            set_attribute: get!("cuFuncSetAttribute"),
            load_function: get!("cuFuncLoad"),
            launch: get!("cuLaunchKernelEx"),
            set: get!("cuMemsetD8Async"),
            encode: get!("cuTensorMapEncodeTiled"),
            upload,
            free,
        })
    };
    FUNCTIONS.get_or_init(find).as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{align_of, offset_of, size_of};

    /// From `cuda.h` of CUDA 13.0, by a C compiler on x86-64.
    #[test]
    fn structs_have_the_drivers_layout() {
        assert_eq!(
            (size_of::<LaunchConfig>(), offset_of!(LaunchConfig, stream), offset_of!(LaunchConfig, count)),
            (56, 32, 48)
        );
        assert_eq!((size_of::<Attribute>(), align_of::<Attribute>(), offset_of!(Attribute, value)), (72, 8, 8));
        let Attribute { id, pad: _, value } = Attribute::cluster([2, 3, 4]);
        assert_eq!((id, &value[..4]), (4, &[2, 3, 4, 0][..]));
        assert_eq!((Attribute::overlap().id, Attribute::overlap().value[0]), (6, 1));
    }
}
