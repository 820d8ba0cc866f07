//! Elementwise kernels, for what lies between attentions in a model, and other work that a capture records by address.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CUfunction, CUmodule};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, result};
use half::bf16;
use half::slice::HalfFloatSliceExt as _;
use qkvault_exec::cudarc;

/// Threads of a block.
const BLOCK: u32 = 256;

/// The kernels of `elementwise.ptx`, which the driver assembles.
pub(crate) struct Kernels {
    module: CUmodule,
    scale: CUfunction,
    add: CUfunction,
    context: Arc<CudaContext>,
}

impl Kernels {
    pub(crate) fn load(context: &Arc<CudaContext>) -> Kernels {
        context.bind_to_thread().expect("a context");
        let text = CString::new(include_str!("elementwise.ptx")).expect("no zeros");
        // SAFETY: text that ends in a zero.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }.expect("the driver assembles it");
        let find = |name: &str| {
            let name = CString::new(name).expect("no zeros");
            // SAFETY: the module is loaded.
            unsafe { result::module::get_function(module, name) }.expect("the module has it")
        };
        Kernels { module, scale: find("scale"), add: find("add"), context: Arc::clone(context) }
    }

    /// Queues `to = factor * from`.
    ///
    /// # Safety
    ///
    /// Both are of `n` elements of bf16, which live until the kernel, or the last replay, is finished.
    pub(crate) unsafe fn scale(&self, stream: &CudaStream, (to, from): (u64, u64), factor: f32, n: usize) {
        // SAFETY: the caller's promise.
        unsafe { launch(self.scale, stream, (to, from), factor, n) }
    }

    /// Queues `to += factor * from`.
    ///
    /// # Safety
    ///
    /// As [`Kernels::scale`].
    pub(crate) unsafe fn add(&self, stream: &CudaStream, (to, from): (u64, u64), factor: f32, n: usize) {
        // SAFETY: the caller's promise.
        unsafe { launch(self.add, stream, (to, from), factor, n) }
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: loaded once, and unloaded once.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}

/// # Safety
///
/// As [`Kernels::scale`].
unsafe fn launch(kernel: CUfunction, stream: &CudaStream, (to, from): (u64, u64), factor: f32, n: usize) {
    let count = u32::try_from(n).expect("small");
    let mut values = [
        (&raw const to).cast_mut().cast::<c_void>(),
        (&raw const from).cast_mut().cast(),
        (&raw const factor).cast_mut().cast(),
        (&raw const count).cast_mut().cast(),
    ];
    let grid = (count.div_ceil(BLOCK), 1, 1);
    // SAFETY: four parameters of the kernels' types, which the driver copies; the caller promises the rest.
    unsafe { result::launch_kernel(kernel, grid, (BLOCK, 1, 1), 0, stream.cu_stream(), &mut values) }.expect("queued");
}

/// The address of a slice, without an event on any stream that is captured.
pub(crate) fn address<T>(slice: &CudaSlice<T>) -> u64 {
    let aside = slice.context().default_stream();
    let (address, guard) = slice.device_ptr(&aside);
    std::mem::forget(guard);
    address
}

/// Queues a poison over a slice: every bit set, a NaN.
pub(crate) fn poison<T>(slice: &CudaSlice<T>, stream: &CudaStream) {
    let bytes = slice.num_bytes();
    // SAFETY: the slice has these bytes, and is used on this stream alone.
    unsafe { result::memset_d8_async(address(slice), 0xff, bytes, stream.cu_stream()) }.expect("queued");
}

/// Random numbers, of which each step takes others.
pub(crate) struct Noise(Vec<bf16>);

impl Noise {
    /// So many numbers between -1 and 1, and as many again behind them to begin within.
    pub(crate) fn new(length: usize, seed: u64) -> Noise {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ seed << 32;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bf16::from_f32((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
        };
        Noise((0..2 * length).map(|_| next()).collect())
    }

    /// The numbers of a step: those of two steps differ, for up to half as many steps as there are numbers.
    pub(crate) fn at(&self, step: usize) -> &[bf16] {
        let length = self.0.len() / 2;
        let from = step * 7919 % length;
        &self.0[from..from + length]
    }
}

/// Whether two outputs have the same bits.
pub(crate) fn same_bits(a: &[bf16], b: &[bf16]) -> bool {
    a.reinterpret_cast() == b.reinterpret_cast()
}
