//! The door to PyTorch: operators `qkvault::forward` and `qkvault::backward` through LibTorch's stable C interface.
//!
//! Nothing is linked: `shim` finds PyTorch's functions in the process. `spec` completes a description from tensors,
//! `call` keeps what a kernel does for tensors of one kind, `kernel` is the kernels, `oracle` those on the CPU. Fake
//! kernels, gradients and the rule of vmap are in Python (`adapters/python/qkvault/torch`).

mod call;
pub mod context;
mod kernel;
mod oracle;
mod shim;
mod spec;
mod value;

use std::ffi::CStr;
use std::sync::Mutex;
use std::sync::PoisonError;

use crate::status::{Failure, guarded};
use shim::{BUILT_FOR, Handle, Kernel, done, shim};

const SCHEMAS: [&CStr; 3] = [
    c"forward(Tensor q, Tensor k, Tensor v, Tensor[] extra, str spec, float[] numbers) -> (Tensor o, Tensor stats)",
    c"forward_only(Tensor q, Tensor k, Tensor v, Tensor[] extra, str spec, float[] numbers) -> (Tensor o, Tensor stats)",
    c"backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor stats, Tensor[] extra, str spec, \
      float[] numbers) -> (Tensor d_q, Tensor d_k, Tensor d_v, Tensor[] d_extra)",
];

/// Registers the operators with the PyTorch of this process, once. Import torch before.
#[unsafe(no_mangle)]
pub extern "C" fn qkv_torch_register() -> i32 {
    static DONE: Mutex<bool> = Mutex::new(false);
    guarded(|| {
        let mut registered = DONE.lock().unwrap_or_else(PoisonError::into_inner);
        if !*registered {
            register()?;
            *registered = true;
        }
        Ok(())
    })
}

fn register() -> Result<(), Failure> {
    let shim = shim()?;
    let (space, file) = (c"qkvault".as_ptr(), c"libqkvault.so".as_ptr());
    let mut library: Handle = std::ptr::null_mut();
    // SAFETY: texts that end with a null character, and a place. The handles stay for as long as the process.
    unsafe {
        done((shim.fragment)(space, file, 0, &raw mut library), c"aoti_torch_library_init_fragment")?;
        for schema in SCHEMAS {
            done((shim.define)(library, schema.as_ptr()), c"aoti_torch_library_def")?;
        }
        for key in [c"CPU", c"CUDA"] {
            done((shim.kernels)(space, key.as_ptr(), file, 0, &raw mut library), c"aoti_torch_library_init_impl")?;
            let kernels: [(&CStr, Kernel); 3] =
                [(c"forward", kernel::forward), (c"forward_only", kernel::forward), (c"backward", kernel::backward)];
            for (name, kernel) in kernels {
                done((shim.implement)(library, name.as_ptr(), kernel, BUILT_FOR), c"torch_library_impl")?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
