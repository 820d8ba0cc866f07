//! cuDNN's own messages: forwarded to `tracing`, and collected where the reason of a refusal is wanted.
//!
//! cuDNN says why it refuses mostly here and not in the status. One callback per process is all it has; a callback that was set before
//! (by another user of cuDNN in the process) keeps being called.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;

use crate::bindings::{Cudnn, Severity, Status, cudnnCallback_t, cudnnDebug_t};

/// One message of cuDNN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// How bad cuDNN thinks it is.
    pub severity: Severity,
    /// The status that it goes with; success for messages that go with none.
    pub status: Status,
    /// The text, as cuDNN wrote it, without the white space around it.
    pub text: String,
}

/// What was set before us, to be called on.
struct Previous {
    mask: c_uint,
    data: *mut c_void,
    callback: cudnnCallback_t,
}

// SAFETY: the pointer is another user's, passed back to that user's own callback as cuDNN itself would from any thread.
unsafe impl Send for Previous {}
// SAFETY: as above; it is only read.
unsafe impl Sync for Previous {}

static PREVIOUS: OnceLock<Previous> = OnceLock::new();

thread_local! {
    /// One list per `collect` that runs on this thread, innermost last.
    static COLLECTING: RefCell<Vec<Vec<Message>>> = const { RefCell::new(Vec::new()) };
}

const fn bit(severity: Severity) -> c_uint {
    1 << severity.0
}

/// Runs `f` and returns with its result every message that cuDNN emitted meanwhile on this thread.
///
/// Messages of cuDNN's own worker threads are not among them. Calls may nest; an inner one's messages belong to the outer one too.
pub fn collect<R>(f: impl FnOnce() -> R) -> (R, Vec<Message>) {
    struct Pop;
    impl Drop for Pop {
        // Also when `f` unwinds: a list left behind would collect for ever.
        fn drop(&mut self) {
            let messages = take();
            COLLECTING.with_borrow_mut(|stack| {
                if let Some(outer) = stack.last_mut() {
                    outer.extend(messages);
                }
            });
        }
    }
    fn take() -> Vec<Message> {
        COLLECTING.with_borrow_mut(Vec::pop).unwrap_or_default()
    }

    COLLECTING.with_borrow_mut(|stack| stack.push(Vec::new()));
    let pop = Pop;
    let result = f();
    let messages = COLLECTING.with_borrow(|stack| stack.last().cloned().unwrap_or_default());
    drop(pop);
    (result, messages)
}

/// Sets the callback. Warnings and errors always come; information (every call with every argument, at a cost) only when `tracing` has
/// the target `cudnn` at TRACE as the library is loaded.
pub(crate) fn install(table: &Cudnn) {
    let (Ok(get), Ok(set)) = (&table.cudnnGetCallback, &table.cudnnSetCallback) else {
        return;
    };
    let mut previous = Previous { mask: 0, data: std::ptr::null_mut(), callback: None };
    // SAFETY: three valid places to write to.
    unsafe { get(&mut previous.mask, &mut previous.data, &mut previous.callback) };
    let mut mask = bit(Severity::ERROR) | bit(Severity::WARNING);
    if previous.callback.is_some() {
        mask |= previous.mask;
    }
    if tracing::enabled!(target: "cudnn", tracing::Level::TRACE) {
        mask |= bit(Severity::INFO);
    }
    let _ = PREVIOUS.set(previous);
    // SAFETY: the callback has the signature asked for, does not unwind, needs no data, and lives as long as the process.
    unsafe { set(mask, std::ptr::null_mut(), Some(receive)) };
}

/// The lines of a message: each ends with a NUL, and another NUL ends the message (`cudnnCallback_t`). Read as one C string, a
/// message would be its first line, which says which function was called and not what was wrong.
///
/// # Safety
///
/// `text` must point to lines ended in this way.
unsafe fn lines(text: *const c_char) -> String {
    let mut list = Vec::new();
    let mut at = text;
    loop {
        // SAFETY: `at` is the start of a line, or of the empty one that ends the message.
        let line = unsafe { CStr::from_ptr(at) };
        if line.is_empty() {
            return list.join("\n");
        }
        list.push(line.to_string_lossy().into_owned());
        // SAFETY: after a line's NUL comes the next line or the last NUL.
        at = unsafe { at.add(line.count_bytes() + 1) };
    }
}

unsafe extern "C" fn receive(severity: Severity, _data: *mut c_void, debug: *const cudnnDebug_t, text: *const c_char) {
    if text.is_null() {
        return;
    }
    // SAFETY: cuDNN passes a message and, if anything, a valid record; both live for the call.
    let (lines, status) = unsafe { (lines(text), debug.as_ref().map_or(Status::SUCCESS, |debug| debug.cudnnStatus)) };
    // A subscriber that panics must not unwind through cuDNN's frames.
    let _ = std::panic::catch_unwind(AssertUnwindSafe(|| {
        deliver(Message { severity, status, text: lines.trim().to_owned() });
    }));
    if let Some(Previous { mask, data, callback: Some(callback) }) = PREVIOUS.get()
        && mask & bit(severity) != 0
    {
        // SAFETY: the earlier user's callback with that user's data, called as cuDNN would have called it.
        unsafe { callback(severity, *data, debug, text) };
    }
}

fn deliver(message: Message) {
    let Message { severity, status, text } = &message;
    match *severity {
        Severity::FATAL | Severity::ERROR => {
            tracing::error!(target: "cudnn", status = status.0, "{text}")
        }
        Severity::WARNING => tracing::warn!(target: "cudnn", status = status.0, "{text}"),
        _ => tracing::trace!(target: "cudnn", status = status.0, "{text}"),
    }
    COLLECTING.with_borrow_mut(|stack| {
        if let Some(innermost) = stack.last_mut() {
            innermost.push(message);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_was_cut_after_its_first_line() {
        let text = b"called:\0not supported: head dim\0\0";
        // SAFETY: two lines, each with its NUL, and the NUL that ends the message.
        assert_eq!(unsafe { lines(text.as_ptr().cast()) }, "called:\nnot supported: head dim");
    }
}
