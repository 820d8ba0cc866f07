//! CUDA graphs: a bound plan captured once and replayed, with cudarc's ordering around each replay.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaStream};

use crate::raw::launch_error::LaunchError;
use crate::safe::bound::{Bound, driver_error, ready};

/// A captured launch. It owns the bound plan, because the graph has the addresses of its slices and workspace.
///
/// The capture has read the scalars. To change one, take the bound plan back, set the scalar, and capture again.
pub struct Captured<'a> {
    // Before the plan: the graph's kernels are the plan's.
    graph: CudaGraph,
    stream: Arc<CudaStream>,
    bound: Bound<'a>,
}

impl<'a> Bound<'a> {
    /// Captures one launch as a CUDA graph. `stream` must not be the default stream, which cannot be captured. The
    /// launch does not run.
    ///
    /// cudarc's event tracking may be on: its waits and records stay outside the graph, around each
    /// [`Captured::launch`].
    ///
    /// # Errors
    ///
    /// [`LaunchError`] if the stream is of another context, or the driver or cuDNN refuses the capture.
    pub fn capture(self, stream: &Arc<CudaStream>) -> Result<Captured<'a>, LaunchError> {
        ready(&self.device, stream)?;
        // Other threads may allocate during the capture.
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .map_err(|e| driver_error("begin a capture (the default stream cannot be captured)", &e))?;
        // SAFETY: the stream is of this context, which is current. Nothing runs now; `Captured::launch` orders replays.
        let launched = unsafe { self.raw.launch(stream.cu_stream().cast()) };
        // The capture must end also after a failed launch.
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        launched?;
        let graph = graph.map_err(|e| driver_error("end the capture", &e))?.ok_or(LaunchError::Driver {
            step: "end the capture",
            detail: "the driver gave an empty graph".to_owned(),
        })?;
        Ok(Captured { graph, stream: Arc::clone(stream), bound: self })
    }
}

impl<'a> Captured<'a> {
    /// Queues a replay on the stream of the capture.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Driver`] if the driver refuses the replay.
    pub fn launch(&mut self) -> Result<(), LaunchError> {
        let Captured { graph, stream, bound } = self;
        ready(&bound.device, stream)?;
        bound.operands.hold(stream, &mut || graph.launch()).map_err(|e| driver_error("launch the graph", &e))?;
        bound.device.context().check_err().map_err(|e| driver_error("order the launch among streams", &e))
    }

    /// cudarc's graph.
    #[must_use]
    pub fn graph(&self) -> &CudaGraph {
        &self.graph
    }

    /// Destroys the graph and returns the bound plan.
    #[must_use]
    pub fn into_bound(self) -> Bound<'a> {
        self.bound
    }
}

impl fmt::Debug for Captured<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured").field("bound", &self.bound).finish_non_exhaustive()
    }
}
