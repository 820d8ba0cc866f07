//! What can run where, and why not.

use std::ffi::c_char;

use qkvault_base::{in_quotes, on_lines};

use crate::context::qkv_context;
use crate::describe::qkv_attention;
use crate::handle::borrow;
use crate::status::{CallFailure, guarded_with_memory};
use crate::text::{give_text, name, optional};

/// Asks the rules whether a GPU and a cuDNN support an attention. It takes microseconds and needs neither.
///
/// `gpu` is a name such as `h200` or `b200`, or the text of a profile (`qkvault profile capture`). `cudnn` is a version
/// such as `9.19.0`; null: the newest that the rules cover. `json` gets an object, to be freed with `qkv_string_free`:
///
///     { "what", "key", "target", "cudnn",          texts
///       "supported": whether some engine takes it,
///       "reasons":   every reason why cuDNN does not, or the one engine that the context allows:
///                    [ { "code", "origin", "field", "given", "needed", "fix", "since" } ],
///       "engine":    whose plan is looked for first: { "engine", "why", "passed": [ { "engine", "why" } ] }, or null,
///       "allowed":   quirks that apply and were allowed, likewise,
///       "nearest":   single changes with which it is supported: [ { "change", "attention", "cudnn" } ],
///       "memory":    { "operands", "scratch", "quadratic" } in bytes, or null }
///
/// An attention that is not supported is an answer and no error. `text`, unless it is null, gets the same for people.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_explain(
    context: *const qkv_context,
    attention: *const qkv_attention,
    gpu: *const c_char,
    cudnn: *const c_char,
    json: *mut *mut c_char,
    text: *mut *mut c_char,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises handles of these kinds, and strings that are null or valid.
        let (context, attention, gpu, cudnn) =
            unsafe { (borrow(context)?, borrow(attention)?, name(gpu, "gpu")?, optional(cudnn, "cudnn")?) };
        let cudnn = cudnn.map(str::parse).transpose()?;
        let target = context.runtime.rules_target(gpu, cudnn)?;
        let answer = context.runtime.explain(&attention.valid, &target);
        if json.is_null() && text.is_null() {
            return Err(CallFailure::argument("json and text are both null; give a place for one of them"));
        }
        // SAFETY: the caller's places.
        unsafe {
            if !json.is_null() {
                give_text(json, in_quotes(&serde_json::to_string(&answer)?).into_owned())?;
            }
            if text.is_null() { Ok(()) } else { give_text(text, on_lines(&answer.to_string()).into_owned()) }
        }
    })
}
