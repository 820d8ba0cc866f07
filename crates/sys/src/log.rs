//! cuDNN's log messages: forwarded to `tracing`, and collected where the reason of a refusal is needed.
//!
//! cuDNN mostly gives the reason of a refusal in its log and not in the status. It has only one callback per process.
//! If another user of cuDNN in the process has set one before, that one is still called.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;

use crate::bindings::{CudnnFunctions, Severity, Status, cudnnCallback_t, cudnnDebug_t};

/// One message of cuDNN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The message's severity.
    pub severity: Severity,
    /// The status that belongs to it; success if none does.
    pub status: Status,
    /// The text as cuDNN wrote it, without surrounding white space.
    pub text: String,
}

/// The callback that was set before ours; ours calls it.
struct Previous {
    mask: c_uint,
    data: *mut c_void,
    callback: cudnnCallback_t,
}

// SAFETY: the pointer belongs to another user of cuDNN. It is only passed back to that user's callback, which cuDNN
// itself would call from any thread.
unsafe impl Send for Previous {}
// SAFETY: for the same reasons as `Send`; the value is only read.
unsafe impl Sync for Previous {}

static PREVIOUS: OnceLock<Previous> = OnceLock::new();

thread_local! {
    /// One list for each `collect` that runs on this thread, innermost last.
    static COLLECTING: RefCell<Vec<Vec<Message>>> = const { RefCell::new(Vec::new()) };
}

/// The bit of a severity in masks; none for a number that masks have no bit for.
const fn bit(severity: Severity) -> c_uint {
    match 1_u32.checked_shl(severity.0) {
        Some(bit) => bit,
        None => 0,
    }
}

/// Runs `f` and returns its result with every message that cuDNN emitted meanwhile on this thread.
///
/// Messages of cuDNN's worker threads are not included. Calls may nest; an outer call also gets the messages of the
/// inner one.
pub fn collect<R>(f: impl FnOnce() -> R) -> (R, Vec<Message>) {
    struct Pop;
    impl Drop for Pop {
        // `Drop` also runs when `f` unwinds; a list left on the stack would collect for ever.
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

/// Sets the callback. It always receives warnings and errors. It receives information (every call with every argument,
/// which costs time) only if `tracing` has the target `cudnn` enabled at TRACE when the library is loaded.
pub(crate) fn install(table: &CudnnFunctions) {
    let (Ok(get), Ok(set)) = (&table.cudnnGetCallback, &table.cudnnSetCallback) else {
        return;
    };
    let mut previous = Previous { mask: 0, data: std::ptr::null_mut(), callback: None };
    // SAFETY: all three addresses are writable.
    unsafe { get(&mut previous.mask, &mut previous.data, &mut previous.callback) };
    let mut mask = bit(Severity::ERROR) | bit(Severity::WARNING);
    if previous.callback.is_some() {
        mask |= previous.mask;
    }
    if tracing::enabled!(target: "cudnn", tracing::Level::TRACE) {
        mask |= bit(Severity::INFO);
    }
    let _ = PREVIOUS.set(previous);
    // SAFETY: the callback has the required signature, does not unwind, needs no data, and lives as long as the
    // process.
    unsafe { set(mask, std::ptr::null_mut(), Some(receive)) };
}

/// Joins the lines of a message. Each line ends with a NUL, and another NUL ends the message (`cudnnCallback_t`). Read
/// as one C string, a message would be only its first line, which names the function but not the fault.
///
/// # Safety
///
/// `text` must point to lines that end in this way.
unsafe fn lines(text: *const c_char) -> String {
    let mut list = Vec::new();
    let mut at = text;
    loop {
        // SAFETY: `at` points to the start of a line, or to the empty line that ends the message.
        let line = unsafe { CStr::from_ptr(at) };
        if line.is_empty() {
            return list.join("\n");
        }
        list.push(line.to_string_lossy().into_owned());
        // SAFETY: after the NUL of a line comes the next line or the last NUL.
        at = unsafe { at.add(line.count_bytes() + 1) };
    }
}

unsafe extern "C" fn receive(severity: Severity, _data: *mut c_void, debug: *const cudnnDebug_t, text: *const c_char) {
    if text.is_null() {
        return;
    }
    // SAFETY: cuDNN passes a message and either null or a valid record; both live until the callback returns.
    let (lines, status) = unsafe { (lines(text), debug.as_ref().map_or(Status::SUCCESS, |debug| debug.cudnnStatus)) };
    // A subscriber that panics must not unwind through cuDNN's frames.
    let _ = std::panic::catch_unwind(AssertUnwindSafe(|| {
        deliver(Message { severity, status, text: lines.trim().to_owned() });
    }));
    if let Some(Previous { mask, data, callback: Some(callback) }) = PREVIOUS.get()
        && mask & bit(severity) != 0
    {
        // SAFETY: the earlier user's callback with that user's data, called as cuDNN would call it.
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

    /// A shift by 32 or more panicked outside of `catch_unwind`, in a callback from C++, which ends the process.
    #[test]
    fn audit_6_14_a_severity_that_nobody_knows_ended_the_process() {
        assert_eq!([0, 3, 31].map(|n| bit(Severity(n))), [1, 8, 1 << 31]);
        assert_eq!([32, 255, u32::MAX].map(|n| bit(Severity(n))), [0; 3]);
        let text = b"what:\0is this\0\0";
        let ((), messages) = collect(|| {
            // SAFETY: a message as cuDNN passes it, without a record.
            unsafe { receive(Severity(77), std::ptr::null_mut(), std::ptr::null(), text.as_ptr().cast()) };
        });
        assert_eq!(messages.len(), 1);
        assert_eq!(messages[0].text, "what:\nis this");
    }

    #[test]
    fn a_message_was_cut_after_its_first_line() {
        let text = b"called:\0not supported: head dim\0\0";
        // SAFETY: two lines, each with its NUL, and the NUL that ends the message.
        assert_eq!(unsafe { lines(text.as_ptr().cast()) }, "called:\nnot supported: head dim");
    }
}
