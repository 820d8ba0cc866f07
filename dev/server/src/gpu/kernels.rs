//! Launches of the kernels in `kernels.cu`, which NVRTC compiles when the server starts.
//!
//! Operands are addresses: the model has all memory, every launch is on its one stream, and the functions say how many
//! numbers each operand has.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg as _};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};

use crate::Failure;
use crate::config::Shape;
use crate::weights::Fill;

const SOURCE: &str = include_str!("kernels.cu");

/// An address on the GPU.
pub(super) type Address = u64;

/// Threads of a block.
const THREADS: u32 = 256;

/// Compiles the kernels for a compute capability, as PTX.
///
/// # Errors
///
/// NVRTC is not there, or does not compile them.
pub fn compile((major, minor): (i32, i32)) -> Result<cudarc::nvrtc::Ptx, Failure> {
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
        pub(super) struct Kernels {
            stream: Arc<CudaStream>,
            $($name: CudaFunction,)+
        }

        impl Kernels {
            pub(super) fn load(stream: &Arc<CudaStream>) -> Result<Kernels, Failure> {
                let context = stream.context();
                let module = context.load_module(compile(context.compute_capability()?)?)?;
                Ok(Kernels { stream: Arc::clone(stream), $($name: module.load_function(stringify!($name))?,)+ })
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
pub(super) struct Inputs {
    pub(super) tokens: Address,
    pub(super) positions: Address,
    pub(super) slots: Address,
    pub(super) pick_rows: Address,
    pub(super) temperatures: Address,
    pub(super) seeds: Address,
    pub(super) targets: Address,
}

type Done = Result<(), Failure>;

impl Kernels {
    /// Fills a tensor with its random numbers.
    ///
    /// # Safety
    ///
    /// For this and the other functions: until the kernel is finished, every operand is alive, has the numbers that the
    /// shape and the rows say, and nothing outside the stream uses it. Integers lead nowhere outside: tokens are of the
    /// model, slots are below zero or of the pool, picked rows are rows, tables name pages of the pool.
    pub(super) unsafe fn fill(&self, out: Address, fill: &Fill) -> Done {
        let Fill { count, seed, scale, middle } = *fill;
        let count = count as u32;
        launch!(self.fill, (4096, 1), THREADS, out, count, seed, scale, middle)
    }

    /// Hidden states of tokens.
    ///
    /// # Safety
    ///
    /// As [`Kernels::fill`].
    pub(super) unsafe fn embed(&self, x: Address, table: Address, of: &Inputs, rows: usize, shape: &Shape) -> Done {
        let (tokens, hidden) = (of.tokens, shape.hidden as i32);
        launch!(self.embed, (rows, 1), THREADS, x, table, tokens, hidden)
    }

    /// RMSNorm of rows, or of those whose numbers are at `chosen`.
    ///
    /// # Safety
    ///
    /// As [`Kernels::fill`].
    pub(super) unsafe fn norm(
        &self,
        out: Address,
        (x, factors): (Address, Address),
        chosen: Option<Address>,
        rows: usize,
        shape: &Shape,
    ) -> Done {
        let (chosen, hidden) = (chosen.unwrap_or(0), shape.hidden as i32);
        launch!(self.rms_norm, (rows, 1), THREADS, out, x, factors, chosen, hidden)
    }

    /// Rotary embedding, and the write of keys and values into pages.
    ///
    /// # Safety
    ///
    /// As [`Kernels::fill`].
    pub(super) unsafe fn rotate(
        &self,
        q: Address,
        (keys, values): (Address, Address),
        qkv: Address,
        of: &Inputs,
        rows: usize,
        shape: &Shape,
    ) -> Done {
        let (heads, kv_heads, head_dim) = (shape.heads as i32, shape.kv_heads as i32, shape.head_dim as i32);
        let Inputs { positions, slots, .. } = *of;
        let blocks = (rows, shape.heads + 2 * shape.kv_heads);
        launch!(self.rotate, blocks, 32, q, keys, values, qkv, positions, slots, heads, kv_heads, head_dim)
    }

    /// SiLU of the gate times up.
    ///
    /// # Safety
    ///
    /// As [`Kernels::fill`].
    pub(super) unsafe fn silu(&self, out: Address, gate_up: Address, rows: usize, shape: &Shape) -> Done {
        let inner = shape.inner as i32;
        launch!(self.silu, (rows, shape.inner.div_ceil(THREADS as usize)), THREADS, out, gate_up, inner)
    }

    /// Tokens and gaps of rows of logits.
    ///
    /// # Safety
    ///
    /// As [`Kernels::fill`].
    pub(super) unsafe fn pick(&self, out: Address, logits: Address, of: &Inputs, picks: usize, shape: &Shape) -> Done {
        let Inputs { positions, pick_rows, temperatures, seeds, targets, .. } = *of;
        let vocab = shape.vocab as i32;
        launch!(self.pick, (picks, 1), 1024, out, logits, pick_rows, positions, temperatures, seeds, targets, vocab)
    }
}
