//! Many launches in the order of one stream, run one by one or replayed as one CUDA graph.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::CUgraphInstantiate_flags;
use cudarc::driver::{CudaGraph, CudaStream, DeviceRepr, DriverError, result};

use crate::bindings::Number;
use crate::raw::launch_error::LaunchError;
use crate::safe::arena::{Arena, ArenaError, Slot};
use crate::safe::args::{Args, Which};
use crate::safe::bound::{BindFailure, Bound};
use crate::safe::device::ready;
use crate::safe::element::Element;
use crate::safe::graph_update::{RecordedGraph, UpdateRefused, recorded, update};
use crate::safe::launches_error::LaunchesError;
use crate::safe::order::{WAIT, driver_error, is_captured};
use crate::safe::plan::LoadedPlan;
use crate::safe::tracked::Shared;
use crate::safe::workspace::{Workspace, WorkspaceError};

/// Work of the caller's own, queued on the stream that it gets.
type Own<'a> = Box<dyn FnMut(&Arc<CudaStream>) -> Result<(), Box<dyn Error + Send + Sync>> + Send + 'a>;

/// One act of a step.
enum Act<'a> {
    Launch(Box<Bound<'a>>),
    Own(Own<'a>),
}

/// Launches in the order of one stream: the attentions of all layers, say, with what lies between them.
///
/// They keep plans, slices, batches and scratch memory as long as they need them, and are ordered with other work once
/// for all, so that neither [`Launches::run`] nor [`LaunchGraph::launch`] is `unsafe`. What one launch writes and
/// another reads is a [`Slot`] of their arena. New data come by [`Slot::write`],
/// [`BatchMetadata::update`](crate::BatchMetadata::update) and [`LaunchGraph::set_scalar`].
///
/// ```no_run
/// # use qkvault_exec::{Arena, Args, BatchMetadata, LoadedPlan, Launches, Slot, cudarc::driver::CudaStream};
/// # use qkvault_exec::serving::Step;
/// # fn run(layers: &[LoadedPlan], stream: &std::sync::Arc<CudaStream>, batch: &mut BatchMetadata, next: &Step<'_>)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let arena = Arena::new(stream);
/// let [q, o] = [arena.zeros::<half::bf16>(4096)?, arena.zeros(4096)?];
/// let [k, v] = [arena.zeros::<half::bf16>(1 << 20)?, arena.zeros(1 << 20)?];
/// let mut step = Launches::new(stream, &arena);
/// for plan in layers {
///     step.launch(plan, Args::new().q(&q).k(&k).v(&v).o(&o).batch(batch))?;
///     // The next layer reads what this one wrote.
///     step.copy(&o, &q)?;
/// }
/// let mut graph = step.capture()?;
/// batch.update(next, stream)?;
/// q.write(stream, &vec![half::bf16::ONE; 4096])?;
/// graph.launch()?;
/// let out = o.read(stream)?;
/// # Ok(())
/// # }
/// ```
pub struct Launches<'a> {
    stream: Arc<CudaStream>,
    arena: Arena,
    acts: Vec<Act<'a>>,
    /// Scratch memory of launches that bring none: they run one after the other.
    scratch: Option<Arc<Workspace>>,
    shared: Shared,
}

/// A step as one CUDA graph.
///
/// # Threads
///
/// Not `Send`: one thread at a time may use a CUDA graph. A program with many threads gives its graphs to one of them,
/// and sends it the steps.
pub struct LaunchGraph<'a> {
    // Before the step: the graph's kernels are those of its plans.
    graph: CudaGraph,
    step: Launches<'a>,
}

impl<'a> Launches<'a> {
    /// A step without launches. `stream` must not be the default stream if the step is to be captured.
    #[must_use]
    pub fn new(stream: &Arc<CudaStream>, arena: &Arena) -> Launches<'a> {
        let mut shared = Shared::default();
        shared.add_arena(arena.memory());
        Launches { stream: Arc::clone(stream), arena: arena.clone(), acts: Vec::new(), scratch: None, shared }
    }

    /// Adds a launch. It is checked and bound now, and queued when the step runs.
    ///
    /// # Errors
    ///
    /// [`LaunchesError::Bind`] with everything that is wrong in the arguments.
    pub fn launch(&mut self, plan: &LoadedPlan, args: Args<'a>) -> Result<&mut Launches<'a>, LaunchesError> {
        let mut args = args;
        if args.workspace.is_none() && plan.workspace() > 0 {
            args.workspace = Some(self.scratch(plan.workspace()).map_err(BindFailure::from)?);
        }
        let bound = plan.bind(args, &self.stream)?;
        self.shared.add_all(bound.operands.shared());
        self.acts.push(Act::Launch(Box::new(bound)));
        Ok(self)
    }

    /// Scratch memory of at least so many bytes; launches that were added before keep theirs.
    fn scratch(&mut self, bytes: u64) -> Result<Arc<Workspace>, WorkspaceError> {
        match &self.scratch {
            Some(scratch) if scratch.bytes() >= bytes => Ok(Arc::clone(scratch)),
            _ => Ok(Arc::clone(self.scratch.insert(Workspace::allocate(&self.stream, bytes)?))),
        }
    }

    /// Adds a copy of a slot into another of its size.
    ///
    /// # Errors
    ///
    /// [`LaunchesError::Arena`] if a slot is of another arena, or their sizes differ.
    pub fn copy<T: Element + DeviceRepr>(
        &mut self,
        from: &Slot<T>,
        to: &Slot<T>,
    ) -> Result<&mut Launches<'a>, LaunchesError> {
        if from.len() != to.len() {
            return Err(ArenaError::Length { slot: to.len(), given: from.len() }.into());
        }
        let (from, to, bytes) = (self.address(from)?, self.address(to)?, from.len() * size_of::<T>());
        let copy = move |stream: &Arc<CudaStream>| {
            // SAFETY: both slots are of the step's arena, which the step keeps and orders, and have so many bytes.
            Ok(unsafe { result::memcpy_dtod_async(to, from, bytes, stream.cu_stream()) }?)
        };
        self.acts.push(Act::Own(Box::new(copy)));
        Ok(self)
    }

    /// The address of a slot on the GPU, for [`Launches::queue`]. It never changes.
    ///
    /// # Errors
    ///
    /// [`LaunchesError::Arena`] if the slot is of another arena, which this step neither keeps nor orders.
    pub fn address<T: Element>(&self, slot: &Slot<T>) -> Result<u64, LaunchesError> {
        match Arc::ptr_eq(slot.memory(), self.arena.memory()) {
            true => Ok(slot.address()),
            false => Err(ArenaError::OtherArena.into()),
        }
    }

    /// Adds work of the caller's own: kernels of one's own, products of matrices. It is called to queue that work on
    /// the stream that it gets: by [`Launches::run`], and by a capture, which records it. [`Launches::address`] gives
    /// the addresses of slots; cudarc's own launch builder takes one as an argument of type `u64`.
    ///
    /// # Safety
    ///
    /// What it queues must stay inside the slots of this step's arena, and memory that lives as long as the step and
    /// that nothing else writes. It must queue on this stream alone, and nothing that reads memory of the host, which a
    /// replay would read again.
    pub unsafe fn queue(
        &mut self,
        work: impl FnMut(&Arc<CudaStream>) -> Result<(), Box<dyn Error + Send + Sync>> + Send + 'a,
    ) -> &mut Launches<'a> {
        self.acts.push(Act::Own(Box::new(work)));
        self
    }

    /// Queues everything, one by one. Run a step once before its capture if kernels of your own are loaded, or
    /// algorithms chosen, at the first launch.
    ///
    /// # Errors
    ///
    /// [`LaunchesError`]. Acts before the one that failed are queued.
    pub fn run(&mut self) -> Result<(), LaunchesError> {
        let stream = self.free()?;
        self.held(&stream, |acts, stream| queue(acts, stream))?
    }

    /// Captures the step as one CUDA graph. Nothing runs.
    ///
    /// # Errors
    ///
    /// [`LaunchesError`] if an act fails, or the driver refuses the capture: the default stream cannot be captured.
    pub fn capture(self) -> Result<LaunchGraph<'a>, LaunchesError> {
        let mut step = self;
        let graph = step.record(|stream| stream.end_capture(CUgraphInstantiate_flags(0)))?;
        Ok(LaunchGraph { graph, step })
    }

    /// The number of launches, for [`LaunchGraph::set_scalar`].
    #[must_use]
    pub fn launches(&self) -> usize {
        self.acts.iter().filter(|act| matches!(act, Act::Launch(_))).count()
    }

    /// The stream, if it can be launched on now.
    fn free(&self) -> Result<Arc<CudaStream>, LaunchesError> {
        for act in &self.acts {
            if let Act::Launch(bound) = act {
                ready(bound.plan().device(), &self.stream)?;
            }
        }
        self.stream.context().bind_to_thread().map_err(|e| driver_error("reach the GPU", &e))?;
        match is_captured(&self.stream) {
            true => Err(LaunchError::Captured.into()),
            false => Ok(Arc::clone(&self.stream)),
        }
    }

    /// Records all acts, and ends the capture with `end`.
    fn record<R>(
        &mut self,
        end: impl FnOnce(&Arc<CudaStream>) -> Result<Option<R>, DriverError>,
    ) -> Result<R, LaunchesError> {
        let stream = self.free()?;
        // The driver gives a graph that does nothing.
        if self.acts.is_empty() {
            return Err(empty());
        }
        let graph = recorded(&stream, || queue(&mut self.acts, &stream), || end(&stream))?;
        graph.ok_or_else(empty)
    }

    /// Runs `then` after earlier work on all memory of the step, and before later work.
    fn held<R>(
        &mut self,
        stream: &Arc<CudaStream>,
        then: impl FnOnce(&mut [Act<'a>], &Arc<CudaStream>) -> R,
    ) -> Result<R, LaunchError> {
        let Launches { acts, shared, .. } = self;
        bounds(acts).for_each(|bound| bound.operands.wait(stream));
        let locked = shared.lock(stream).map_err(|e| driver_error(WAIT, &e))?;
        let result = then(acts, stream);
        drop(locked);
        bounds(acts).for_each(|bound| bound.operands.queued(stream));
        stream.context().check_err().map_err(|e| driver_error("order the step among streams", &e))?;
        Ok(result)
    }
}

fn empty() -> LaunchesError {
    let detail = "there is nothing to capture: add launches first".to_owned();
    LaunchError::Driver { step: "capture", detail }.into()
}

fn bounds<'s, 'a>(acts: &'s mut [Act<'a>]) -> impl Iterator<Item = &'s mut Bound<'a>> {
    acts.iter_mut().filter_map(|act| match act {
        Act::Launch(bound) => Some(&mut **bound),
        Act::Own(_) => None,
    })
}

/// Queues acts on a stream that the caller has ordered, or is capturing.
fn queue(acts: &mut [Act<'_>], stream: &Arc<CudaStream>) -> Result<(), LaunchesError> {
    for (place, act) in acts.iter_mut().enumerate() {
        match act {
            // SAFETY: the stream is of the plans' context, which is current. Operands are held by the step, which
            // orders its run and every replay; the graph is dropped before the step.
            Act::Launch(bound) => unsafe { bound.raw.launch(stream.cu_stream().cast()) }?,
            Act::Own(work) => work(stream).map_err(|source| LaunchesError::Own { place, source })?,
        }
    }
    Ok(())
}

impl<'a> LaunchGraph<'a> {
    /// Queues a replay on the step's stream, after earlier work on its memory and before later work. It allocates
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`LaunchesError::Launch`] if the driver refuses the replay.
    pub fn launch(&mut self) -> Result<(), LaunchesError> {
        let LaunchGraph { graph, step } = self;
        let stream = step.free()?;
        let launched = step.held(&stream, |_, stream| {
            // SAFETY: graph and stream are alive, and of this context, which is current; `held` orders its memory.
            unsafe { result::graph::launch(graph.cu_graph_exec(), stream.cu_stream()) }
        })?;
        Ok(launched.map_err(|e| driver_error("launch the graph", &e))?)
    }

    /// Sets a scalar of a launch, counted from 0 in the order in which they were added, from the next replay on: the
    /// step is recorded again, and the driver puts what differs into the graph.
    ///
    /// # Errors
    ///
    /// [`LaunchesError::NoSuchLaunch`]; [`LaunchesError::Scalar`] if that plan has no such scalar or its type differs;
    /// [`LaunchesError`] if the step cannot be recorded again: the graph keeps the former value then.
    pub fn set_scalar<'n>(
        &mut self,
        launch: usize,
        which: impl Into<Which<'n>>,
        value: impl Into<Number>,
    ) -> Result<(), LaunchesError> {
        let LaunchGraph { graph, step } = self;
        let launches = step.launches();
        let bound = bounds(&mut step.acts).nth(launch).ok_or(LaunchesError::NoSuchLaunch { launch, launches })?;
        bound.set_scalar(which, value)?;
        // SAFETY: the stream is alive, and its capture is what ends here.
        let other = step.record(|stream| unsafe { RecordedGraph::end(stream) })?;
        // SAFETY: both graphs are alive, and this thread alone has them.
        if let Err(UpdateRefused(detail)) = unsafe { update(graph.cu_graph_exec(), &other) } {
            tracing::debug!(detail, "the graph of a step is made anew");
            *graph = step.record(|stream| stream.end_capture(CUgraphInstantiate_flags(0)))?;
        }
        Ok(())
    }

    /// Destroys the graph and returns the step.
    #[must_use]
    pub fn into_step(self) -> Launches<'a> {
        self.step
    }
}

impl fmt::Debug for Launches<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Launches({} acts, {} of them launches)", self.acts.len(), self.launches())
    }
}

impl fmt::Debug for LaunchGraph<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchGraph").field("step", &self.step).finish_non_exhaustive()
    }
}
