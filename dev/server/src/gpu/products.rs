//! Matrix products by cuBLASLt as launches of a step: bfloat16 operands, float32 sums. What a product of some sizes
//! needs is asked for once. While the server starts, the algorithms that cuBLASLt suggests are timed; later the first
//! one is taken.

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use cudarc::cublaslt::{result, sys};
use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUevent_flags;
use half::bf16;
use qkvault::exec::{Arena, Launches, Slot};

use super::kernels::place;
use crate::ServerError;

/// Bytes of scratch memory: what NVIDIA recommends for sm_90.
const WORKSPACE: usize = 32 << 20;

/// Algorithms that are tried, and launches of each.
const SUGGESTED: usize = 8;
const LAUNCHES: usize = 5;

/// What becomes of a product.
#[derive(Clone, Copy, Debug)]
pub(super) enum Into<'a> {
    /// It is written as bfloat16.
    Half(&'a Slot<bf16>),
    /// It is added to bfloat16 numbers.
    Added(&'a Slot<bf16>),
    /// It is written as float32.
    Float(&'a Slot<f32>),
}

/// The sizes of a product: (rows, inner) times (columns, inner), as weights are: a row for each column of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ProductSizes {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) inner: usize,
}

/// What is asked for once: the sizes, whether the product is added, and whether it is float32.
type Asked = (ProductSizes, bool, bool);

/// The addresses of a product: of what it is written to, of the rows, of the weights, and of the scratch memory.
type Places = [u64; 4];

/// A handle of cuBLASLt.
struct LtHandle(sys::cublasLtHandle_t);

// SAFETY: cuBLASLt's functions may be called with one handle from several threads, and nothing changes it.
unsafe impl Send for LtHandle {}
// SAFETY: as above.
unsafe impl Sync for LtHandle {}

impl Drop for LtHandle {
    fn drop(&mut self) {
        // SAFETY: the handle was made by `Products::new`. What fails here is lost with the process.
        let _ = unsafe { result::destroy_handle(self.0) };
    }
}

/// What a product of some sizes is called with.
struct ReadyProduct {
    handle: Arc<LtHandle>,
    of: sys::cublasLtMatmulDesc_t,
    first: sys::cublasLtMatrixLayout_t,
    second: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    added: bool,
}

// SAFETY: descriptors are memory of the host that cuBLASLt only reads once they are made.
unsafe impl Send for ReadyProduct {}
// SAFETY: as above.
unsafe impl Sync for ReadyProduct {}

/// A product with its algorithm.
type Chosen = (Arc<ReadyProduct>, sys::cublasLtMatmulAlgo_t);

/// cuBLASLt for the steps of one arena.
pub(super) struct Products {
    handle: Arc<LtHandle>,
    ready: HashMap<Asked, Chosen>,
    scratch: Slot<u8>,
    arena: Arena,
    stream: Arc<CudaStream>,
    /// Whether algorithms of new sizes are timed.
    pub(super) timing: bool,
    /// Whether a row of a product has the same bits whatever other rows there are: then every product is made of ones
    /// of as many rows, by one algorithm.
    invariant: bool,
}

/// Most rows of such a product.
const ROWS: usize = 256;

impl Products {
    pub(super) fn new(stream: &Arc<CudaStream>, arena: &Arena, invariant: bool) -> Result<Products, ServerError> {
        // SAFETY: it only tries to open the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(
                "libcublasLt is not there; it is in the CUDA toolkit, put its folder into LD_LIBRARY_PATH".into()
            );
        }
        let scratch = arena.zeros(WORKSPACE)?;
        let handle = Arc::new(LtHandle(result::create_handle()?));
        let (arena, stream) = (arena.clone(), Arc::clone(stream));
        Ok(Products { handle, ready: HashMap::new(), scratch, arena, stream, timing: false, invariant })
    }

    /// Adds a product to a step: `x` times `weights`.
    pub(super) fn add(
        &mut self,
        step: &mut Launches<'static>,
        sizes: ProductSizes,
        into: Into<'_>,
        (x, weights): (&Slot<bf16>, &Slot<bf16>),
    ) -> Result<(), ServerError> {
        let ProductSizes { rows, columns, inner } = sizes;
        let (room, bytes) = match into {
            Into::Half(out) | Into::Added(out) => (out.len(), 2),
            Into::Float(out) => (out.len(), 4),
        };
        // Rows behind those that are asked for hold what nobody reads.
        let each = match self.invariant {
            true => rows_at_once(x.len() / inner, room / columns),
            false => rows,
        };
        let rows = rows.next_multiple_of(each);
        let out = match into {
            Into::Half(out) | Into::Added(out) => place(step, out, rows * columns)?,
            Into::Float(out) => place(step, out, rows * columns)?,
        };
        let (x, weights) = (place(step, x, rows * inner)?, place(step, weights, columns * inner)?);
        let places = [out, x, weights, place(step, &self.scratch, WORKSPACE)?];
        let sizes = ProductSizes { rows: each, columns, inner };
        let asked = (sizes, matches!(into, Into::Added(_)), matches!(into, Into::Float(_)));
        let (ready, algorithm) = match self.ready.get(&asked) {
            Some((ready, algorithm)) => (Arc::clone(ready), *algorithm),
            None => {
                let (ready, algorithms) = ReadyProduct::new(&self.handle, asked)?;
                let algorithm = self.best(&ready, &algorithms, places);
                self.ready.insert(asked, (Arc::clone(&ready), algorithm));
                (ready, algorithm)
            }
        };
        let [out, x, ..] = places;
        for first in (0..rows).step_by(each) {
            let behind = |address: u64, bytes: usize| address + (first * bytes) as u64;
            let places = [behind(out, columns * bytes), behind(x, inner * 2), places[2], places[3]];
            queue(step, Arc::clone(&ready), algorithm, places);
        }
        Ok(())
    }

    /// The fastest of some algorithms, or the first without timing.
    fn best(
        &self,
        ready: &Arc<ReadyProduct>,
        algorithms: &[sys::cublasLtMatmulAlgo_t],
        places: Places,
    ) -> sys::cublasLtMatmulAlgo_t {
        let tried = if self.timing { algorithms } else { &[] };
        // One that cannot be launched is the slowest.
        let timed = tried.iter().map(|tried| (self.time(ready, *tried, places).unwrap_or(f32::INFINITY), tried));
        timed.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(algorithms[0], |(_, best)| *best)
    }

    /// Milliseconds of some launches of an algorithm. They write what the server, which starts, does not read.
    fn time(
        &self,
        ready: &Arc<ReadyProduct>,
        algorithm: sys::cublasLtMatmulAlgo_t,
        places: Places,
    ) -> Result<f32, ServerError> {
        let mut step = Launches::new(&self.stream, &self.arena);
        (0..LAUNCHES).for_each(|_| queue(&mut step, Arc::clone(ready), algorithm, places));
        let event = || self.stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        step.run()?;
        let start = event()?;
        step.run()?;
        let end = event()?;
        end.synchronize()?;
        Ok(start.elapsed_ms(&end)?)
    }
}

/// Rows of a product that is made of several: the most that divide the rows for which its operands have room.
fn rows_at_once(of_x: usize, of_out: usize) -> usize {
    let fits = |each: &usize| of_x.is_multiple_of(*each) && of_out.is_multiple_of(*each);
    (1..=ROWS.min(of_x).min(of_out)).rev().find(fits).unwrap_or(1)
}

/// Adds a product to the step of whose arena its places are.
fn queue(step: &mut Launches<'static>, ready: Arc<ReadyProduct>, algorithm: sys::cublasLtMatmulAlgo_t, places: Places) {
    let work = move |stream: &Arc<CudaStream>| {
        let [out, x, weights, scratch] = places;
        let (one, zero) = (1.0_f32, 0.0_f32);
        let beta = if ready.added { &raw const one } else { &raw const zero };
        let pointer = |address: u64| address as *const c_void;
        // SAFETY: `Products::add` has found at each place the numbers that the layouts say, at multiples of 16 bytes,
        // and the scratch memory; `ready` has the descriptors and the handle. The factors are read when the product is
        // queued.
        let queued = unsafe {
            result::matmul(
                ready.handle.0,
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
                &raw const algorithm,
                scratch as *mut c_void,
                WORKSPACE,
                stream.cu_stream().cast(),
            )
        };
        queued.map_err(|error| format!("cuBLASLt did not queue a product: {error}").into())
    };
    // SAFETY: every place is of a slot of the step's arena, and the product is queued on the stream that is given.
    unsafe { step.queue(work) };
}

impl ReadyProduct {
    /// A product, and the algorithms that cuBLASLt suggests, the likeliest first: one or more.
    fn new(
        handle: &Arc<LtHandle>,
        (sizes, added, float): Asked,
    ) -> Result<(Arc<ReadyProduct>, Vec<sys::cublasLtMatmulAlgo_t>), ServerError> {
        let ProductSizes { rows, columns, inner } = sizes;
        let half = sys::cudaDataType::CUDA_R_16BF;
        let single = sys::cudaDataType::CUDA_R_32F;
        let of = result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, single)?;
        let turned = 1_i32;
        let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        // SAFETY: the descriptor is alive, and the attribute has 32 bits.
        unsafe { result::set_matmul_desc_attribute(of, attribute, (&raw const turned).cast(), size_of::<i32>()) }?;
        let layout = |kind, (height, width): (usize, usize)| {
            result::create_matrix_layout(kind, height as u64, width as u64, height as i64)
        };
        let first = layout(half, (inner, rows))?;
        let second = layout(half, (inner, columns))?;
        let out = layout(if float { single } else { half }, (columns, rows))?;
        let ready = Arc::new(ReadyProduct { handle: Arc::clone(handle), of, first, second, out, added });
        let algorithms = ready.algorithms()?;
        match algorithms.is_empty() {
            true => Err(format!("cuBLASLt has no product for {sizes:?}").into()),
            false => Ok((ready, algorithms)),
        }
    }

    fn algorithms(&self) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, ServerError> {
        let ReadyProduct { handle, of, first, second, out, added: _ } = self;
        let wish = result::create_matmul_pref()?;
        let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let bytes = WORKSPACE;
        let mut found = [MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit(); SUGGESTED];
        let (most, mut count) = (SUGGESTED as i32, 0);
        // SAFETY: all descriptors are alive, and the list has room for as many as are asked for.
        let asked = unsafe {
            result::set_matmul_pref_attribute(wish, attribute, (&raw const bytes).cast(), size_of::<usize>())?;
            let list = found.as_mut_ptr().cast();
            let count = &raw mut count;
            let asked = sys::cublasLtMatmulAlgoGetHeuristic(
                handle.0, *of, *second, *first, *out, *out, wish, most, list, count,
            );
            result::destroy_matmul_pref(wish)?;
            asked
        };
        asked.result().map_err(|error| format!("cuBLASLt suggests no algorithm: {error}"))?;
        // SAFETY: cuBLASLt has written so many.
        let found = found.iter().take(count.unsigned_abs() as usize).map(|found| unsafe { found.assume_init_ref() });
        Ok(found.filter(|f| f.state.result().is_ok()).map(|f| f.algo).collect())
    }
}

impl Drop for ReadyProduct {
    fn drop(&mut self) {
        // SAFETY: each was made by `ReadyProduct::new` and is destroyed once. What fails here is lost with the process.
        unsafe {
            let _ = result::destroy_matmul_desc(self.of);
            for layout in [self.first, self.second, self.out] {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_at_once_divide_the_room_of_both_operands() {
        assert_eq!(
            [(2048, 2048), (2048, 256), (128, 8), (300, 100)].map(|(x, out)| rows_at_once(x, out)),
            [256, 256, 8, 100]
        );
    }
}
