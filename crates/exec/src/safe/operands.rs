//! Bindings with cudarc's slices: typed, borrowed while they are bound, ordered by cudarc's events at every launch.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use half::{bf16, f16};
use qkvault_graph::{DType, Role};

use crate::bindings::{Number, Operand, RawBindings};
use crate::safe::tracked::{StepMemory, Tracked};
use crate::safe::workspace::Workspace;

/// A Rust type of operands' elements.
pub trait Element: 'static {
    /// The element type; `None` for bytes, which binding accepts for any element type.
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

/// Slices and scalars of a plan's roles, in any order.
///
/// Inputs are borrowed shared and outputs exclusively, for the life of the bound plan.
///
/// ```no_run
/// # use qkvault_exec::{Bindings, LoadedPlan, cudarc};
/// # use qkvault_graph::Role;
/// # fn run(
/// #     plan: &LoadedPlan, stream: &std::sync::Arc<cudarc::driver::CudaStream>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let zeros = || stream.alloc_zeros::<half::bf16>(8 * 512 * 128);
/// let (q, k, v, mut o) = (zeros()?, zeros()?, zeros()?, zeros()?);
/// let bindings = Bindings::new()
///     .slice(Role::Q, &q)
///     .slice(Role::K, &k)
///     .slice(Role::V, &v)
///     .slice_mut(Role::O, &mut o)
///     .scalar(Role::Scale, 0.088_f32);
/// // All errors at once, each with the name of its role.
/// let mut bound = plan.bind(bindings, stream)?;
/// bound.launch(stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Bindings<'a> {
    pub(crate) raw: RawBindings,
    pub(crate) tracked: Vec<Box<dyn Tracked + 'a>>,
    pub(crate) workspace: Option<Arc<Workspace>>,
    pub(crate) batch: Option<Arc<StepMemory>>,
}

impl<'a> Bindings<'a> {
    /// Bindings of no role.
    #[must_use]
    pub fn new() -> Bindings<'a> {
        Bindings::default()
    }

    /// Binds an input to a [`CudaSlice`](cudarc::driver::CudaSlice) or a view of one.
    #[must_use]
    pub fn slice<T: Element, S: DevicePtr<T> + Sync>(mut self, role: Role, slice: &'a S) -> Bindings<'a> {
        let bytes = slice.num_bytes() as u64;
        let address = slice.device_ptr(slice.stream()).0;
        self.raw = self.raw.operand(operand::<T>(role, address, bytes, false));
        self.tracked.push(Box::new(Read(slice, PhantomData::<fn() -> T>)));
        self
    }

    /// Binds an output to a [`CudaSlice`](cudarc::driver::CudaSlice) or a view of one.
    #[must_use]
    pub fn slice_mut<T: Element, S: DevicePtrMut<T> + Send>(mut self, role: Role, slice: &'a mut S) -> Bindings<'a> {
        let bytes = slice.num_bytes() as u64;
        let stream = Arc::clone(slice.stream());
        let address = slice.device_ptr_mut(&stream).0;
        self.raw = self.raw.operand(operand::<T>(role, address, bytes, true));
        self.tracked.push(Box::new(Write(slice, PhantomData::<fn() -> T>)));
        self
    }

    /// Sets the value of a scalar: an [`f32`], [`i32`] or [`i64`].
    #[must_use]
    pub fn scalar(mut self, role: Role, value: impl Into<Number>) -> Bindings<'a> {
        self.raw = self.raw.scalar(role, value);
        self
    }

    /// Binds an operand to a buffer with this address and size in bytes.
    ///
    /// # Safety
    ///
    /// Until every launch of the bound plan is finished, the memory must stay valid, and nothing that conflicts with a
    /// launch may use it.
    #[must_use]
    pub unsafe fn tensor(mut self, role: Role, address: u64, bytes: u64) -> Bindings<'a> {
        self.raw = self.raw.tensor(role, address, bytes);
        self
    }

    /// Declares that two operands lie interleaved in one buffer; see
    /// [`raw::RawBindings::interleaved`](crate::raw::RawBindings::interleaved).
    #[must_use]
    pub fn interleaved(mut self, a: Role, b: Role) -> Bindings<'a> {
        self.raw = self.raw.interleaved(a, b);
        self
    }

    /// Sets the workspace, which other bound plans may share. Without it, binding allocates one.
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

    /// `Bindings` accepts slices and views of both kinds: this compiles.
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
