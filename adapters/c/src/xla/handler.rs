//! What is around every handler: the answer to XLA's question what it is, and errors in place of panics.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::abi;
use super::frame::Frame;
use crate::status::{
    CallFailure, QKV_ERROR_ARGUMENT, QKV_ERROR_INTERNAL, QKV_ERROR_LAUNCH, QKV_ERROR_MEMORY, QKV_ERROR_MISSING,
    QKV_ERROR_PARSE, QKV_ERROR_REFUSED, c_string, caught,
};

/// Runs a handler's body for a call of XLA. Each call launches the same operations, which may be captured.
///
/// # Safety
///
/// `frame` must be null or a frame of XLA.
pub(super) unsafe fn handle(
    frame: *mut abi::CallFrame,
    body: impl FnOnce(Frame<'_>) -> Result<(), CallFailure>,
) -> *mut abi::XlaError {
    // SAFETY: the caller's promise.
    unsafe { handle_with(frame, abi::COMMAND_BUFFER_COMPATIBLE, body) }
}

/// As [`handle`], for a handler with other traits.
///
/// # Safety
///
/// As for [`handle`].
pub(super) unsafe fn handle_with(
    frame: *mut abi::CallFrame,
    traits: u32,
    body: impl FnOnce(Frame<'_>) -> Result<(), CallFailure>,
) -> *mut abi::XlaError {
    // SAFETY: the caller's promise.
    let Some(frame) = (unsafe { frame.as_ref() }) else { return std::ptr::null_mut() };
    // SAFETY: null or an extension.
    if unsafe { frame.extension.as_ref() }.is_some_and(|extension| extension.kind == abi::METADATA) {
        // SAFETY: the kind says what it is.
        unsafe { describe(frame, traits) };
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    let given = unsafe { Frame::new(frame) };
    let outcome = catch_unwind(AssertUnwindSafe(|| body(given))).unwrap_or_else(|panic| Err(caught(&*panic)));
    match outcome {
        Ok(()) => std::ptr::null_mut(),
        Err(failure) => error(frame, &failure),
    }
}

/// Answers the call with which XLA asks what a handler is.
///
/// # Safety
///
/// The frame's extension must be one of metadata.
unsafe fn describe(frame: &abi::CallFrame, traits: u32) {
    // SAFETY: the caller's promise.
    let metadata = unsafe { (*frame.extension.cast::<abi::MetadataExtension>()).metadata };
    let (extension, (major, minor)) = (std::ptr::null_mut(), abi::VERSION);
    let struct_size = size_of::<abi::ApiVersion>();
    // SAFETY: XLA gives a place. The last field exists since version 0.2, of which the call has functions.
    unsafe {
        (*metadata).api_version = abi::ApiVersion { struct_size, extension, major, minor };
        (*metadata).traits = traits;
        if frame.api.as_ref().is_some_and(|api| api.version.minor >= 2) {
            (*metadata).state_type = 0;
        }
    }
}

/// The code of absl for a failure.
fn code(status: i32) -> c_int {
    match status {
        QKV_ERROR_ARGUMENT | QKV_ERROR_PARSE | QKV_ERROR_REFUSED => 3,
        QKV_ERROR_MISSING => 5,
        QKV_ERROR_MEMORY => 8,
        QKV_ERROR_INTERNAL | QKV_ERROR_LAUNCH => 13,
        _ => 9,
    }
}

fn error(frame: &abi::CallFrame, failure: &CallFailure) -> *mut abi::XlaError {
    let message = c_string(failure.message());
    let (struct_size, extension) = (size_of::<abi::ErrorCreate>() - abi::TAIL, std::ptr::null_mut());
    let code = code(failure.status());
    let mut given = abi::ErrorCreate { struct_size, extension, message: message.as_ptr(), code };
    // SAFETY: null, or XLA's functions.
    let create = unsafe { frame.api.as_ref() }.and_then(|api| api.error_create);
    // Only a call that asks what a handler is comes without functions.
    let create = create.unwrap_or_else(|| std::process::abort());
    // SAFETY: XLA's function, which copies the message.
    unsafe { create(&raw mut given) }
}
