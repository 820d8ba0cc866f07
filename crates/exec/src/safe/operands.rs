//! Operands of a launch: cudarc's slices and views, borrowed or owned, with cudarc's order among streams.

use std::any::Any;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop,
};
use qkvault_graph::DType;

use crate::safe::arena::Slot;
use crate::safe::arena_memory::ArenaMemory;
use crate::safe::element::Element;

/// Device memory that a launch reads.
pub(crate) trait Readable {
    fn bytes(&self) -> u64;
    fn dtype(&self) -> Option<DType>;
    /// The stream that allocated the memory.
    fn home(&self) -> &Arc<CudaStream>;
    /// The address; the stream waits for earlier writes, and the guard records the read for later work.
    fn read<'s>(&'s self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>);
}

/// Device memory that a launch writes.
pub(crate) trait Writable: Readable {
    /// The address; the stream waits for earlier reads and writes, and the guard records the write for later work.
    fn write<'s>(&'s mut self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>);
}

/// A slice that belongs to a bound plan.
pub(crate) trait Owned: Writable + Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

macro_rules! readable {
    ($($slice:ty),+) => {$(
        impl<T: Element> Readable for $slice {
            fn bytes(&self) -> u64 {
                self.num_bytes() as u64
            }

            fn dtype(&self) -> Option<DType> {
                T::DTYPE
            }

            fn home(&self) -> &Arc<CudaStream> {
                self.stream()
            }

            fn read<'s>(&'s self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
                self.device_ptr(stream)
            }
        }
    )+};
}

readable!(CudaSlice<T>, CudaView<'_, T>, CudaViewMut<'_, T>);

impl<T: Element> Writable for CudaSlice<T> {
    fn write<'s>(&'s mut self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        self.device_ptr_mut(stream)
    }
}

impl<T: Element> Writable for CudaViewMut<'_, T> {
    fn write<'s>(&'s mut self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        self.device_ptr_mut(stream)
    }
}

impl<T: Element> Owned for CudaSlice<T> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// An exclusive borrow whose lifetime can be shortened, as that of a plain `&'a mut` can.
///
/// `&'a mut (dyn Writable + 'a)` would not let arguments with longer borrows join others with shorter ones.
pub(crate) struct Exclusive<'a> {
    slice: NonNull<dyn Writable + Send>,
    _borrow: PhantomData<&'a mut ()>,
}

// SAFETY: an exclusive borrow of a value that is `Send`.
unsafe impl Send for Exclusive<'_> {}

impl<'a> Exclusive<'a> {
    fn new(slice: &'a mut (dyn Writable + Send + 'a)) -> Exclusive<'a> {
        let slice: NonNull<dyn Writable + Send + 'a> = NonNull::from(slice);
        // SAFETY: the two types differ in a lifetime alone, and `_borrow` ends every use with the borrow. Nothing can
        // be stored through a reference to a value of unknown size, so that shortening the lifetime lets in nothing
        // shorter.
        let slice = unsafe {
            std::mem::transmute::<NonNull<dyn Writable + Send + 'a>, NonNull<dyn Writable + Send + 'static>>(slice)
        };
        Exclusive { slice, _borrow: PhantomData }
    }

    fn get(&self) -> &(dyn Writable + Send) {
        // SAFETY: borrowed exclusively by this value, as long as it lives.
        unsafe { self.slice.as_ref() }
    }

    fn get_mut(&mut self) -> &mut (dyn Writable + Send) {
        // SAFETY: borrowed exclusively by this value, which is borrowed exclusively here.
        unsafe { self.slice.as_mut() }
    }
}

/// A slice of an arena.
pub(crate) struct SlotOperand {
    pub(crate) memory: Arc<ArenaMemory>,
    address: u64,
    bytes: u64,
    dtype: Option<DType>,
}

impl SlotOperand {
    fn from_slot<T: Element>(slot: &Slot<T>) -> SlotOperand {
        let bytes = (slot.len() * size_of::<T>()) as u64;
        SlotOperand { memory: Arc::clone(slot.memory()), address: slot.address(), bytes, dtype: T::DTYPE }
    }
}

/// How arguments hold an operand.
pub(crate) enum HeldOperand<'a> {
    Shared(&'a (dyn Readable + Sync + 'a)),
    Exclusive(Exclusive<'a>),
    Counted(Arc<dyn Readable + Send + Sync>),
    Owned(Box<dyn Owned>),
    /// A slice of an arena, which the arena's lock orders.
    Slot(SlotOperand),
    /// An address that the caller promises to be valid.
    Address {
        address: u64,
        bytes: u64,
    },
}

impl HeldOperand<'_> {
    /// Whether a launch may write to the operand.
    pub(crate) const fn writable(&self) -> bool {
        matches!(
            self,
            HeldOperand::Exclusive(_) | HeldOperand::Owned(_) | HeldOperand::Slot(_) | HeldOperand::Address { .. }
        )
    }

    fn readable(&self) -> Option<&dyn Readable> {
        match self {
            HeldOperand::Shared(slice) => Some(*slice),
            HeldOperand::Exclusive(slice) => Some(slice.get()),
            HeldOperand::Counted(slice) => Some(&**slice),
            HeldOperand::Owned(slice) => Some(&**slice),
            HeldOperand::Slot(_) | HeldOperand::Address { .. } => None,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self {
            HeldOperand::Slot(SlotOperand { bytes, .. }) | HeldOperand::Address { bytes, .. } => *bytes,
            held => held.readable().map_or(0, Readable::bytes),
        }
    }

    pub(crate) fn dtype(&self) -> Option<DType> {
        match self {
            HeldOperand::Slot(slot) => slot.dtype,
            held => held.readable().and_then(Readable::dtype),
        }
    }

    /// The context of the memory, where cudarc knows it.
    pub(crate) fn context(&self) -> Option<&Arc<CudaContext>> {
        match self {
            HeldOperand::Slot(slot) => Some(slot.memory.context()),
            held => held.readable().map(|slice| slice.home().context()),
        }
    }

    /// The arena of a slot.
    pub(crate) const fn arena(&self) -> Option<&Arc<ArenaMemory>> {
        match self {
            HeldOperand::Slot(slot) => Some(&slot.memory),
            _ => None,
        }
    }

    /// The address, in the order of the stream that allocated the memory.
    pub(crate) fn address(&mut self) -> u64 {
        match self.readable().map(|slice| Arc::clone(slice.home())) {
            Some(home) => self.acquire(&home).0,
            None => self.acquire_nothing(),
        }
    }

    const fn acquire_nothing(&self) -> u64 {
        match self {
            HeldOperand::Slot(SlotOperand { address, .. }) | HeldOperand::Address { address, .. } => *address,
            _ => 0,
        }
    }

    /// The address; the stream waits for earlier work on the operand, and the guard records the launch for later work.
    pub(crate) fn acquire<'s>(&'s mut self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        match self {
            HeldOperand::Shared(slice) => slice.read(stream),
            HeldOperand::Exclusive(slice) => slice.get_mut().write(stream),
            HeldOperand::Counted(slice) => slice.read(stream),
            HeldOperand::Owned(slice) => slice.write(stream),
            HeldOperand::Slot(SlotOperand { address, .. }) | HeldOperand::Address { address, .. } => {
                (*address, SyncOnDrop::Record(None))
            }
        }
    }
}

mod sealed {
    /// Only the types of this module are operands.
    pub trait Sealed {}
}

use sealed::Sealed;

/// An operand that a launch reads: `&CudaSlice`, `&CudaView`, a [`Slot`] of an arena, or owned, an `Arc<CudaSlice>` or
/// a `CudaSlice`.
///
/// Memory that a bound plan or a captured graph owns is read and written through them
/// ([`Bound::slice`](crate::Bound::slice)).
pub trait Input<'a>: Sealed {
    #[doc(hidden)]
    fn held(self) -> HeldInput<'a>;
}

/// An operand that a launch writes: `&mut CudaSlice`, `&mut CudaViewMut`, a [`Slot`] of an arena, or owned, a
/// `CudaSlice`.
pub trait Output<'a>: Sealed {
    #[doc(hidden)]
    fn held(self) -> HeldOutput<'a>;
}

/// An input as arguments hold it.
#[doc(hidden)]
pub struct HeldInput<'a>(pub(crate) HeldOperand<'a>);

/// An output as arguments hold it.
#[doc(hidden)]
pub struct HeldOutput<'a>(pub(crate) HeldOperand<'a>);

macro_rules! operands {
    ($([$($generics:tt)*] $kind:ident $slice:ty, $result:ident, |$this:ident| $held:expr;)+) => {$(
        impl<$($generics)*> $kind<'a> for $slice {
            #[inline]
            fn held(self) -> $result<'a> {
                let $this = self;
                $result($held)
            }
        }
    )+};
}

impl<T: Element> Sealed for &CudaSlice<T> {}
impl<T: Element> Sealed for &CudaView<'_, T> {}
impl<T: Element> Sealed for &mut CudaSlice<T> {}
impl<T: Element> Sealed for &mut CudaViewMut<'_, T> {}
impl<T: Element> Sealed for Arc<CudaSlice<T>> {}
impl<T: Element> Sealed for &Arc<CudaSlice<T>> {}
impl<T: Element> Sealed for CudaSlice<T> {}
impl<T: Element> Sealed for &Slot<T> {}

operands! {
    ['a, T: Element] Input &'a CudaSlice<T>, HeldInput, |slice| HeldOperand::Shared(slice);
    ['a, 'b: 'a, T: Element] Input &'a CudaView<'b, T>, HeldInput, |slice| HeldOperand::Shared(slice);
    ['a, T: Element] Input Arc<CudaSlice<T>>, HeldInput, |slice| HeldOperand::Counted(slice);
    ['a, T: Element] Input &'a Arc<CudaSlice<T>>, HeldInput, |slice| HeldOperand::Shared(&**slice);
    ['a, T: Element] Input CudaSlice<T>, HeldInput, |slice| HeldOperand::Owned(Box::new(slice));
    ['a, 'b, T: Element] Input &'b Slot<T>, HeldInput, |slot| HeldOperand::Slot(SlotOperand::from_slot(slot));
    ['a, 'b, T: Element] Output &'b Slot<T>, HeldOutput, |slot| HeldOperand::Slot(SlotOperand::from_slot(slot));
    ['a, T: Element] Output &'a mut CudaSlice<T>, HeldOutput, |slice| HeldOperand::Exclusive(Exclusive::new(slice));
    ['a, 'b: 'a, T: Element] Output &'a mut CudaViewMut<'b, T>, HeldOutput, |slice| HeldOperand::Exclusive(Exclusive::new(slice));
    ['a, T: Element] Output CudaSlice<T>, HeldOutput, |slice| HeldOperand::Owned(Box::new(slice));
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::safe::args::Args;

    /// Slices and views of both kinds are operands: this compiles.
    #[allow(dead_code)]
    fn all_kinds<'a>(
        q: &'a CudaSlice<bf16>,
        k: &'a CudaView<'a, f16>,
        v: Arc<CudaSlice<bf16>>,
        o: &'a mut CudaSlice<u8>,
        stats: &'a mut CudaViewMut<'a, f32>,
    ) -> ([HeldInput<'a>; 3], [HeldOutput<'a>; 2]) {
        ([Input::held(q), Input::held(k), Input::held(v)], [Output::held(o), Output::held(stats)])
    }

    /// Arguments with long borrows join shorter ones: this compiles.
    #[allow(dead_code)]
    fn shortened<'a>(long: Args<'static>, o: &'a mut CudaSlice<bf16>) -> Args<'a> {
        long.o(o)
    }

    #[test]
    fn bytes_stand_for_any_type_and_others_for_their_own() {
        assert_eq!((u8::DTYPE, bf16::DTYPE, i64::DTYPE), (None, Some(DType::BF16), Some(DType::I64)));
    }
}
