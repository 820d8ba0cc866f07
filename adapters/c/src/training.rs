//! Training: a forward that saves what its backward needs, and that backward, from one description.

use std::ffi::c_void;

use qkvault::exec::Training;

use crate::context::{put_handle, qkv_context};
use crate::describe::{DescriptionContent, backward_options, qkv_attention};
use crate::handle::borrow;
use crate::plan::{Planned, qkv_plan};
use crate::sized::place;
use crate::status::guarded_with_memory;

/// The descriptions of a training step: a forward that writes `stats`, and its backward. Give the forward as for
/// inference. The arguments are those of `qkv_attention_backward`; free both descriptions.
///
/// The backward reads `o` and `stats` of the forward, and needs the same scalars, seed and offset of dropout: with
/// others its gradients are wrong, and nothing shows it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_training(
    attention: *const qkv_attention,
    deterministic: i32,
    d_sink: i32,
    forward: *mut *mut qkv_attention,
    backward: *mut *mut qkv_attention,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises a description.
        let attention = unsafe { borrow(attention) }?;
        let both = Training::for_attention(attention.valid.get(), backward_options(deterministic, d_sink))?;
        place(backward, "the backward")?;
        // SAFETY: the caller's places.
        unsafe {
            put_handle(forward, DescriptionContent::new(both.forward().clone()))?;
            put_handle(backward, DescriptionContent::new(both.backward().clone()))
        }
    })
}

/// Both plans of a training step on a GPU, each as `qkv_prepare` gives it. Free both.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_prepare_training(
    context: *const qkv_context,
    attention: *const qkv_attention,
    deterministic: i32,
    d_sink: i32,
    device: i32,
    stream: *mut c_void,
    forward: *mut *mut qkv_plan,
    backward: *mut *mut qkv_plan,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises handles of these kinds.
        let (context, attention) = unsafe { (borrow(context)?, borrow(attention)?) };
        let both = Training::for_attention(attention.valid.get(), backward_options(deterministic, d_sink))?;
        // SAFETY: the caller promises that the stream is null or a stream of this GPU.
        let (first, second) = unsafe { context.runtime.prepare_training(&both, device, stream) }?;
        let (first, second) = (Planned::ready(first, device)?, Planned::ready(second, device)?);
        place(backward, "the backward")?;
        // SAFETY: the caller's places.
        unsafe {
            put_handle(forward, first)?;
            put_handle(backward, second)
        }
    })
}
