//! The operands of a bound plan, which a launch orders: slices of cudarc, a workspace, and the metadata of a batch.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtrMut, DriverError, SyncOnDrop};
use qkvault_graph::Role;
use smallvec::SmallVec;

use crate::safe::arena_memory::{ArenaMemory, ArenaSlices};
use crate::safe::operands::{HeldOperand, Owned};
use crate::safe::order::{Uses, same};
use crate::safe::workspace::{Workspace, WorkspaceMemory};

/// The metadata of a batch on the device. Its lock orders updates with the launches that read it.
pub(crate) struct StepMemory {
    inner: Mutex<StepWords>,
    address: u64,
    context: Arc<CudaContext>,
}

pub(crate) struct StepWords {
    pub(crate) words: CudaSlice<i32>,
    pub(crate) uses: Uses,
}

impl StepMemory {
    pub(crate) fn upload(stream: &Arc<CudaStream>, words: &[i32]) -> Result<StepMemory, DriverError> {
        let mut words = stream.clone_htod(words)?;
        let address = words.device_ptr_mut(stream).0;
        let inner = Mutex::new(StepWords { words, uses: Uses::written(stream) });
        Ok(StepMemory { inner, address, context: Arc::clone(stream.context()) })
    }

    /// The address of the block, which never changes.
    pub(crate) const fn address(&self) -> u64 {
        self.address
    }

    pub(crate) const fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, StepWords> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StepWords {
    fn drop(&mut self) {
        // The memory is freed on the stream that allocated it, after every launch that reads it.
        let home = Arc::clone(cudarc::driver::DeviceSlice::stream(&self.words));
        home.context().record_err(self.uses.write(&home));
    }
}

/// The metadata of a batch: its memory, and the place of each operand in it.
pub(crate) struct BatchArgs {
    pub(crate) memory: Arc<StepMemory>,
    pub(crate) operands: SmallVec<[(Role, u64, u64); 6]>,
}

/// The event with which cudarc orders a slice.
///
/// It is a field of the slice, which a [`TrackedOperand`] holds by reference, or owns in a box or an `Arc`: it does
/// not move.
#[derive(Clone, Copy)]
struct SliceEvent(NonNull<CudaEvent>);

// SAFETY: a shared reference to a `CudaEvent`, which is `Send` and `Sync`, for as long as the operand holds the slice.
unsafe impl Send for SliceEvent {}

/// An operand of a bound plan.
struct TrackedOperand<'a> {
    role: Role,
    held: HeldOperand<'a>,
    event: Option<SliceEvent>,
    /// Whether the stream of the last launch has waited for what others did with the slice. While the operand is held
    /// no one else can write it, nor read what a launch writes, so once is enough.
    waited: bool,
}

impl TrackedOperand<'_> {
    /// Makes the stream wait for earlier work on the slice, and notes its event.
    fn wait(&mut self, stream: &CudaStream) {
        let mut guard = self.held.acquire(stream).1;
        if let SyncOnDrop::Record(record) = &mut guard {
            // Taken out: the event is recorded after the launch.
            self.event = record.take().map(|(event, _)| SliceEvent(NonNull::from(event)));
        }
        self.waited = true;
    }

    /// Records the launches so far for later work on the slice.
    fn record(&self, stream: &CudaStream) {
        if let Some(SliceEvent(event)) = self.event.filter(|_| stream.context().is_managing_stream_synchronization()) {
            // SAFETY: the slice, of which the event is a field, is held by this operand.
            stream.context().record_err(unsafe { event.as_ref() }.record(stream));
        }
    }

    /// Whether others can reach the slice while the operand is held, or without its being dropped.
    const fn is_borrowed(&self) -> bool {
        matches!(self.held, HeldOperand::Shared(_) | HeldOperand::Exclusive(_))
    }
}

/// What launches share with others, each once: its lock orders it among streams.
#[derive(Default)]
pub(crate) struct Shared {
    workspaces: SmallVec<[Arc<Workspace>; 1]>,
    batches: SmallVec<[Arc<StepMemory>; 1]>,
    arenas: SmallVec<[Arc<ArenaMemory>; 1]>,
}

/// What is locked while a launch is queued.
pub(crate) struct Locked<'s> {
    _workspaces: SmallVec<[MutexGuard<'s, WorkspaceMemory>; 1]>,
    _batches: SmallVec<[MutexGuard<'s, StepWords>; 1]>,
    _arenas: SmallVec<[MutexGuard<'s, ArenaSlices>; 1]>,
}

/// Adds what is not there yet, by its place in memory: threads that lock several do so in one order.
fn add<T>(list: &mut SmallVec<[Arc<T>; 1]>, one: &Arc<T>) {
    if let Err(place) = list.binary_search_by_key(&Arc::as_ptr(one), Arc::as_ptr) {
        list.insert(place, Arc::clone(one));
    }
}

impl Shared {
    pub(crate) fn add_workspace(&mut self, workspace: &Arc<Workspace>) {
        add(&mut self.workspaces, workspace);
    }

    pub(crate) fn add_batch(&mut self, batch: &Arc<StepMemory>) {
        add(&mut self.batches, batch);
    }

    pub(crate) fn add_arena(&mut self, arena: &Arc<ArenaMemory>) {
        add(&mut self.arenas, arena);
    }

    pub(crate) fn add_all(&mut self, others: &Shared) {
        others.workspaces.iter().for_each(|one| self.add_workspace(one));
        others.batches.iter().for_each(|one| self.add_batch(one));
        others.arenas.iter().for_each(|one| self.add_arena(one));
    }

    /// Makes a stream wait for earlier uses, and keeps others from using it until what is returned is dropped.
    pub(crate) fn lock(&self, stream: &Arc<CudaStream>) -> Result<Locked<'_>, DriverError> {
        let Shared { workspaces, batches, arenas } = self;
        let mut workspaces: SmallVec<[_; 1]> = workspaces.iter().map(|one| one.lock()).collect();
        workspaces.iter_mut().try_for_each(|one| one.uses.write(stream))?;
        let mut batches: SmallVec<[_; 1]> = batches.iter().map(|one| one.lock()).collect();
        batches.iter_mut().try_for_each(|one| one.uses.read(stream))?;
        let mut arenas: SmallVec<[_; 1]> = arenas.iter().map(|one| one.lock()).collect();
        arenas.iter_mut().try_for_each(|one| one.uses.write(stream))?;
        Ok(Locked { _workspaces: workspaces, _batches: batches, _arenas: arenas })
    }
}

/// The operands of a bound plan.
pub(crate) struct TrackedOperands<'a> {
    all: Vec<TrackedOperand<'a>>,
    workspace: Option<Arc<Workspace>>,
    shared: Shared,
    /// The stream of the last launch.
    on: Option<Arc<CudaStream>>,
    /// Whether launches on that stream are not yet recorded for owned slices.
    unrecorded: bool,
}

impl<'a> TrackedOperands<'a> {
    pub(crate) fn new(
        held: impl Iterator<Item = (Role, HeldOperand<'a>)>,
        workspace: Option<Arc<Workspace>>,
        batch: Option<Arc<StepMemory>>,
    ) -> TrackedOperands<'a> {
        let mut shared = Shared::default();
        workspace.iter().for_each(|one| shared.add_workspace(one));
        batch.iter().for_each(|one| shared.add_batch(one));
        let track = |(role, held): (Role, HeldOperand<'a>)| {
            held.arena().into_iter().for_each(|arena| shared.add_arena(arena));
            TrackedOperand { role, held, event: None, waited: false }
        };
        let all = held.map(track).collect();
        TrackedOperands { all, workspace, shared, on: None, unrecorded: false }
    }

    pub(crate) const fn workspace(&self) -> Option<&Arc<Workspace>> {
        self.workspace.as_ref()
    }

    pub(crate) const fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Runs `then`, which queues a launch on the stream, after earlier work on the operands and before later work. It
    /// allocates nothing.
    pub(crate) fn hold<R>(&mut self, stream: &Arc<CudaStream>, then: impl FnOnce() -> R) -> Result<R, DriverError> {
        self.wait(stream);
        let locked = self.shared.lock(stream)?;
        let result = then();
        drop(locked);
        self.queued(stream);
        Ok(result)
    }

    /// Makes the stream wait for earlier work on the slices.
    pub(crate) fn wait(&mut self, stream: &Arc<CudaStream>) {
        if self.on.as_deref().is_none_or(|on| !same(on, stream)) {
            self.settle();
            self.on = Some(Arc::clone(stream));
            self.all.iter_mut().for_each(|operand| operand.waited = false);
        }
        for operand in self.all.iter_mut().filter(|operand| !operand.waited) {
            operand.wait(stream);
        }
    }

    /// Notes that a launch was queued on the stream, for later work on the slices.
    pub(crate) fn queued(&mut self, stream: &CudaStream) {
        self.unrecorded = true;
        // A borrow can end without a drop (`std::mem::forget`), so its event is recorded now.
        for operand in self.all.iter().filter(|operand| operand.is_borrowed()) {
            operand.record(stream);
        }
    }

    /// The owned slice of a role. The next launch waits for what is done with it.
    pub(crate) fn owned(&mut self, role: Role) -> Option<&mut (dyn Owned + 'static)> {
        self.settle();
        let operand = self.all.iter_mut().find(|operand| operand.role == role)?;
        operand.waited = false;
        match &mut operand.held {
            HeldOperand::Owned(slice) => Some(&mut **slice),
            _ => None,
        }
    }

    /// Records the launches so far for owned slices.
    fn settle(&mut self) {
        let Some(on) = self.on.as_deref().filter(|_| self.unrecorded) else { return };
        for operand in self.all.iter().filter(|operand| !operand.is_borrowed()) {
            operand.record(on);
        }
        self.unrecorded = false;
    }
}

impl Drop for TrackedOperands<'_> {
    fn drop(&mut self) {
        self.settle();
    }
}
