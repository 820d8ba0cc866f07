//! Values on a kernel's stack: what a kernel owns while it runs, and tensors in numbers.

use std::ffi::CStr;

use qkvault::exec::raw::DeviceBuffer;
use qkvault::graph::DType;
use smallvec::SmallVec;

use super::shim::{Shim, StackValue, TorchHandle, done};
use crate::status::CallFailure;

/// The arguments of a kernel, given back when it ends.
pub(super) struct StackArguments<'a> {
    shim: &'a Shim,
    /// The tensors in the order of the schema, those of the list last.
    pub(super) tensors: SmallVec<[TorchHandle; 16]>,
    spec: TorchHandle,
    pub(super) numbers: SmallVec<[f64; 6]>,
}

impl<'a> StackArguments<'a> {
    /// Takes `tensors` tensors, a list of tensors, a text and a list of numbers.
    ///
    /// # Safety
    ///
    /// The stack must be that of a kernel whose schema begins so.
    pub(super) unsafe fn take(
        shim: &'a Shim,
        stack: *const StackValue,
        tensors: usize,
    ) -> Result<StackArguments<'a>, CallFailure> {
        // SAFETY: the caller's promise.
        let (fixed, rest) =
            unsafe { (std::slice::from_raw_parts(stack, tensors), std::slice::from_raw_parts(stack.add(tensors), 3)) };
        let spec = rest[1] as TorchHandle;
        let mut own = StackArguments { shim, tensors: SmallVec::new(), spec, numbers: SmallVec::new() };
        own.tensors.extend(fixed.iter().map(|value| *value as TorchHandle));
        // SAFETY: handles of lists that the kernel owns.
        let (extra, numbers) = unsafe { (items(shim, rest[0] as TorchHandle), items(shim, rest[2] as TorchHandle)) };
        own.tensors.extend(extra?.iter().map(|value| *value as TorchHandle));
        own.numbers.extend(numbers?.iter().map(|bits| f64::from_bits(*bits)));
        Ok(own)
    }

    /// The text.
    pub(super) fn spec(&self) -> Result<&str, CallFailure> {
        let mut text = std::ptr::null();
        // SAFETY: the kernel owns the text.
        done(unsafe { (self.shim.string)(self.spec, &raw mut text) }, c"torch_string_c_str")?;
        // SAFETY: PyTorch's texts end with a null character, and stay until they are deleted.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_str().map_err(|error| CallFailure::argument(format!("the specification is not UTF-8: {error}")))
    }
}

impl Drop for StackArguments<'_> {
    fn drop(&mut self) {
        for tensor in &self.tensors {
            // SAFETY: the kernel owns its arguments.
            unsafe { (self.shim.delete_tensor)(*tensor) };
        }
        // SAFETY: as above.
        unsafe { (self.shim.delete_string)(self.spec) };
    }
}

/// Takes the items of a list, and frees the list.
///
/// # Safety
///
/// The list must be one that the kernel owns.
pub(super) unsafe fn items(shim: &Shim, list: TorchHandle) -> Result<SmallVec<[StackValue; 8]>, CallFailure> {
    let (mut size, mut all) = (0, SmallVec::new());
    // SAFETY: the caller's promise.
    done(unsafe { (shim.list_size)(list, &raw mut size) }, c"torch_list_size")?;
    for at in 0..size {
        let mut value = 0;
        // SAFETY: a place below the size.
        done(unsafe { (shim.list_item)(list, at, &raw mut value) }, c"torch_list_get_item")?;
        all.push(value);
    }
    // SAFETY: nobody else has it.
    done(unsafe { (shim.delete_list)(list) }, c"torch_delete_list")?;
    Ok(all)
}

/// A tensor that a kernel made, given back if the kernel fails.
pub(super) struct MadeTensor<'a> {
    shim: &'a Shim,
    handle: TorchHandle,
}

impl<'a> MadeTensor<'a> {
    /// A new tensor on a device.
    pub(super) fn new(
        shim: &'a Shim,
        (dims, strides): (&[i64], &[i64]),
        dtype: i32,
        (kind, index): (i32, i32),
    ) -> Result<MadeTensor<'a>, CallFailure> {
        let mut handle = std::ptr::null_mut();
        let (rank, dims, strides) = (dims.len() as i64, dims.as_ptr(), strides.as_ptr());
        // SAFETY: both lists have `rank` entries.
        let made = unsafe { (shim.empty)(rank, dims, strides, dtype, kind, index, &raw mut handle) };
        done(made, c"aoti_torch_empty_strided")?;
        Ok(MadeTensor { shim, handle })
    }

    /// No tensor.
    pub(super) fn nothing(shim: &'a Shim) -> Result<MadeTensor<'a>, CallFailure> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place for the handle.
        done(unsafe { (shim.nothing)(&raw mut handle) }, c"aoti_torch_new_uninitialized_tensor")?;
        Ok(MadeTensor { shim, handle })
    }

    pub(super) fn address(&self) -> Result<u64, CallFailure> {
        address(self.shim, self.handle)
    }

    /// Gives the tensor to the caller of the kernel.
    pub(super) fn give(self) -> StackValue {
        let handle = self.handle;
        std::mem::forget(self);
        handle as StackValue
    }
}

impl Drop for MadeTensor<'_> {
    fn drop(&mut self) {
        // SAFETY: made by this kernel, and not given away.
        unsafe { (self.shim.delete_tensor)(self.handle) };
    }
}

/// Gives tensors to the caller of the kernel as a list.
pub(super) fn give_list(
    shim: &Shim,
    tensors: impl ExactSizeIterator<Item = StackValue>,
) -> Result<StackValue, CallFailure> {
    let mut list = std::ptr::null_mut();
    // SAFETY: a place for the list.
    done(unsafe { (shim.list)(tensors.len(), &raw mut list) }, c"torch_new_list_reserve_size")?;
    for tensor in tensors {
        // SAFETY: the list was just made.
        done(unsafe { (shim.list_push)(list, tensor) }, c"torch_list_push_back")?;
    }
    Ok(list as StackValue)
}

/// The address of a tensor's first element.
pub(super) fn address(shim: &Shim, tensor: TorchHandle) -> Result<u64, CallFailure> {
    let mut data = std::ptr::null_mut();
    // SAFETY: the kernel has the tensor.
    done(unsafe { (shim.data)(tensor, &raw mut data) }, c"aoti_torch_get_data_ptr")?;
    Ok(data as u64)
}

/// Most dims of a tensor that a kernel takes.
pub(super) const MOST: usize = 4;

/// What the plan of a call depends on, of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TensorShape {
    pub(super) rank: usize,
    pub(super) dims: [i64; MOST],
    pub(super) strides: [i64; MOST],
    /// PyTorch's number of the element type.
    pub(super) dtype: i32,
    /// Kind and number of the device.
    pub(super) device: (i32, i32),
}

impl TensorShape {
    pub(super) fn read(shim: &Shim, tensor: TorchHandle) -> Result<TensorShape, CallFailure> {
        let (mut rank, mut sizes, mut steps) = (0, std::ptr::null(), std::ptr::null());
        let (mut dtype, mut kind, mut index) = (0, 0, 0);
        // SAFETY: the kernel has the tensor, and the places are valid.
        let failed = unsafe {
            (shim.dim)(tensor, &raw mut rank)
                | (shim.sizes)(tensor, &raw mut sizes)
                | (shim.strides)(tensor, &raw mut steps)
                | (shim.dtype)(tensor, &raw mut dtype)
                | (shim.device_type)(tensor, &raw mut kind)
                | (shim.device_index)(tensor, &raw mut index)
        };
        done(failed, c"aoti_torch_get_sizes")?;
        let rank = usize::try_from(rank).unwrap_or(usize::MAX);
        if rank > MOST {
            return Err(CallFailure::argument(format!("a tensor has {rank} dims, and at most {MOST} are taken")));
        }
        let (mut dims, mut strides) = ([1; MOST], [1; MOST]);
        // SAFETY: PyTorch's lists have `rank` entries, and stay as long as the tensor.
        unsafe {
            std::ptr::copy_nonoverlapping(sizes, dims.as_mut_ptr(), rank);
            std::ptr::copy_nonoverlapping(steps, strides.as_mut_ptr(), rank);
        }
        Ok(TensorShape { rank, dims, strides, dtype, device: (kind, index) })
    }

    pub(super) fn dims(&self) -> &[i64] {
        &self.dims[..self.rank]
    }

    pub(super) fn steps(&self) -> &[i64] {
        &self.strides[..self.rank]
    }

    pub(super) fn elements(&self) -> i64 {
        self.dims().iter().product()
    }

    /// Whether it lies in memory without gaps, the last dim innermost.
    pub(super) fn is_contiguous(&self) -> bool {
        let mut step = 1;
        self.dims().iter().zip(&self.strides).rev().all(|(&n, &stride)| {
            let fits = n == 1 || stride == step;
            step *= n;
            fits
        })
    }

    /// Elements from the first to one past the last.
    pub(super) fn span(&self) -> i64 {
        let last: i64 = self.dims().iter().zip(&self.strides).map(|(n, stride)| (n - 1) * stride).sum();
        if self.elements() == 0 { 0 } else { last + 1 }
    }

    /// Its memory at an address, in whole words of 4 bytes: kernels read 16-bit elements in pairs. The address is
    /// aligned, so the second half of the last word is memory that may be read, and nothing comes of it.
    pub(super) fn words(&self, address: u64, size: u64) -> DeviceBuffer {
        let DeviceBuffer { address, bytes } = self.buffer(address, size);
        DeviceBuffer { address, bytes: bytes.next_multiple_of(4) }
    }

    /// Its memory at an address.
    pub(super) fn buffer(&self, address: u64, size: u64) -> DeviceBuffer {
        DeviceBuffer { address, bytes: self.span().unsigned_abs() * size }
    }
}

/// The element types of PyTorch that have one here.
pub(super) fn dtype(shim: &Shim, number: i32) -> Option<DType> {
    all(shim).into_iter().find(|(own, _)| *own == number).map(|(_, dtype)| dtype)
}

/// PyTorch's number of an element type.
pub(super) fn number(shim: &Shim, wanted: DType) -> Option<i32> {
    all(shim).into_iter().find(|(_, dtype)| *dtype == wanted).map(|(own, _)| own)
}

fn all(shim: &Shim) -> [(i32, DType); 6] {
    // SAFETY: functions without arguments that return constants.
    unsafe {
        [
            ((shim.half)(), DType::F16),
            ((shim.brain)(), DType::BF16),
            ((shim.single)(), DType::F32),
            ((shim.int)(), DType::I32),
            ((shim.long)(), DType::I64),
            ((shim.byte)(), DType::U8),
        ]
    }
}
