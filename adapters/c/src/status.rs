//! Statuses, the last error of each thread, and the guard around every function.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use qkvault::cudnn::BadQuirk;
use qkvault::exec::LaunchError;
use qkvault::exec::serving::BatchInputErrors;
use qkvault::graph::text::ParseError;
use qkvault::graph::{BadVersion, Refusal, UnknownRole};
use qkvault::reference::ReferenceError;
use qkvault::{Error, ErrorKind};
use qkvault_base::{NoMemory, on_lines, room_for};

use crate::sized::{Grows, write};

/// The call did what it says.
pub const QKV_OK: i32 = 0;
/// An argument is wrong: null, too small, no text, an unknown name, a missing operand, a handle that is none.
pub const QKV_ERROR_ARGUMENT: i32 = 1;
/// A text is not a description, or JSON is not what it should be.
pub const QKV_ERROR_PARSE: i32 = 2;
/// The attention contradicts itself or cannot run there. The error has the reasons, each with a stable code.
pub const QKV_ERROR_REFUSED: i32 = 3;
/// The plan is not in the vault, and building it is not allowed.
pub const QKV_ERROR_MISSING: i32 = 4;
/// There is no driver or no such GPU, or it cannot be used.
pub const QKV_ERROR_DEVICE: i32 = 5;
/// There is no cuDNN that can be used.
pub const QKV_ERROR_LIBRARY: i32 = 6;
/// The vault or a pack cannot be opened or read.
pub const QKV_ERROR_VAULT: i32 = 7;
/// A plan could not be built.
pub const QKV_ERROR_BUILD: i32 = 8;
/// A stored plan does not load on this machine.
pub const QKV_ERROR_LOAD: i32 = 9;
/// There is too little memory, on the GPU or on the host, or no room for another plan.
pub const QKV_ERROR_MEMORY: i32 = 10;
/// cuDNN or the driver refused a launch. Nothing was queued.
pub const QKV_ERROR_LAUNCH: i32 = 11;
/// The plan is not loaded, and the stream is being captured: prepare it before the capture begins.
pub const QKV_ERROR_CAPTURED: i32 = 12;
/// The library has a fault. Report it with the message.
pub const QKV_ERROR_INTERNAL: i32 = 13;

/// The last error of a thread. The strings are never null, and valid until the thread's next failing call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_error {
    /// Set this to `sizeof(qkv_error)`.
    pub struct_size: usize,
    /// The status that the call returned; `QKV_OK` if no call of this thread failed.
    pub status: i32,
    /// The number of reasons of a refusal; 0 for other errors.
    pub reason_count: u32,
    /// What came, what was expected, and how to fix it.
    pub message: *const c_char,
    /// The name of the status, such as `refused`.
    pub kind: *const c_char,
    /// The stable codes of a refusal's reasons, with spaces between them, as in `docs/reasons.md`.
    pub codes: *const c_char,
    /// The reasons of a refusal as a JSON array; `[]` for other errors.
    pub reasons: *const c_char,
}

// SAFETY: numbers and pointers.
unsafe impl Grows for qkv_error {
    const LEAST: usize = std::mem::offset_of!(qkv_error, kind);
    const NAME: &'static str = "qkv_error";
}

/// Why a function failed.
#[derive(Debug)]
pub struct CallFailure {
    status: i32,
    message: String,
    refusal: Option<Refusal>,
}

impl CallFailure {
    pub(crate) fn new(status: i32, message: impl Into<String>) -> CallFailure {
        CallFailure { status, message: message.into(), refusal: None }
    }

    pub(crate) fn argument(message: impl Into<String>) -> CallFailure {
        CallFailure::new(QKV_ERROR_ARGUMENT, message)
    }

    /// Its `QKV_ERROR_` number.
    pub(crate) const fn status(&self) -> i32 {
        self.status
    }

    /// What came, what was expected, and how to fix it.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

/// How other languages allow what Rust calls `OnMiss::Compile`.
const BUILD: &str = "or allow it where it is asked for (build=True in Python, QKV_ON_MISS_BUILD in C)";

impl From<Error> for CallFailure {
    fn from(error: Error) -> CallFailure {
        let status = match error.kind() {
            ErrorKind::Device => QKV_ERROR_DEVICE,
            ErrorKind::Library => QKV_ERROR_LIBRARY,
            ErrorKind::Vault => QKV_ERROR_VAULT,
            ErrorKind::Refused => QKV_ERROR_REFUSED,
            ErrorKind::Missing => QKV_ERROR_MISSING,
            ErrorKind::Build => QKV_ERROR_BUILD,
            ErrorKind::Load => QKV_ERROR_LOAD,
            ErrorKind::Arguments => QKV_ERROR_ARGUMENT,
            ErrorKind::Memory => QKV_ERROR_MEMORY,
            ErrorKind::Launch => QKV_ERROR_LAUNCH,
            ErrorKind::Captured => QKV_ERROR_CAPTURED,
            _ => QKV_ERROR_INTERNAL,
        };
        let mut message = error.to_string();
        if status == QKV_ERROR_MISSING {
            message = message.replace("or use OnMiss::Compile", BUILD);
        }
        CallFailure { status, message, refusal: error.refusal().cloned() }
    }
}

impl From<Refusal> for CallFailure {
    fn from(refusal: Refusal) -> CallFailure {
        CallFailure { status: QKV_ERROR_REFUSED, message: refusal.to_string(), refusal: Some(refusal) }
    }
}

impl From<LaunchError> for CallFailure {
    fn from(error: LaunchError) -> CallFailure {
        Error::from(error).into()
    }
}

macro_rules! failures {
    ($($error:ty => $status:ident),+ $(,)?) => {$(
        impl From<$error> for CallFailure {
            fn from(error: $error) -> CallFailure {
                CallFailure::new($status, error.to_string())
            }
        }
    )+};
}

failures! {
    ParseError => QKV_ERROR_PARSE,
    serde_json::Error => QKV_ERROR_PARSE,
    BadVersion => QKV_ERROR_ARGUMENT,
    BadQuirk => QKV_ERROR_ARGUMENT,
    UnknownRole => QKV_ERROR_ARGUMENT,
    BatchInputErrors => QKV_ERROR_ARGUMENT,
    NoMemory => QKV_ERROR_MEMORY,
}

impl From<ReferenceError> for CallFailure {
    fn from(error: ReferenceError) -> CallFailure {
        let memory = matches!(error, ReferenceError::Memory { .. });
        CallFailure::new(if memory { QKV_ERROR_MEMORY } else { QKV_ERROR_ARGUMENT }, error.to_string())
    }
}

const fn kind(status: i32) -> &'static std::ffi::CStr {
    match status {
        QKV_OK => c"ok",
        QKV_ERROR_ARGUMENT => c"argument",
        QKV_ERROR_PARSE => c"parse",
        QKV_ERROR_REFUSED => c"refused",
        QKV_ERROR_MISSING => c"missing",
        QKV_ERROR_DEVICE => c"device",
        QKV_ERROR_LIBRARY => c"library",
        QKV_ERROR_VAULT => c"vault",
        QKV_ERROR_BUILD => c"build",
        QKV_ERROR_LOAD => c"load",
        QKV_ERROR_MEMORY => c"memory",
        QKV_ERROR_LAUNCH => c"launch",
        QKV_ERROR_CAPTURED => c"captured",
        _ => c"internal",
    }
}

/// The last error as C strings.
struct Last {
    status: i32,
    count: u32,
    message: CString,
    codes: CString,
    reasons: CString,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::new(Last::from_failure(CallFailure::new(QKV_OK, "")));
}

/// A text as a C string. Null characters, which it cannot hold, become spaces.
pub(crate) fn c_string(text: impl Into<String>) -> CString {
    CString::new(text.into().replace('\0', " ")).unwrap_or_default()
}

impl Last {
    fn from_failure(failure: CallFailure) -> Last {
        let CallFailure { status, message, refusal } = failure;
        let reasons = refusal.as_ref().map_or(&[][..], Refusal::reasons);
        let codes: Vec<&str> = reasons.iter().map(|reason| reason.code.as_str()).collect();
        let json = serde_json::to_string(reasons).unwrap_or_else(|_| "[]".to_owned());
        let count = u32::try_from(reasons.len()).unwrap_or(u32::MAX);
        // Programs print it: what came from a file or a remote must not move their users' cursor.
        let message = c_string(on_lines(&message));
        Last { status, count, message, codes: c_string(codes.join(" ")), reasons: c_string(json) }
    }
}

/// Runs a function's body. A failure or a panic becomes the thread's last error.
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), CallFailure>) -> i32 {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return QKV_OK,
        Ok(Err(failure)) => failure,
        Err(panic) => caught(&*panic),
    };
    let status = failure.status;
    // While a thread ends it has no last error any more.
    let _ = catch_unwind(AssertUnwindSafe(|| LAST.try_with(|last| *last.borrow_mut() = Last::from_failure(failure))));
    status
}

/// Runs the body of a function that describes, plans or computes, which takes memory of its own. Rust ends the process
/// if there is none, so some is asked for before. What a caller's sizes decide is checked where they are known.
pub(crate) fn guarded_with_memory(body: impl FnOnce() -> Result<(), CallFailure>) -> i32 {
    guarded(|| {
        room_for(0)?;
        body()
    })
}

/// The failure of a function that panicked.
pub(crate) fn caught(panic: &(dyn Any + Send)) -> CallFailure {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message");
    let text = format!("libqkvault has a fault: {said}; report it with the call that led to it");
    CallFailure::new(QKV_ERROR_INTERNAL, text)
}

/// The message of this thread's last error, valid until its next one.
pub(crate) fn last_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().message.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Tells the last error of this thread. Calls that succeed leave it as it was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_last_error(error: *mut qkv_error) -> i32 {
    let fill = |last: &Last| {
        let Last { status, count, message, codes, reasons } = last;
        qkv_error {
            struct_size: 0,
            status: *status,
            reason_count: *count,
            message: message.as_ptr(),
            kind: kind(*status).as_ptr(),
            codes: codes.as_ptr(),
            reasons: reasons.as_ptr(),
        }
    };
    let filled = LAST.try_with(|last| fill(&last.borrow()));
    guarded(|| {
        let filled =
            filled.map_err(|_| CallFailure::argument("this thread is ending, and has no last error any more"))?;
        // SAFETY: the caller's pointer is null or to a `qkv_error` with its size.
        unsafe { write(error, filled) }
    })
}

/// Fails with a panic inside the library, for tests of the border: the status is `QKV_ERROR_INTERNAL`.
#[unsafe(no_mangle)]
pub extern "C" fn qkv_debug_panic() -> i32 {
    guarded(|| panic!("asked for by qkv_debug_panic"))
}
