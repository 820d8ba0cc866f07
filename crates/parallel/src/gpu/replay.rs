//! Runs as CUDA graphs: with the memory of an earlier run, a rank queues one graph, and its host is done in
//! microseconds.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, result};
use qkvault_exec::raw::DeviceBuffer;
use qkvault_exec::{Number, cudarc};
use qkvault_graph::Role;

use super::RunError;

/// How many sets of addresses have a graph at a time. Frameworks give the same few again and again.
const MOST: usize = 8;

/// What a graph holds besides the rank's own memory.
#[derive(Clone, Debug, PartialEq)]
struct Given {
    bound: Vec<DeviceBuffer>,
    numbers: HashMap<Role, Number>,
}

/// A graph that goes with its rank to another thread.
struct RankGraph(CudaGraph);

// SAFETY: the driver lets any thread use a graph, one at a time, and a rank has its graphs to itself.
unsafe impl Send for RankGraph {}

/// The graphs of a rank.
pub(super) struct Replays {
    /// The latest first.
    graphs: Vec<(Given, RankGraph)>,
    /// What a run without a graph had last.
    seen: Option<Given>,
    /// The stream on which runs are captured: the caller's may be the default stream, which cannot be.
    stream: Arc<CudaStream>,
    /// Whether the driver has refused a capture.
    refused: bool,
}

/// What a run does.
pub(super) enum RunTurn {
    /// It queues its steps.
    Steps,
    /// It captures them first: the same memory has come a second time.
    Capture(Arc<CudaStream>),
    /// It launches the first graph of the list.
    Replay,
}

impl Replays {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Replays, RunError> {
        let stream = context.new_stream().map_err(RunError::driver("create a stream"))?;
        Ok(Replays { graphs: Vec::new(), seen: None, stream, refused: false })
    }

    /// What the next run does with this memory and these numbers. A graph is only made while the rank is `idle`: the
    /// driver may wait for the GPU then, and the GPU for a rank that waits for the driver.
    pub(super) fn turn(
        &mut self,
        bound: &[DeviceBuffer],
        numbers: &HashMap<Role, Number>,
        idle: impl FnOnce() -> bool,
    ) -> RunTurn {
        let same = |given: &Given| given.bound == bound && given.numbers == *numbers;
        if let Some(at) = self.graphs.iter().position(|(given, _)| same(given)) {
            self.graphs[..=at].rotate_right(1);
            return RunTurn::Replay;
        }
        if self.seen.as_ref().is_some_and(same) {
            if self.refused || !idle() {
                return RunTurn::Steps;
            }
            return RunTurn::Capture(Arc::clone(&self.stream));
        }
        self.seen = Some(Given { bound: bound.to_vec(), numbers: numbers.clone() });
        RunTurn::Steps
    }

    /// Begins to record what is queued on the stream of [`RunTurn::Capture`].
    pub(super) fn begin(&self) -> Result<(), RunError> {
        // Other threads may allocate meanwhile.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(RunError::driver("begin a capture"))
    }

    /// Ends the recording, also of what has failed; whether there is a graph to replay now.
    pub(super) fn end(&mut self, queued: bool) -> bool {
        let graph = self.stream.end_capture(CUgraphInstantiate_flags(0)).ok().flatten();
        match (graph, self.seen.take()) {
            (Some(graph), Some(given)) if queued => {
                self.graphs.insert(0, (given, RankGraph(graph)));
                self.graphs.truncate(MOST);
                true
            }
            _ => {
                self.refused = true;
                false
            }
        }
    }

    /// Launches the first graph.
    pub(super) fn launch(&self, stream: &CudaStream) -> Result<(), RunError> {
        let Some((_, RankGraph(graph))) = self.graphs.first() else { return Ok(()) };
        // SAFETY: graph and stream are alive and of the rank's context, which is current; the caller of a run promises
        // the memory that the graph was captured with.
        unsafe { result::graph::launch(graph.cu_graph_exec(), stream.cu_stream()) }
            .map_err(RunError::driver("replay a run"))
    }
}
