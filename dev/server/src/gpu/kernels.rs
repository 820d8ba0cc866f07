//! Launches of the kernels in `kernels.cu`, which NVRTC compiles when the server starts.
//!
//! Operands are addresses: the model has all memory, every launch is on its one stream, and the functions say how many
//! numbers each operand has.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg as _};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};

use crate::ServerError;
use crate::config::ModelShape;
use crate::weights::Fill;

const SOURCE: &str = include_str!("kernels.cu");

/// An address on the GPU.
pub(super) type GpuAddress = u64;

/// Threads of a block.
const THREADS: u32 = 256;

/// Compiles the kernels for a compute capability, as PTX.
///
/// # Errors
///
/// NVRTC is not there, or does not compile them.
pub fn compile((major, minor): (i32, i32)) -> Result<cudarc::nvrtc::Ptx, ServerError> {
    // SAFETY: it only tries to open the library.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Err("libnvrtc is not there; it is in the CUDA toolkit, put its folder into LD_LIBRARY_PATH".into());
    }
    let options = vec![format!("--gpu-architecture=compute_{major}{minor}")];
    Ok(compile_ptx_with_opts(SOURCE, CompileOptions { options, ..CompileOptions::default() })?)
}

macro_rules! functions {
    ($($name:ident),+) => {
        /// The loaded kernels.
        pub(super) struct GpuKernels {
            stream: Arc<CudaStream>,
            $($name: CudaFunction,)+
        }

        impl GpuKernels {
            pub(super) fn load(stream: &Arc<CudaStream>) -> Result<GpuKernels, ServerError> {
                let context = stream.context();
                let module = context.load_module(compile(context.compute_capability()?)?)?;
                Ok(GpuKernels { stream: Arc::clone(stream), $($name: module.load_function(stringify!($name))?,)+ })
            }
        }
    };
}

functions!(fill, embed, rms_norm, rotate, silu, pick);

macro_rules! launch {
    ($self:ident.$name:ident, $grid:expr, $threads:expr, $($argument:ident),+) => {{
        let (x, y): (usize, usize) = $grid;
        let config = LaunchConfig { grid_dim: (x as u32, y as u32, 1), block_dim: ($threads, 1, 1), shared_mem_bytes: 0 };
        let mut launch = $self.stream.launch_builder(&$self.$name);
        $(launch.arg(&$argument);)+
        // SAFETY: the arguments have the types of the kernel's parameters, and the callers of this module's unsafe
        // functions promise that addresses have the numbers that they are said to have.
        unsafe { launch.launch(config) }?;
        Ok(())
    }};
}

/// What the rows of a step are, on the GPU.
#[derive(Clone, Copy)]
pub(super) struct StepInputs {
    pub(super) tokens: GpuAddress,
    pub(super) positions: GpuAddress,
    pub(super) slots: GpuAddress,
    pub(super) pick_rows: GpuAddress,
    pub(super) temperatures: GpuAddress,
    pub(super) seeds: GpuAddress,
    pub(super) targets: GpuAddress,
}

type LaunchResult = Result<(), ServerError>;

impl GpuKernels {
    /// Fills a tensor with its random numbers.
    ///
    /// # Safety
    ///
    /// For this and the other functions: until the kernel is finished, every operand is alive, has the numbers that the
    /// shape and the rows say, and nothing outside the stream uses it. Integers lead nowhere outside: tokens are of the
    /// model, slots are below zero or of the pool, picked rows are rows, tables name pages of the pool.
    pub(super) unsafe fn fill(&self, out: GpuAddress, fill: &Fill) -> LaunchResult {
        let Fill { count, seed, scale, middle } = *fill;
        let count = count as u32;
        launch!(self.fill, (4096, 1), THREADS, out, count, seed, scale, middle)
    }

    /// Hidden states of tokens.
    ///
    /// # Safety
    ///
    /// As [`GpuKernels::fill`].
    pub(super) unsafe fn embed(
        &self,
        x: GpuAddress,
        table: GpuAddress,
        of: &StepInputs,
        rows: usize,
        shape: &ModelShape,
    ) -> LaunchResult {
        let (tokens, hidden) = (of.tokens, shape.hidden as i32);
        launch!(self.embed, (rows, 1), THREADS, x, table, tokens, hidden)
    }

    /// RMSNorm of rows, or of those whose numbers are at `chosen`.
    ///
    /// # Safety
    ///
    /// As [`GpuKernels::fill`].
    pub(super) unsafe fn norm(
        &self,
        out: GpuAddress,
        (x, factors): (GpuAddress, GpuAddress),
        chosen: Option<GpuAddress>,
        rows: usize,
        shape: &ModelShape,
    ) -> LaunchResult {
        let (chosen, hidden) = (chosen.unwrap_or(0), shape.hidden as i32);
        launch!(self.rms_norm, (rows, 1), THREADS, out, x, factors, chosen, hidden)
    }

    /// Rotary embedding, and the write of keys and values into pages.
    ///
    /// # Safety
    ///
    /// As [`GpuKernels::fill`].
    pub(super) unsafe fn rotate(
        &self,
        q: GpuAddress,
        (keys, values): (GpuAddress, GpuAddress),
        qkv: GpuAddress,
        of: &StepInputs,
        rows: usize,
        shape: &ModelShape,
    ) -> LaunchResult {
        let (heads, kv_heads, head_dim) = (shape.heads as i32, shape.kv_heads as i32, shape.head_dim as i32);
        let StepInputs { positions, slots, .. } = *of;
        let blocks = (rows, shape.heads + 2 * shape.kv_heads);
        launch!(self.rotate, blocks, 32, q, keys, values, qkv, positions, slots, heads, kv_heads, head_dim)
    }

    /// SiLU of the gate times up.
    ///
    /// # Safety
    ///
    /// As [`GpuKernels::fill`].
    pub(super) unsafe fn silu(
        &self,
        out: GpuAddress,
        gate_up: GpuAddress,
        rows: usize,
        shape: &ModelShape,
    ) -> LaunchResult {
        let inner = shape.inner as i32;
        launch!(self.silu, (rows, shape.inner.div_ceil(THREADS as usize)), THREADS, out, gate_up, inner)
    }

    /// Tokens and gaps of rows of logits.
    ///
    /// # Safety
    ///
    /// As [`GpuKernels::fill`].
    pub(super) unsafe fn pick(
        &self,
        out: GpuAddress,
        logits: GpuAddress,
        of: &StepInputs,
        picks: usize,
        shape: &ModelShape,
    ) -> LaunchResult {
        let StepInputs { positions, pick_rows, temperatures, seeds, targets, .. } = *of;
        let vocab = shape.vocab as i32;
        launch!(self.pick, (picks, 1), 1024, out, logits, pick_rows, positions, temperatures, seeds, targets, vocab)
    }
}
