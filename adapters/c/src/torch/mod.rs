//! The door to PyTorch: operators `qkvault::attend`, `forward` (with Stats) and `backward` through LibTorch's stable C
//! interface.
//!
//! Nothing is linked: `shim` finds PyTorch's functions in the process. `spec` completes a description from tensors,
//! `call` has what a kernel does for tensors of one kind, `table` keeps it, `kernel` is the kernels, `oracle` those on
//! the CPU, `native` those of an operator of PyTorch's own, which has a derivative without Python. Fake kernels,
//! gradients and the rule of vmap are in Python (`adapters/python/qkvault/torch`).

mod call;
pub mod context;
mod kernel;
pub mod native;
mod oracle;
mod shim;
mod spec;
mod table;
mod value;

use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

use crate::status::{CallFailure, c_string, guarded};
use shim::{BUILT_FOR, BoxedKernel, TorchHandle, done, shim};

/// The operators: schema less the name, kernel, and names: with the gradient that Python registers, and without.
const OPERATORS: [(&str, BoxedKernel, &[&str]); 4] = [
    (
        "(Tensor q, Tensor k, Tensor v, Tensor[] extra, str spec, float[] numbers) -> Tensor o",
        kernel::attend,
        &["attend"],
    ),
    (
        "(Tensor q, Tensor k, Tensor v, Tensor[] extra, str spec, float[] numbers) -> (Tensor o, Tensor stats)",
        kernel::forward,
        &["forward", "forward_only"],
    ),
    (
        "(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor stats, Tensor[] extra, str spec, float[] numbers) \
         -> (Tensor d_q, Tensor d_k, Tensor d_v, Tensor[] d_extra)",
        kernel::backward,
        &["backward", "backward_only"],
    ),
    (
        "(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor stats, Tensor[] extra, str spec, float[] numbers) \
         -> (Tensor d_q, Tensor d_k, Tensor d_v)",
        kernel::backward_plain,
        &["backward_plain"],
    ),
];

/// The dispatch keys of kernels.
const KEYS: [&CStr; 2] = [c"CPU", c"CUDA"];

/// PyTorch's operators that get kernels here, each with its keys. Those of `Autograd` are in place of PyTorch's rule,
/// which has no words for a second derivative.
const NATIVE: [(&CStr, BoxedKernel, &[&CStr]); 2] = [
    (c"_scaled_dot_product_fused_attention_overrideable", native::forward, &KEYS),
    (
        c"_scaled_dot_product_fused_attention_overrideable_backward",
        native::backward,
        &[c"CPU", c"CUDA", c"AutogradCPU", c"AutogradCUDA"],
    ),
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

fn register() -> Result<(), CallFailure> {
    let shim = shim()?;
    let (space, file) = (c"qkvault".as_ptr(), c"libqkvault.so".as_ptr());
    let kernels = c"aoti_torch_library_init_impl";
    let mut library: TorchHandle = std::ptr::null_mut();
    let operators = || OPERATORS.iter().flat_map(|(rest, kernel, names)| names.iter().map(move |n| (n, rest, *kernel)));
    // SAFETY: texts that end with a null character, and a place. The handles stay for as long as the process.
    unsafe {
        done((shim.fragment)(space, file, 0, &raw mut library), c"aoti_torch_library_init_fragment")?;
        for (name, rest, _) in operators() {
            let schema = c_string(format!("{name}{rest}"));
            done((shim.define)(library, schema.as_ptr()), c"aoti_torch_library_def")?;
        }
        for key in KEYS {
            done((shim.kernels)(space, key.as_ptr(), file, 0, &raw mut library), kernels)?;
            for (name, _, kernel) in operators() {
                let name = c_string(*name);
                done((shim.implement)(library, name.as_ptr(), kernel, BUILT_FOR), c"torch_library_impl")?;
            }
        }
        for (name, kernel, keys) in NATIVE {
            for key in keys {
                done((shim.kernels)(c"aten".as_ptr(), key.as_ptr(), file, 0, &raw mut library), kernels)?;
                done((shim.implement)(library, name.as_ptr(), kernel, BUILT_FOR), c"torch_library_impl")?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
