//! Matrix products by cuBLASLt: bfloat16 operands, float32 sums. What a product of some sizes needs is asked for once.
//! While the server starts, the algorithms that cuBLASLt suggests are timed; later the first one is taken.

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use cudarc::cublaslt::{result, sys};
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaSlice, CudaStream};

use super::kernels::GpuAddress;
use super::memory::{address, unset};
use crate::ServerError;

/// Bytes of scratch memory: what NVIDIA recommends for sm_90.
const WORKSPACE: usize = 32 << 20;

/// What becomes of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Into {
    /// It is written as bfloat16.
    Half,
    /// It is added to bfloat16 numbers.
    Added,
    /// It is written as float32.
    Float,
}

/// The sizes of a product: (rows, inner) times (columns, inner), as weights are: a row for each column of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ProductSizes {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) inner: usize,
    pub(super) into: Into,
}

/// What a product of some sizes is called with.
struct ReadyProduct {
    of: sys::cublasLtMatmulDesc_t,
    first: sys::cublasLtMatrixLayout_t,
    second: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    /// The best one first.
    algorithms: Vec<sys::cublasLtMatmulAlgo_t>,
}

/// Algorithms that are tried, and launches of each.
const SUGGESTED: usize = 8;
const LAUNCHES: usize = 5;

/// cuBLASLt on one stream.
pub(super) struct Products {
    handle: sys::cublasLtHandle_t,
    ready: HashMap<ProductSizes, ReadyProduct>,
    workspace: CudaSlice<u8>,
    stream: Arc<CudaStream>,
    /// Whether algorithms of new sizes are timed.
    pub(super) timing: bool,
}

impl Products {
    pub(super) fn new(stream: &Arc<CudaStream>) -> Result<Products, ServerError> {
        // SAFETY: it only tries to open the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(
                "libcublasLt is not there; it is in the CUDA toolkit, put its folder into LD_LIBRARY_PATH".into()
            );
        }
        let workspace = unset(stream, WORKSPACE)?;
        let handle = result::create_handle()?;
        Ok(Products { handle, ready: HashMap::new(), workspace, stream: Arc::clone(stream), timing: false })
    }

    /// Queues a product: `out` gets `x` times `weights`.
    ///
    /// # Safety
    ///
    /// Until it is finished, the operands have as many numbers as the sizes say, are aligned to 16 bytes, and nothing
    /// outside the stream uses them.
    pub(super) unsafe fn queue(
        &mut self,
        sizes: ProductSizes,
        out: GpuAddress,
        x: GpuAddress,
        weights: GpuAddress,
    ) -> Result<(), ServerError> {
        if let Some(ready) = self.ready.get(&sizes) {
            // SAFETY: the caller's promise.
            return unsafe { self.launch(ready, &ready.algorithms[0], sizes, (out, x, weights)) };
        }
        let mut ready = ReadyProduct::new(self.handle, sizes)?;
        if self.timing {
            let mut timed = Vec::new();
            for (at, algorithm) in ready.algorithms.iter().enumerate() {
                // SAFETY: the caller's promise. What is added several times is a result of nothing while the server
                // starts.
                let time = unsafe { self.time(&ready, algorithm, sizes, (out, x, weights)) };
                // One that cannot be launched is the slowest.
                timed.push((time.unwrap_or(f32::INFINITY), at));
            }
            let best = timed.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).map_or(0, |(_, at)| at);
            ready.algorithms.swap(0, best);
        }
        // SAFETY: the caller's promise.
        unsafe { self.launch(&ready, &ready.algorithms[0], sizes, (out, x, weights)) }?;
        self.ready.insert(sizes, ready);
        Ok(())
    }

    /// Milliseconds of some launches of an algorithm.
    unsafe fn time(
        &self,
        ready: &ReadyProduct,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        sizes: ProductSizes,
        operands: (GpuAddress, GpuAddress, GpuAddress),
    ) -> Result<f32, ServerError> {
        let event = || self.stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        // SAFETY: the caller's promise.
        let launch = || unsafe { self.launch(ready, algorithm, sizes, operands) };
        launch()?;
        let start = event()?;
        (0..LAUNCHES).try_for_each(|_| launch())?;
        let end = event()?;
        end.synchronize()?;
        Ok(start.elapsed_ms(&end)?)
    }

    unsafe fn launch(
        &self,
        ready: &ReadyProduct,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        sizes: ProductSizes,
        (out, x, weights): (GpuAddress, GpuAddress, GpuAddress),
    ) -> Result<(), ServerError> {
        let (one, zero) = (1.0_f32, 0.0_f32);
        let beta = if sizes.into == Into::Added { &raw const one } else { &raw const zero };
        let pointer = |address: GpuAddress| address as *const c_void;
        // SAFETY: the descriptors live as long as this value, the workspace has the size that is given, and the caller
        // promises the rest.
        unsafe {
            result::matmul(
                self.handle,
                ready.of,
                (&raw const one).cast(),
                beta.cast(),
                // cuBLASLt counts by columns: the transposed product is the weights times x.
                pointer(weights),
                ready.second,
                pointer(x),
                ready.first,
                pointer(out),
                ready.out,
                out as *mut c_void,
                ready.out,
                algorithm,
                address(&self.workspace, &self.stream) as *mut c_void,
                WORKSPACE,
                self.stream.cu_stream().cast(),
            )
        }
        .map_err(|error| format!("cuBLASLt did not queue {sizes:?}: {error}").into())
    }
}

impl ReadyProduct {
    fn new(handle: sys::cublasLtHandle_t, sizes: ProductSizes) -> Result<ReadyProduct, ServerError> {
        let ProductSizes { rows, columns, inner, into } = sizes;
        let half = sys::cudaDataType::CUDA_R_16BF;
        let float = sys::cudaDataType::CUDA_R_32F;
        let of = result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, float)?;
        let turned = 1_i32;
        let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        // SAFETY: the descriptor is alive, and the attribute has 32 bits.
        unsafe { result::set_matmul_desc_attribute(of, attribute, (&raw const turned).cast(), size_of::<i32>()) }?;
        let layout = |kind, (height, width): (usize, usize)| {
            result::create_matrix_layout(kind, height as u64, width as u64, height as i64)
        };
        let first = layout(half, (inner, rows))?;
        let second = layout(half, (inner, columns))?;
        let out = layout(if into == Into::Float { float } else { half }, (columns, rows))?;
        let wish = result::create_matmul_pref()?;
        let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let bytes = WORKSPACE;
        let mut found = [MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit(); SUGGESTED];
        let (most, mut count) = (SUGGESTED as i32, 0);
        // SAFETY: all descriptors are alive, and the list has room for as many as are asked for.
        unsafe {
            result::set_matmul_pref_attribute(wish, attribute, (&raw const bytes).cast(), size_of::<usize>())?;
            let list = found.as_mut_ptr().cast();
            let asked = sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                of,
                second,
                first,
                out,
                out,
                wish,
                most,
                list,
                &raw mut count,
            );
            result::destroy_matmul_pref(wish)?;
            asked.result().map_err(|error| format!("cuBLASLt has no product for {sizes:?}: {error}"))?;
        }
        // SAFETY: cuBLASLt has written so many.
        let found = found.iter().take(count.unsigned_abs() as usize).map(|found| unsafe { found.assume_init_ref() });
        let algorithms: Vec<_> = found.filter(|f| f.state.result().is_ok()).map(|f| f.algo).collect();
        match algorithms.is_empty() {
            true => Err(format!("cuBLASLt has no product for {sizes:?}").into()),
            false => Ok(ReadyProduct { of, first, second, out, algorithms }),
        }
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        for ReadyProduct { of, first, second, out, algorithms: _ } in self.ready.values() {
            // SAFETY: each was made by `ReadyProduct::new` and is destroyed once. What fails here is lost with the
            // process.
            unsafe {
                let _ = result::destroy_matmul_desc(*of);
                for layout in [*first, *second, *out] {
                    let _ = result::destroy_matrix_layout(layout);
                }
            }
        }
        // SAFETY: the handle was made by `Products::new`.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
