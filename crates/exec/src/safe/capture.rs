//! CUDA graphs: a bound plan captured once and replayed, with cudarc's ordering around each replay.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaSlice, CudaStream};
use qkvault_graph::Role;

use crate::raw::launch_error::LaunchError;
use crate::safe::bound::Bound;
use crate::safe::device::ready;
use crate::safe::operands::Element;
use crate::safe::order::{driver_error, is_captured};

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
        ready(self.plan().device(), stream)?;
        if is_captured(stream) {
            return Err(LaunchError::Captured);
        }
        // A handle cannot be created during a capture, so it is leased before.
        let raw = &self.raw;
        // SAFETY: the stream is of this context, which is current, and lives as long as the lease.
        let mut lease = unsafe { raw.lease(stream.cu_stream().cast()) }?;
        // Other threads may allocate during the capture.
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .map_err(|e| driver_error("begin a capture (the default stream cannot be captured)", &e))?;
        // SAFETY: the stream is of this context, which is current. Nothing runs now; `Captured::launch` orders replays.
        let launched = unsafe { raw.launch_on(&mut lease, stream.cu_stream().cast()) };
        // The capture must end also after a failed launch.
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        drop(lease);
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
        ready(bound.plan().device(), stream)?;
        if is_captured(stream) {
            return Err(LaunchError::Captured);
        }
        let launched = bound.operands.hold(stream, || graph.launch());
        launched.and_then(|launched| launched).map_err(|e| driver_error("launch the graph", &e))?;
        bound.plan().device().context().check_err().map_err(|e| driver_error("order the launch among streams", &e))
    }

    /// cudarc's graph, to inspect or to launch without any order among streams.
    ///
    /// # Safety
    ///
    /// The caller orders its launches with all other work on the operands, the workspace and the batch, and waits for
    /// them before this value or an operand is dropped.
    #[must_use]
    pub const unsafe fn graph(&self) -> &CudaGraph {
        &self.graph
    }

    /// An owned operand, to be read; see [`Bound::slice`].
    pub fn slice<T: Element>(&mut self, role: Role) -> Option<&CudaSlice<T>> {
        self.bound.slice(role)
    }

    /// An owned operand, to be written; see [`Bound::slice_mut`].
    pub fn slice_mut<T: Element>(&mut self, role: Role) -> Option<&mut CudaSlice<T>> {
        self.bound.slice_mut(role)
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
