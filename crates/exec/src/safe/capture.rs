//! CUDA graphs: a bound plan captured once and replayed, with cudarc's ordering around each replay.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::CUgraphInstantiate_flags;
use cudarc::driver::{CudaGraph, CudaSlice, CudaStream, DriverError, result};
use qkvault_graph::Role;

use crate::raw::launch_error::LaunchError;
use crate::safe::args::Args;
use crate::safe::bound::{BindFailure, Bound};
use crate::safe::device::ready;
use crate::safe::element::Element;
use crate::safe::graph_update::{RecordedGraph, UpdateRefused, recorded, update};
use crate::safe::order::{driver_error, is_captured};

/// A captured launch. It owns the bound plan, because the graph has the addresses of its slices and workspace.
///
/// The graph has the addresses and the scalars of the capture. [`Captured::update`] replaces them.
///
/// ```no_run
/// # use std::{error::Error, sync::Arc};
/// # use qkvault_exec::{Args, LoadedPlan, cudarc::driver::{CudaSlice, CudaStream}};
/// # type Slice = CudaSlice<half::bf16>;
/// # fn run(plan: &LoadedPlan, stream: &Arc<CudaStream>, [q, k, v, other]: [Slice; 4], make: impl Fn() -> Slice)
/// # -> Result<(), Box<dyn Error>> {
/// let (k, v) = (Arc::new(k), Arc::new(v));
/// let mut graph = plan.bind(Args::new().q(q).k(&k).v(&v).o(make()), stream)?.capture(stream)?;
/// graph.launch()?;
/// // Other queries, another output and another scale; the graph stays.
/// graph.update(Args::new().q(other).k(&k).v(&v).o(make()).scale(0.1))?;
/// graph.launch()?;
/// # Ok(())
/// # }
/// ```
pub struct Captured<'a> {
    // Before the plan: the graph's kernels are the plan's.
    graph: CudaGraph,
    stream: Arc<CudaStream>,
    bound: Bound<'a>,
}

/// How [`Captured::update`] replaced the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updated {
    /// The graph was changed where it is, as the driver does it for a launch of the same kernels.
    InPlace,
    /// The driver did not change the graph, so another one was made, which takes longer.
    Anew,
}

/// Why a captured launch kept its operands.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// The arguments cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindFailure),
    /// They were bound, and their launch could not be captured.
    #[error(transparent)]
    Launch(#[from] LaunchError),
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
        let graph = self.record(stream, || stream.end_capture(CUgraphInstantiate_flags(0)))?;
        let graph = graph.ok_or_else(empty)?;
        Ok(Captured { graph, stream: Arc::clone(stream), bound: self })
    }

    /// Records one launch, and ends the capture with `end`.
    fn record<R>(
        &self,
        stream: &Arc<CudaStream>,
        end: impl FnOnce() -> Result<R, DriverError>,
    ) -> Result<R, LaunchError> {
        ready(self.plan().device(), stream)?;
        if is_captured(stream) {
            return Err(LaunchError::Captured);
        }
        // A handle cannot be created during a capture, so it is leased before.
        let raw = &self.raw;
        // SAFETY: the stream is of this context, which is current, and lives as long as the lease.
        let mut lease = unsafe { raw.lease(stream.cu_stream().cast()) }?;
        // SAFETY: the stream is of this context, which is current. Nothing runs now; `Captured::launch` orders replays.
        recorded(stream, || unsafe { raw.launch_on(&mut lease, stream.cu_stream().cast()) }, end)
    }
}

fn empty() -> LaunchError {
    LaunchError::Driver { step: "end the capture", detail: "the driver gave an empty graph".to_owned() }
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
        let launched = bound.operands.hold(stream, || {
            // SAFETY: graph and stream are alive, and of this context, which is current. Operands are held, and `hold`
            // orders them.
            unsafe { result::graph::launch(graph.cu_graph_exec(), stream.cu_stream()) }
        });
        launched.and_then(|launched| launched).map_err(|e| driver_error("launch the graph", &e))?;
        bound.plan().device().context().check_err().map_err(|e| driver_error("order the launch among streams", &e))
    }

    /// Replaces operands and scalars from the next replay on, and drops the former ones in the order of the stream. The
    /// workspace stays, unless `args` have one. On an error nothing changes.
    ///
    /// It binds the arguments, captures their launch, and has the driver put its parameters into the graph. That costs
    /// more than a launch with arguments ([`LoadedPlan::launch`](crate::LoadedPlan::launch)), which is the better way
    /// where operands change at every launch.
    ///
    /// # Errors
    ///
    /// [`UpdateError::Bind`] with all errors in the arguments; [`UpdateError::Launch`] if their launch cannot be
    /// captured.
    pub fn update(&mut self, args: Args<'a>) -> Result<Updated, UpdateError> {
        let Captured { graph, stream, bound } = self;
        let next = bound.another(args, stream)?;
        // SAFETY: the stream is alive, and its capture is what ends here.
        let other = next.record(stream, || unsafe { RecordedGraph::end(stream) })?.ok_or_else(empty)?;
        // SAFETY: both graphs are alive, and this thread alone has them.
        let updated = match unsafe { update(graph.cu_graph_exec(), &other) } {
            Ok(()) => Updated::InPlace,
            Err(UpdateRefused(detail)) => {
                tracing::debug!(detail, what = next.plan().facts().what, "a graph is made anew");
                let end = || stream.end_capture(CUgraphInstantiate_flags(0));
                *graph = next.record(stream, end)?.ok_or_else(empty)?;
                Updated::Anew
            }
        };
        *bound = next;
        Ok(updated)
    }

    /// cudarc's graph, to inspect or to launch without any order among streams. What it launches is up to date; its
    /// nodes are those of the first capture.
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
