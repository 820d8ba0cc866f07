//! LibTorch's stable C interface, as far as it is used: declarations by hand, found in the library that the process
//! has loaded. Every function is in PyTorch 2.10 and later.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::status::{CallFailure, QKV_ERROR_LIBRARY};

/// A value on the stack of a kernel: the bits of a number, or an owned handle.
pub(super) type StackValue = u64;
/// A kernel: its arguments are on the stack, which gets its results.
pub(super) type BoxedKernel = unsafe extern "C-unwind" fn(*mut StackValue, u64, u64);
/// A tensor, a list, a text or a library of operators.
pub(super) type TorchHandle = *mut c_void;

/// The version of the interface that kernels are written for: 2.10.
pub(super) const BUILT_FOR: u64 = 2 << 56 | 10 << 48;

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident: $name:literal ($($kind:ty),* $(,)?) $(-> $result:ty)?;)+) => {
        /// The functions.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Shim {
            $($(#[$doc])* pub(super) $field: unsafe extern "C-unwind" fn($($kind),*) $(-> $result)?,)+
        }

        /// The names of the functions.
        #[cfg(test)]
        pub(super) const NAMES: &[&str] = &[$($name),+];

        impl Shim {
            fn load(library: &Library) -> Result<Shim, libloading::Error> {
                Ok(Shim {
                    $($field: {
                        // SAFETY: the header of PyTorch 2.10 declares it like this, and later versions keep it.
                        *unsafe { library.get::<unsafe extern "C-unwind" fn($($kind),*) $(-> $result)?>($name) }?
                    },)+
                })
            }
        }
    };
}

functions! {
    /// A part of a library of operators: name, file, line, place for the handle.
    fragment: "aoti_torch_library_init_fragment" (*const c_char, *const c_char, u32, *mut TorchHandle) -> i32;
    /// A library of kernels for one dispatch key.
    kernels: "aoti_torch_library_init_impl" (*const c_char, *const c_char, *const c_char, u32, *mut TorchHandle) -> i32;
    /// Defines an operator by its schema.
    define: "aoti_torch_library_def" (TorchHandle, *const c_char) -> i32;
    /// Gives an operator its kernel.
    implement: "torch_library_impl" (TorchHandle, *const c_char, BoxedKernel, u64) -> i32;
    /// The dims of a tensor.
    dim: "aoti_torch_get_dim" (TorchHandle, *mut i64) -> i32;
    /// Its extents, borrowed.
    sizes: "aoti_torch_get_sizes" (TorchHandle, *mut *const i64) -> i32;
    /// Its strides, borrowed.
    strides: "aoti_torch_get_strides" (TorchHandle, *mut *const i64) -> i32;
    /// Its element type.
    dtype: "aoti_torch_get_dtype" (TorchHandle, *mut i32) -> i32;
    /// The kind of its device.
    device_type: "aoti_torch_get_device_type" (TorchHandle, *mut i32) -> i32;
    /// The number of its device.
    device_index: "aoti_torch_get_device_index" (TorchHandle, *mut i32) -> i32;
    /// The address of its first element.
    data: "aoti_torch_get_data_ptr" (TorchHandle, *mut *mut c_void) -> i32;
    /// A new tensor: dims, extents, strides, element type, device, place for the handle.
    empty: "aoti_torch_empty_strided" (i64, *const i64, *const i64, i32, i32, i32, *mut TorchHandle) -> i32;
    /// A tensor without anything, which operators give where they have no result.
    nothing: "aoti_torch_new_uninitialized_tensor" (*mut TorchHandle) -> i32;
    /// Copies values between tensors of equal extents: to, from, whether the host need not wait.
    copy: "aoti_torch_copy_" (TorchHandle, TorchHandle, i32) -> i32;
    /// Whether derivatives are recorded in this thread.
    recording: "aoti_torch_grad_mode_is_enabled" () -> bool;
    /// Calls an operator: name, overload, stack, version of the interface.
    call: "torch_call_dispatcher" (*const c_char, *const c_char, *mut StackValue, u64) -> i32;
    /// A new text: bytes, how many, place for the handle.
    text: "torch_new_string_handle" (*const c_char, usize, *mut TorchHandle) -> i32;
    /// Gives a tensor back.
    delete_tensor: "aoti_torch_delete_tensor_object" (TorchHandle) -> i32;
    /// A new list with room.
    list: "torch_new_list_reserve_size" (usize, *mut TorchHandle) -> i32;
    /// The items of a list.
    list_size: "torch_list_size" (TorchHandle, *mut usize) -> i32;
    /// An item of a list.
    list_item: "torch_list_get_item" (TorchHandle, usize, *mut StackValue) -> i32;
    /// Adds an item to a list.
    list_push: "torch_list_push_back" (TorchHandle, StackValue) -> i32;
    /// Frees a list.
    delete_list: "torch_delete_list" (TorchHandle) -> i32;
    /// A text, borrowed.
    string: "torch_string_c_str" (TorchHandle, *mut *const c_char) -> i32;
    /// Frees a text.
    delete_string: "torch_delete_string" (TorchHandle) -> i32;
    /// Throws an error of PyTorch if the first argument is false: function, file, line, message.
    check: "aoti_torch_check" (bool, *const c_char, *const c_char, u32, *const c_char);
    /// Element types.
    half: "aoti_torch_dtype_float16" () -> i32;
    /// bfloat16.
    brain: "aoti_torch_dtype_bfloat16" () -> i32;
    /// float32.
    single: "aoti_torch_dtype_float32" () -> i32;
    /// int32.
    int: "aoti_torch_dtype_int32" () -> i32;
    /// int64.
    long: "aoti_torch_dtype_int64" () -> i32;
    /// uint8.
    byte: "aoti_torch_dtype_uint8" () -> i32;
}

/// The library that the process has loaded under this name. Loads nothing.
fn loaded(name: &str) -> Option<Library> {
    // SAFETY: with RTLD_NOLOAD nothing is loaded and no initialiser runs.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD) }.ok()
}

/// PyTorch's functions.
pub(super) fn shim() -> Result<&'static Shim, CallFailure> {
    static SHIM: OnceLock<Shim> = OnceLock::new();
    if let Some(shim) = SHIM.get() {
        return Ok(shim);
    }
    let absent = || CallFailure::new(QKV_ERROR_LIBRARY, "the process has no libtorch_cpu.so; import torch first");
    let library = loaded("libtorch_cpu.so").ok_or_else(absent)?;
    let old = |error| {
        let text = format!("this PyTorch has not all of the stable interface of 2.10 ({error}); use 2.10 or later");
        CallFailure::new(QKV_ERROR_LIBRARY, text)
    };
    let found = Shim::load(&library).map_err(old)?;
    std::mem::forget(library);
    Ok(SHIM.get_or_init(|| found))
}

type CurrentStream = unsafe extern "C-unwind" fn(i32, *mut *mut c_void) -> i32;

/// The stream that PyTorch uses on a GPU in this thread.
pub(super) fn current_stream(device: i32) -> Result<*mut c_void, CallFailure> {
    static FUNCTION: OnceLock<CurrentStream> = OnceLock::new();
    let function = match FUNCTION.get() {
        Some(function) => *function,
        None => {
            let library = loaded("libtorch_cuda.so");
            let absent = || CallFailure::new(QKV_ERROR_LIBRARY, "this PyTorch is built without CUDA");
            let library = library.ok_or_else(absent)?;
            // SAFETY: the header of PyTorch 2.10 declares it like this, and later versions keep it.
            let found = unsafe { library.get::<CurrentStream>("aoti_torch_get_current_cuda_stream") };
            let found = *found.map_err(|error| CallFailure::new(QKV_ERROR_LIBRARY, error.to_string()))?;
            std::mem::forget(library);
            *FUNCTION.get_or_init(|| found)
        }
    };
    let mut stream = std::ptr::null_mut();
    // SAFETY: a place for the stream.
    done(unsafe { function(device, &raw mut stream) }, c"aoti_torch_get_current_cuda_stream")?;
    Ok(stream)
}

/// Turns a status of PyTorch's into an error.
pub(super) fn done(status: i32, what: &CStr) -> Result<(), CallFailure> {
    if status == 0 {
        return Ok(());
    }
    let what = what.to_string_lossy();
    Err(CallFailure::new(QKV_ERROR_LIBRARY, format!("PyTorch's {what} failed; its words are on the standard error")))
}
