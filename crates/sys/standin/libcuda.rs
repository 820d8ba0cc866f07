//! The stand-in: a `libcuda.so.1` for cuDNN to compile against on a machine without a driver.
//!
//! After it compiles a kernel, cuDNN loads it once to inspect it. Those functions succeed here and do nothing. All
//! other functions return `CUDA_ERROR_NO_DEVICE`. Parameters that a function does not use are not declared, which the C
//! calling conventions of cuDNN's targets allow.

#![no_std]
#![allow(non_snake_case)]

use core::ffi::{c_char, c_int, c_void};

const SUCCESS: c_int = 0;
const NO_DEVICE: c_int = 100;

/// Marks this library as the stand-in; the value is the version of the stand-in.
#[unsafe(no_mangle)]
pub extern "C" fn qkvault_headless_standin() -> c_int {
    1
}

/// The target of every handle of a module, library, kernel or function: a non-null address with no content.
static NOTHING: [u64; 64] = [0; 64];

/// Functions that return a handle.
macro_rules! gives_handle {
    ($($name:ident)+) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(handle: *mut *const c_void) -> c_int {
            if !handle.is_null() {
                // SAFETY: in the driver API the first argument points to writable memory for a handle.
                unsafe { handle.write((&raw const NOTHING).cast()) };
            }
            SUCCESS
        }
    )+};
}

/// Functions that return a number.
macro_rules! gives_zero {
    ($($name:ident $answer:ident)+) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(number: *mut c_int) -> c_int {
            if !number.is_null() {
                // SAFETY: in the driver API the first argument points to writable memory for an int.
                unsafe { number.write(0) };
            }
            $answer
        }
    )+};
}

/// Functions that return nothing but success.
macro_rules! succeeds {
    ($($name:ident)+) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            SUCCESS
        }
    )+};
}

/// Functions that need a device.
macro_rules! needs_device {
    ($($name:ident)+) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            NO_DEVICE
        }
    )+};
}

gives_handle! {
    cuLibraryLoadData cuLibraryGetKernel
    cuModuleLoadData cuModuleLoadDataEx cuModuleGetFunction
}

gives_zero! {
    cuKernelGetAttribute SUCCESS
    cuFuncGetAttribute SUCCESS
    cuDriverGetVersion NO_DEVICE
    cuDeviceGetCount NO_DEVICE
}

succeeds! {
    cuLibraryUnload cuModuleUnload
    cuKernelSetAttribute cuFuncSetAttribute
}

needs_device! {
    cuInit cuDeviceGet cuDeviceGetAttribute
    cuCtxGetCurrent cuCtxGetDevice cuCtxGetLimit cuCtxPushCurrent cuCtxPushCurrent_v2 cuCtxPopCurrent cuCtxPopCurrent_v2
    cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
    cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2
    cuStreamGetCtx cuStreamSynchronize cuMemcpyDtoH_v2
    cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel
    cuLinkCreate cuLinkCreate_v2 cuLinkAddData cuLinkAddData_v2 cuLinkAddFile_v2 cuLinkComplete cuLinkDestroy
    cuLibraryLoadFromFile cuLibraryGetModule cuLibraryGetGlobal cuLibraryGetManaged cuLibraryGetUnifiedFunction
    cuLibraryGetKernelCount cuLibraryEnumerateKernels
    cuKernelGetFunction cuKernelGetLibrary cuKernelGetName cuKernelSetCacheConfig cuKernelGetParamInfo
    cuModuleLoad cuModuleLoadFatBinary cuModuleGetGlobal_v2 cuModuleGetLoadingMode cuModuleGetFunctionCount cuModuleEnumerateFunctions
    cuFuncGetModule cuFuncGetName cuFuncGetParamInfo cuFuncIsLoaded cuFuncLoad cuFuncSetCacheConfig
    cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxPotentialClusterSize
    cuTensorMapEncodeTiled cuTensorMapEncodeIm2col
}

/// Functions that describe an error.
macro_rules! gives_text {
    ($($name:ident $text:literal)+) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(_error: c_int, text: *mut *const c_char) -> c_int {
            if !text.is_null() {
                // SAFETY: in the driver API the second argument points to writable memory for a pointer to a static
                // string.
                unsafe { text.write($text.as_ptr()) };
            }
            SUCCESS
        }
    )+};
}

gives_text! {
    cuGetErrorName c"CUDA_ERROR_NO_DEVICE"
    cuGetErrorString c"no driver: a stand-in for libcuda.so.1 is loaded, which can only be compiled with"
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing in this file can panic, but `no_std` requires a panic handler.
    loop {}
}
