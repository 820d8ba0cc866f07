//! Runs as CUDA graphs: with the memory of an earlier run, a rank queues one graph, and its host is done in
//! microseconds.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, result};
use qkvault_exec::raw::DeviceBuffer;
use qkvault_exec::{Number, cudarc};
use qkvault_graph::Role;

use super::RunError;

/// How many sets of addresses have a graph at a time. Frameworks give the same few again and again.
const MOST: usize = 8;

/// How many sets of addresses without a graph are remembered.
const SEEN: usize = 16;

/// What a graph holds besides the rank's own memory.
#[derive(Clone, Debug, PartialEq)]
struct Given {
    bound: Vec<DeviceBuffer>,
    numbers: HashMap<Role, Number>,
}

/// What runs without a graph had, the latest last.
#[derive(Debug, Default)]
struct SeenSets(VecDeque<Given>);

impl SeenSets {
    /// Whether a run had these before. They are the latest then.
    fn comes_again(&mut self, given: Given) -> bool {
        let found = self.0.iter().position(|other| *other == given);
        if let Some(at) = found {
            self.0.remove(at);
        } else if self.0.len() == SEEN {
            self.0.pop_front();
        }
        self.0.push_back(given);
        found.is_some()
    }
}

/// A graph that goes with its rank to another thread.
struct RankGraph(CudaGraph);

// SAFETY: the driver lets any thread use a graph, one at a time, and a rank has its graphs to itself.
unsafe impl Send for RankGraph {}

/// The graphs of a rank.
pub(super) struct Replays {
    /// The latest first.
    graphs: Vec<(Given, RankGraph)>,
    seen: SeenSets,
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
        Ok(Replays { graphs: Vec::new(), seen: SeenSets::default(), stream, refused: false })
    }

    /// What the next run does with this memory and these numbers. A graph is only made where the rank is
    /// `ready` for it.
    pub(super) fn turn(
        &mut self,
        bound: &[DeviceBuffer],
        numbers: &HashMap<Role, Number>,
        ready: impl FnOnce() -> bool,
    ) -> RunTurn {
        let same = |given: &Given| given.bound == bound && given.numbers == *numbers;
        if let Some(at) = self.graphs.iter().position(|(given, _)| same(given)) {
            self.graphs[..=at].rotate_right(1);
            return RunTurn::Replay;
        }
        let again = self.seen.comes_again(Given { bound: bound.to_vec(), numbers: numbers.clone() });
        match again && !self.refused && ready() {
            true => RunTurn::Capture(Arc::clone(&self.stream)),
            false => RunTurn::Steps,
        }
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
        match (graph, self.seen.0.pop_back()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: u64) -> Given {
        Given { bound: vec![DeviceBuffer { address, bytes: 1 }], numbers: HashMap::new() }
    }

    /// PyTorch gives new outputs by turns at two addresses, and only the last one was remembered: no run had a graph.
    #[test]
    fn audit_addresses_that_alternate_come_again() {
        let mut seen = SeenSets::default();
        assert_eq!([1, 2, 1, 2, 3].map(|address| seen.comes_again(at(address))), [false, false, true, true, false]);
        assert_eq!(seen.0.back(), Some(&at(3)));
    }

    #[test]
    fn only_so_many_sets_are_remembered() {
        let mut seen = SeenSets::default();
        (0..=SEEN as u64).for_each(|address| _ = seen.comes_again(at(address)));
        assert_eq!((seen.0.len(), seen.comes_again(at(0)), seen.comes_again(at(5))), (SEEN, false, true));
    }
}
