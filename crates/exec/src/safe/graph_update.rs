//! The driver's update of an executable graph: the parameters of a graph that was recorded later, put in its place.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstreamCaptureMode};
use cudarc::driver::{CudaStream, DriverError, result};

use crate::driver::open;
use crate::raw::launch_error::LaunchError;
use crate::safe::order::driver_error;

/// A graph that was recorded and not instantiated. It is destroyed when the value is dropped.
pub(crate) struct RecordedGraph(CUgraph);

impl RecordedGraph {
    /// Ends the capture of a stream; `None` if nothing was recorded.
    ///
    /// # Safety
    ///
    /// The stream must be alive, its context current, and its capture one that this thread began.
    pub(crate) unsafe fn end(stream: &CudaStream) -> Result<Option<RecordedGraph>, DriverError> {
        // SAFETY: the caller's promise.
        let graph = unsafe { result::stream::end_capture(stream.cu_stream()) }?;
        Ok((!graph.is_null()).then_some(RecordedGraph(graph)))
    }
}

impl Drop for RecordedGraph {
    fn drop(&mut self) {
        // SAFETY: the driver made the graph, and it is destroyed once.
        if let Err(error) = unsafe { result::graph::destroy(self.0) } {
            tracing::warn!(%error, "a recorded graph was not destroyed");
        }
    }
}

/// Records what `queue` queues on a stream that is not captured, and ends the capture with `end`.
///
/// # Errors
///
/// The driver refuses the capture, as it does on the default stream; the error of `queue`, or of `end`.
pub(crate) fn recorded<R, E: From<LaunchError>>(
    stream: &CudaStream,
    queue: impl FnOnce() -> Result<(), E>,
    end: impl FnOnce() -> Result<R, DriverError>,
) -> Result<R, E> {
    // Other threads may allocate during the capture.
    stream
        .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .map_err(|e| driver_error("begin a capture (the default stream cannot be captured)", &e))?;
    let queued = queue();
    // The capture must end also after a failed launch.
    let ended = end();
    queued?;
    Ok(ended.map_err(|e| driver_error("end the capture", &e))?)
}

/// Why the driver did not update a graph.
#[derive(Debug)]
pub(crate) struct UpdateRefused(pub(crate) String);

/// `CUgraphExecUpdateResultInfo` of the driver API.
#[repr(C)]
struct ResultInfo {
    result: c_int,
    node: *mut c_void,
    from: *mut c_void,
}

type ExecUpdate = unsafe extern "C" fn(CUgraphExec, CUgraph, *mut ResultInfo) -> c_int;

/// Puts the parameters of a recorded graph into an executable one, for replays that are launched from now on. Replays
/// that are queued keep theirs.
///
/// The driver does so where both graphs have the same nodes in the same order. Where it refuses, the executable graph
/// must be replaced.
///
/// # Safety
///
/// The graph must be alive, its context current, and no other thread may use it.
pub(crate) unsafe fn update(graph: CUgraphExec, recorded: &RecordedGraph) -> Result<(), UpdateRefused> {
    // Not by cudarc, which has it only if it was built for CUDA 12 or later.
    static FUNCTION: OnceLock<Option<ExecUpdate>> = OnceLock::new();
    let function = FUNCTION.get_or_init(|| {
        let driver = open().ok()?;
        // SAFETY: every driver since CUDA 12 has this function with this signature.
        unsafe { driver.get::<ExecUpdate>("cuGraphExecUpdate_v2") }.ok().map(|function| *function)
    });
    let Some(function) = function else {
        return Err(UpdateRefused("the driver is older than CUDA 12".to_owned()));
    };
    let mut info = ResultInfo { result: 0, node: std::ptr::null_mut(), from: std::ptr::null_mut() };
    // SAFETY: both graphs are alive, the caller promises that no one else uses them, and `info` is writable.
    match unsafe { function(graph, recorded.0, &raw mut info) } {
        0 => Ok(()),
        status => Err(UpdateRefused(format!("CUDA error {status}, reason {}", info.result))),
    }
}
