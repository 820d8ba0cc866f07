//! The primary context of a GPU, retained without cudarc, which every call of a session enters and leaves.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::driver::open;
use crate::driver::words::words;
use crate::raw::session::{ContextGuard, Entered};

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
type Release = unsafe extern "C" fn(c_int) -> c_int;
type GetCurrent = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type SetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;
type IsCapturing = unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int;
type ExchangeMode = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetStreamId = unsafe extern "C" fn(*mut c_void, *mut u64) -> c_int;

/// The functions of the driver that this module calls.
struct ContextFunctions {
    init: Init,
    retain: Retain,
    release: Release,
    get: GetCurrent,
    set: SetCurrent,
    is_capturing: IsCapturing,
    exchange: ExchangeMode,
    /// Since the driver of CUDA 12.
    stream_id: Option<GetStreamId>,
}

fn functions() -> Option<&'static ContextFunctions> {
    static FUNCTIONS: OnceLock<Option<ContextFunctions>> = OnceLock::new();
    let find = || {
        let driver = open().ok()?;
        // SAFETY: every driver since CUDA 10 has these functions with these signatures; cuStreamGetId since CUDA 12.
        unsafe {
            Some(ContextFunctions {
                init: *driver.get::<Init>("cuInit").ok()?,
                retain: *driver.get::<Retain>("cuDevicePrimaryCtxRetain").ok()?,
                release: *driver.get::<Release>("cuDevicePrimaryCtxRelease_v2").ok()?,
                get: *driver.get::<GetCurrent>("cuCtxGetCurrent").ok()?,
                set: *driver.get::<SetCurrent>("cuCtxSetCurrent").ok()?,
                is_capturing: *driver.get::<IsCapturing>("cuStreamIsCapturing").ok()?,
                exchange: *driver.get::<ExchangeMode>("cuThreadExchangeStreamCaptureMode").ok()?,
                stream_id: driver.get::<GetStreamId>("cuStreamGetId").ok().map(|function| *function),
            })
        }
    };
    FUNCTIONS.get_or_init(find).as_ref()
}

/// The error of a call into the driver, if its status is one.
pub(crate) fn checked(step: &str, status: c_int) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("the driver could not {step}: {}", words(status))) }
}

/// A number that no other stream of the program has or had, unlike the address of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamId {
    /// The number.
    Known(u64),
    /// The stream is being captured. Asking for its number would end the capture.
    Captured,
    /// The driver does not number streams.
    Unknown,
}

/// The number of a stream.
///
/// # Safety
///
/// The stream must be alive, and its context current.
pub(crate) unsafe fn stream_id(stream: *mut c_void) -> StreamId {
    let Some(functions) = functions() else { return StreamId::Unknown };
    let (mut captured, mut id) = (0, 0);
    // SAFETY: the caller promises that the stream is alive; the numbers are writable.
    unsafe {
        if (functions.is_capturing)(stream, &raw mut captured) == 0 && captured != 0 {
            return StreamId::Captured;
        }
        match functions.stream_id.map(|number| number(stream, &raw mut id)) {
            Some(0) => StreamId::Known(id),
            _ => StreamId::Unknown,
        }
    }
}

/// Whether a stream is being captured.
///
/// # Safety
///
/// The stream must be alive, and its context current.
pub(crate) unsafe fn is_captured(stream: *mut c_void) -> bool {
    let mut captured = 0;
    // SAFETY: the caller promises that the stream is alive; the number is writable.
    functions().is_some_and(|f| unsafe { (f.is_capturing)(stream, &raw mut captured) } == 0 && captured != 0)
}

/// Exchanges the rule by which the driver judges what this thread does while a stream is captured.
pub(crate) fn exchange_capture_mode(mode: c_int) -> Option<c_int> {
    let mut mode = mode;
    // SAFETY: the number is writable.
    functions().filter(|f| unsafe { (f.exchange)(&raw mut mode) } == 0).map(|_| mode)
}

/// Makes a context current, or none for 0.
pub(crate) fn make_current(context: usize) {
    let Some(functions) = functions() else { return };
    // SAFETY: the context was current on this thread before, and contexts that frameworks use stay alive.
    let status = unsafe { (functions.set)(context as *mut c_void) };
    if let Err(detail) = checked("make the former context current", status) {
        tracing::warn!(detail, "the CUDA context of this thread");
    }
}

/// The primary context of a GPU. It is released when the value is dropped.
#[derive(Debug)]
pub(crate) struct PrimaryContext {
    ordinal: c_int,
    context: usize,
}

impl PrimaryContext {
    pub(crate) fn retain(ordinal: i32) -> Result<PrimaryContext, String> {
        let functions = functions().ok_or("the driver lacks functions that every driver has")?;
        // SAFETY: initialising twice is allowed.
        checked("initialise", unsafe { (functions.init)(0) })?;
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` is writable. The driver checks the ordinal.
        let status = unsafe { (functions.retain)(&raw mut context, ordinal) };
        checked(&format!("open the primary context of GPU {ordinal}"), status)?;
        Ok(PrimaryContext { ordinal, context: context as usize })
    }
}

impl ContextGuard for PrimaryContext {
    fn enter(&self) -> Result<Entered, String> {
        let functions = functions().ok_or("the driver lacks functions that every driver has")?;
        let mut former = std::ptr::null_mut();
        // SAFETY: `former` is writable.
        checked("tell the current context", unsafe { (functions.get)(&raw mut former) })?;
        if former as usize == self.context {
            return Ok(Entered::stays());
        }
        // SAFETY: this value keeps the context alive.
        checked("make the context current", unsafe { (functions.set)(self.context as *mut c_void) })?;
        Ok(Entered::leaves_for(former as usize))
    }

    fn enter_to_launch(&self) -> Result<Entered, String> {
        self.enter()
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        if let Some(functions) = functions() {
            // SAFETY: retained once by this value. Whoever else retained it keeps it alive.
            let status = unsafe { (functions.release)(self.ordinal) };
            if let Err(detail) = checked("release the primary context", status) {
                tracing::warn!(ordinal = self.ordinal, detail, "the primary context of a GPU");
            }
        }
    }
}
