//! A stream of our own on each GPU, and its order with burn's, which are private.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicU8, Ordering as Atomic};
use std::sync::{Arc, Mutex, PoisonError};

use qkvault::exec::cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};

use crate::Error;

/// How launches are ordered with the work of burn's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ordering {
    /// The host waits for burn's stream before a launch, and for the launch after it.
    Waits,
    /// The GPU waits: for all work of its context before a launch, and all later work of the context for the launch.
    /// It needs a driver of CUDA 12.5 or newer.
    Events,
}

static ORDERING: AtomicU8 = AtomicU8::new(0);

/// Sets how this process orders launches. Default: [`Ordering::Waits`].
pub fn set_ordering(ordering: Ordering) {
    ORDERING.store(u8::from(ordering == Ordering::Events), Atomic::Relaxed);
}

/// How this process orders launches.
pub(crate) fn ordering() -> Ordering {
    if ORDERING.load(Atomic::Relaxed) == 1 { Ordering::Events } else { Ordering::Waits }
}

/// A stream on a GPU's primary context, which is burn's too, and events for its order. It lives as long as the process.
pub(crate) struct Lane {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// Recorded anew by each launch: what was queued before a launch, and the launch. The lock is held for a launch.
    events: Mutex<[Event; 2]>,
    /// `cuCtxRecordEvent` and `cuCtxWaitEvent`, if the driver has them.
    whole: Option<[OfContext; 2]>,
}

/// A function of the driver's over a context and an event.
type OfContext = unsafe extern "C" fn(sys::CUcontext, sys::CUevent) -> sys::CUresult;

/// An event without times.
struct Event(sys::CUevent);

// SAFETY: an event is a handle of the driver's, which any thread may use; the lock around it orders its uses.
unsafe impl Send for Event {}

impl Lane {
    /// The lane of a GPU, made by the first call.
    pub(crate) fn of(gpu: usize) -> Result<Arc<Lane>, Error> {
        static ALL: Mutex<Vec<(usize, Arc<Lane>)>> = Mutex::new(Vec::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, lane)) = all.iter().find(|(own, _)| *own == gpu) {
            return Ok(lane.clone());
        }
        let lane = Arc::new(Lane::new(gpu).map_err(|error| driver("could not make a stream", error))?);
        all.push((gpu, lane.clone()));
        Ok(lane)
    }

    fn new(gpu: usize) -> Result<Lane, DriverError> {
        let context = CudaContext::new(gpu)?;
        let stream = context.new_stream()?;
        let event = || result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map(Event);
        let whole = of_context(c"cuCtxRecordEvent").zip(of_context(c"cuCtxWaitEvent")).map(|(one, two)| [one, two]);
        Ok(Lane { events: Mutex::new([event()?, event()?]), context, stream, whole })
    }

    /// The stream, for launches and for work before them.
    pub(crate) fn stream(&self) -> *mut c_void {
        self.stream.cu_stream().cast()
    }

    /// Queues a launch behind all work of the context, and all later work of the context behind it. Nothing is queued
    /// on the context meanwhile by burn if this runs on its thread for the GPU.
    pub(crate) fn launch(
        &self,
        ordering: Ordering,
        wait: impl FnOnce() -> Result<(), Error>,
        launch: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let [before, after] = &*events;
        self.context.bind_to_thread().map_err(|error| driver("could not enter the context", error))?;
        if ordering == Ordering::Waits {
            wait()?;
            let launched = launch();
            // Also after an error: what was queued may write until here.
            let finished = self.stream.synchronize().map_err(|error| driver("a launch ended in an error", error));
            return launched.and(finished);
        }
        let Some([record, let_wait]) = self.whole else {
            let text = "the driver has no events of whole contexts, which CUDA 12.5 brought: use Ordering::Waits";
            return Err(Error::Device(text.to_owned()));
        };
        let (context, stream) = (self.context.cu_ctx(), self.stream.cu_stream());
        // SAFETY: context, stream and event are alive, and of one context.
        let behind = unsafe {
            record(context, before.0).result().and_then(|()| {
                result::stream::wait_event(stream, before.0, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)
            })
        };
        behind.map_err(|error| driver("a launch could not be queued behind burn's work", error))?;
        let launched = launch();
        // Also after an error: what was queued may write until then.
        // SAFETY: as above.
        let ahead =
            unsafe { result::event::record(after.0, stream).and_then(|()| let_wait(context, after.0).result()) };
        if let Err(error) = ahead {
            // Then the host waits: memory that a launch writes must not be given to others.
            let finished = self.stream.synchronize();
            launched.and(finished.map_err(|error| driver("a launch ended in an error", error)))?;
            return Err(driver("burn's work could not be queued behind a launch", error));
        }
        launched
    }
}

/// A function of the driver's, if it has it. Asked for at run time: which functions cudarc declares depends on the CUDA
/// toolkit that it finds when it is built.
fn of_context(name: &CStr) -> Option<OfContext> {
    let mut found = std::ptr::null_mut();
    // SAFETY: the name ends in a zero; the driver writes an address to the place that it is given, no status to null.
    let asked = unsafe { sys::cuGetProcAddress_v2(name.as_ptr(), &raw mut found, SINCE, 0, std::ptr::null_mut()) };
    if asked.result().is_err() || found.is_null() {
        return None;
    }
    // SAFETY: both functions that are asked for have this type, as CUDA 12.5 declares them.
    Some(unsafe { std::mem::transmute::<*mut c_void, OfContext>(found) })
}

/// The CUDA that declared them.
const SINCE: i32 = 12050;

pub(crate) fn driver(what: &str, error: DriverError) -> Error {
    Error::Device(format!("{what}: {error}"))
}
