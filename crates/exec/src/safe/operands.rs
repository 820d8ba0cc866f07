//! Binding with cudarc's slices: typed, borrowed for as long as they are bound, ordered by cudarc's events at every launch.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use half::{bf16, f16};
use qkvault_graph::{DType, Role};

use crate::bindings::{Number, Operand, RawBindings};
use crate::safe::tracked::{StepMemory, Tracked};
use crate::safe::workspace::Workspace;

/// A Rust type that stands for element types of operands.
pub trait Element: 'static {
    /// The element type; `None` for bytes, which say nothing of what they hold and are taken for any.
    const DTYPE: Option<DType>;
}

macro_rules! elements {
    ($($rust:ty => $dtype:expr),+ $(,)?) => {$(
        impl Element for $rust {
            const DTYPE: Option<DType> = $dtype;
        }
    )+};
}

elements!(
    f16 => Some(DType::F16),
    bf16 => Some(DType::BF16),
    f32 => Some(DType::F32),
    i32 => Some(DType::I32),
    i64 => Some(DType::I64),
    u8 => None,
);

struct Read<'a, T, S>(&'a S, PhantomData<fn() -> T>);
struct Write<'a, T, S>(&'a mut S, PhantomData<fn() -> T>);

impl<T, S: DevicePtr<T> + Sync> Tracked for Read<'_, T, S> {
    fn acquire<'s>(&'s mut self, stream: &'s CudaStream) -> SyncOnDrop<'s> {
        self.0.device_ptr(stream).1
    }
}

impl<T, S: DevicePtrMut<T> + Send> Tracked for Write<'_, T, S> {
    fn acquire<'s>(&'s mut self, stream: &'s CudaStream) -> SyncOnDrop<'s> {
        self.0.device_ptr_mut(stream).1
    }
}

/// Slices and scalars for a plan's roles, in any order.
///
/// Inputs are borrowed shared and outputs exclusively, for as long as the bound plan lives.
#[derive(Default)]
pub struct Bindings<'a> {
    pub(crate) raw: RawBindings,
    pub(crate) tracked: Vec<Box<dyn Tracked + 'a>>,
    pub(crate) workspace: Option<Arc<Workspace>>,
    pub(crate) batch: Option<Arc<StepMemory>>,
}

impl<'a> Bindings<'a> {
    /// Nothing bound yet.
    #[must_use]
    pub fn new() -> Bindings<'a> {
        Bindings::default()
    }

    /// Binds an operand that is read: a [`CudaSlice`](cudarc::driver::CudaSlice) or a view of one.
    #[must_use]
    pub fn slice<T: Element, S: DevicePtr<T> + Sync>(mut self, role: Role, slice: &'a S) -> Bindings<'a> {
        let bytes = slice.num_bytes() as u64;
        let address = slice.device_ptr(slice.stream()).0;
        self.raw = self.raw.operand(operand::<T>(role, address, bytes, false));
        self.tracked.push(Box::new(Read(slice, PhantomData::<fn() -> T>)));
        self
    }

    /// Binds an operand that is written.
    #[must_use]
    pub fn slice_mut<T: Element, S: DevicePtrMut<T> + Send>(mut self, role: Role, slice: &'a mut S) -> Bindings<'a> {
        let bytes = slice.num_bytes() as u64;
        let stream = Arc::clone(slice.stream());
        let address = slice.device_ptr_mut(&stream).0;
        self.raw = self.raw.operand(operand::<T>(role, address, bytes, true));
        self.tracked.push(Box::new(Write(slice, PhantomData::<fn() -> T>)));
        self
    }

    /// Gives a scalar its value; [`f32`], [`i32`] and [`i64`] convert by themselves.
    #[must_use]
    pub fn scalar(mut self, role: Role, value: impl Into<Number>) -> Bindings<'a> {
        self.raw = self.raw.scalar(role, value);
        self
    }

    /// Binds an operand by address, of which `bytes` belong to it.
    ///
    /// # Safety
    ///
    /// The memory must stay valid, and be used by nothing that a launch would conflict with, until every launch of the bound plan is finished.
    #[must_use]
    pub unsafe fn tensor(mut self, role: Role, address: u64, bytes: u64) -> Bindings<'a> {
        self.raw = self.raw.tensor(role, address, bytes);
        self
    }

    /// Says that two operands lie interleaved in one buffer: see [`raw::RawBindings::interleaved`](crate::raw::RawBindings::interleaved).
    #[must_use]
    pub fn interleaved(mut self, a: Role, b: Role) -> Bindings<'a> {
        self.raw = self.raw.interleaved(a, b);
        self
    }

    /// Uses scratch memory that other bound plans use too. Without this, binding allocates what the plan needs.
    #[must_use]
    pub fn workspace(mut self, workspace: &Arc<Workspace>) -> Bindings<'a> {
        self.workspace = Some(Arc::clone(workspace));
        self
    }
}

fn operand<T: Element>(role: Role, address: u64, bytes: u64, writable: bool) -> Operand {
    Operand { role, address, bytes, dtype: T::DTYPE, writable }
}

impl fmt::Debug for Bindings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bindings").field("raw", &self.raw).field("workspace", &self.workspace).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::driver::{CudaSlice, CudaView, CudaViewMut};

    /// Slices and views of both kinds are taken; compiling it is the test.
    #[allow(dead_code)]
    fn all_kinds<'a>(
        q: &'a CudaSlice<bf16>,
        k: &'a CudaView<'a, f16>,
        o: &'a mut CudaSlice<u8>,
        stats: &'a mut CudaViewMut<'a, f32>,
    ) -> Bindings<'a> {
        Bindings::new()
            .slice(Role::Q, q)
            .slice(Role::K, k)
            .slice_mut(Role::O, o)
            .slice_mut(Role::Stats, stats)
            .scalar(Role::Scale, 1.0_f32)
    }

    #[test]
    fn bytes_stand_for_any_type_and_others_for_their_own() {
        assert_eq!((u8::DTYPE, bf16::DTYPE, i64::DTYPE), (None, Some(DType::BF16), Some(DType::I64)));
    }
}
