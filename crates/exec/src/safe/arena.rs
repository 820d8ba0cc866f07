//! Memory that the launches of a step share: its slices are ordered among streams as one.
//!
//! A step writes what its next launch reads, over and over, in the order of one stream. Borrows cannot say so of a CUDA
//! graph, which would hold all of them for its life, and an event for each slice costs a microsecond of the host. So an
//! arena owns the slices, launches name them by [`Slot`], and one lock and one order stand for all.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{
    CudaSlice, CudaStream, CudaViewMut, DevicePtrMut as _, DeviceRepr, DriverError, PinnedHostSlice, ValidAsZeroBits,
};

use crate::driver::words::of_cudarc;
use crate::safe::arena_memory::{ArenaMemory, ArenaSlices};
use crate::safe::element::Element;
use crate::safe::order::{Uses, is_captured};

/// Why the memory of an arena was not made, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The stream is being captured.
    #[error("the stream is being captured; read and write an arena outside a capture: replays use what it holds then")]
    Captured,
    /// The stream or the slice is of another context.
    #[error("the stream or the slice is of another context, on GPU {found}; an arena takes those of its own")]
    OtherContext {
        /// Ordinal of the other GPU.
        found: usize,
    },
    /// The slot is of another arena.
    #[error("the slot is of another arena than the launches; take slots of the arena that Launches::new got")]
    OtherArena,
    /// There are too many or too few numbers.
    #[error("the slot has {slot} elements, and {given} came; give as many as it has")]
    Length {
        /// Elements of the slot.
        slot: usize,
        /// Elements that came.
        given: usize,
    },
    /// The driver refused.
    #[error("the memory of an arena could not be {step}: {detail}")]
    Driver {
        /// The step that failed.
        step: &'static str,
        /// The error of the driver.
        detail: String,
    },
}

fn driver(step: &'static str) -> impl FnOnce(DriverError) -> ArenaError {
    move |error| ArenaError::Driver { step, detail: of_cudarc(&error) }
}

/// Memory that the launches of a step share.
///
/// Launches name its slices by [`Slot`], as inputs and as outputs: at once ([`LoadedPlan::launch`]), bound
/// ([`LoadedPlan::bind`]) or in a graph ([`Launches`](crate::Launches)). One slot may be an operand of any number of
/// bound plans and graphs, also an output. Launches that use an arena run one after the other, also on several streams,
/// as those that share a [`Workspace`](crate::Workspace) do: take an arena for each step that runs at the same time.
///
/// Clones are the same arena. The memory lives as long as one of them, one of its slots, or a plan bound to a slot.
///
/// [`LoadedPlan::launch`]: crate::LoadedPlan::launch
/// [`LoadedPlan::bind`]: crate::LoadedPlan::bind
#[derive(Clone)]
pub struct Arena {
    memory: Arc<ArenaMemory>,
    home: Arc<CudaStream>,
}

/// A slice of an [`Arena`], by name. Clones are the same memory.
pub struct Slot<T> {
    memory: Arc<ArenaMemory>,
    /// The place among the arena's slices, and the first element in it.
    place: usize,
    start: usize,
    address: u64,
    elements: usize,
    element: PhantomData<fn() -> T>,
}

impl Arena {
    /// An arena without slices, which allocates on this stream.
    #[must_use]
    pub fn new(stream: &Arc<CudaStream>) -> Arena {
        Arena { memory: ArenaMemory::new(stream), home: Arc::clone(stream) }
    }

    /// Allocates a slice of zeros.
    ///
    /// # Errors
    ///
    /// [`ArenaError::Driver`] without memory.
    pub fn zeros<T: Element + DeviceRepr + ValidAsZeroBits>(&self, elements: usize) -> Result<Slot<T>, ArenaError> {
        self.keep(self.home.alloc_zeros::<T>(elements).map_err(driver("allocated"))?)
    }

    /// Allocates a slice with these numbers.
    ///
    /// # Errors
    ///
    /// [`ArenaError::Driver`] without memory.
    pub fn upload<T: Element + DeviceRepr>(&self, numbers: &[T]) -> Result<Slot<T>, ArenaError> {
        self.keep(self.home.clone_htod(numbers).map_err(driver("allocated"))?)
    }

    /// Takes a slice into the arena, after all work on it that cudarc knows of.
    ///
    /// # Errors
    ///
    /// [`ArenaError::OtherContext`] for a slice of another context; [`ArenaError::Captured`] while its stream is
    /// captured; [`ArenaError::Driver`] if the driver cannot order that work.
    pub fn keep<T: Element>(&self, slice: CudaSlice<T>) -> Result<Slot<T>, ArenaError> {
        let (home, elements, mut slice) = (Arc::clone(slice.stream()), slice.len(), slice);
        let mut inner = self.memory.lock();
        ordered(&self.memory, &mut inner.uses, &home)?;
        // The home waits for the slice's own events, and is what the next use of the arena waits for.
        let address = slice.device_ptr_mut(&home).0;
        let place = inner.slices.len();
        inner.slices.push((Box::new(slice), home));
        Ok(Slot { memory: Arc::clone(&self.memory), place, start: 0, address, elements, element: PhantomData })
    }

    /// Page-locked memory of the host with zeros, for copies by [`Slot::with`] that the host does not wait for: cudarc
    /// waits for them when the numbers are read or written.
    ///
    /// # Errors
    ///
    /// [`ArenaError::Driver`] without memory.
    pub fn pinned<T: DeviceRepr + ValidAsZeroBits>(&self, elements: usize) -> Result<PinnedHostSlice<T>, ArenaError> {
        // SAFETY: the memory is written below, before anyone reads it.
        let mut pinned = unsafe { self.home.context().alloc_pinned_with_flags::<T>(elements, 0) }
            .map_err(driver("allocated on the host"))?;
        let first = pinned.as_mut_ptr().map_err(driver("reached"))?;
        // SAFETY: there are so many elements, no one else has them, and zeros are a value of the type.
        unsafe { first.write_bytes(0, elements) };
        Ok(pinned)
    }

    pub(crate) const fn memory(&self) -> &Arc<ArenaMemory> {
        &self.memory
    }
}

/// Makes a stream wait for every use of the arena.
fn ordered(memory: &ArenaMemory, uses: &mut Uses, stream: &Arc<CudaStream>) -> Result<(), ArenaError> {
    if stream.context().cu_ctx() != memory.context().cu_ctx() {
        return Err(ArenaError::OtherContext { found: stream.context().ordinal() });
    }
    stream.context().bind_to_thread().map_err(driver("reached"))?;
    if is_captured(stream) {
        return Err(ArenaError::Captured);
    }
    uses.write(stream).map_err(driver("ordered after the work before"))
}

impl<T: Element> Slot<T> {
    /// The number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.elements
    }

    /// Whether it has no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// The address on the GPU, which never changes: for kernels of one's own.
    /// [`Launches::address`](crate::Launches::address) checks the arena too.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// A part of the slot, by its elements: an operand as the whole is.
    ///
    /// # Errors
    ///
    /// [`ArenaError::Length`] if the range ends behind the slot.
    pub fn part(&self, range: Range<usize>) -> Result<Slot<T>, ArenaError> {
        if range.start > range.end || range.end > self.elements {
            return Err(ArenaError::Length { slot: self.elements, given: range.end.max(range.start) });
        }
        let (start, address) = (self.start + range.start, self.address + (range.start * size_of::<T>()) as u64);
        Ok(Slot { start, address, elements: range.len(), ..self.clone() })
    }

    /// Works on the slice, with what cudarc offers for views, after all earlier launches of the arena and before all
    /// later ones. Queue the work on this stream. `work` must not launch anything that uses the arena: it would wait
    /// for itself.
    ///
    /// # Errors
    ///
    /// [`ArenaError`] for a stream of another context or one that is captured, or if the driver refuses to order the
    /// work; and the error of `work`.
    pub fn with<R, E: From<ArenaError>>(
        &self,
        stream: &Arc<CudaStream>,
        work: impl FnOnce(CudaViewMut<'_, T>) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut inner = self.memory.lock();
        let ArenaSlices { slices, uses } = &mut *inner;
        ordered(&self.memory, uses, stream)?;
        let slice = slices[self.place].0.downcast_mut::<CudaSlice<T>>().expect("of the slot's type");
        // Other streams that `work` uses wait for the arena, and this one waits for them.
        drop(slice.device_ptr_mut(stream));
        let result = work(slice.slice_mut(self.start..self.start + self.elements));
        drop(slice.device_ptr_mut(stream));
        result
    }

    /// Writes numbers, which are copied when the call returns.
    ///
    /// # Errors
    ///
    /// [`ArenaError::Length`] for another number of them; [`ArenaError`] as for [`Slot::with`].
    pub fn write(&self, stream: &Arc<CudaStream>, numbers: &[T]) -> Result<(), ArenaError>
    where
        T: DeviceRepr,
    {
        if numbers.len() != self.elements {
            return Err(ArenaError::Length { slot: self.elements, given: numbers.len() });
        }
        self.with(stream, |mut view| stream.memcpy_htod(numbers, &mut view).map_err(driver("written")))
    }

    /// Reads the numbers, after all launches so far.
    ///
    /// # Errors
    ///
    /// [`ArenaError`], as for [`Slot::with`].
    pub fn read(&self, stream: &Arc<CudaStream>) -> Result<Vec<T>, ArenaError>
    where
        T: DeviceRepr,
    {
        self.with(stream, |view| stream.clone_dtoh(&view).map_err(driver("read")))
    }

    pub(crate) const fn memory(&self) -> &Arc<ArenaMemory> {
        &self.memory
    }
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Slot<T> {
        Slot { memory: Arc::clone(&self.memory), element: PhantomData, ..*self }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} slices)", self.memory.lock().slices.len())
    }
}

impl<T> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({} elements at {:#x})", self.elements, self.address)
    }
}
