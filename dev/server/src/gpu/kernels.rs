//! The kernels in `kernels.cu`, which NVRTC compiles when the server starts, as launches of a step.
//!
//! Each function checks that its slots are of the step's arena and have the numbers that the kernel reads or writes;
//! integers that a kernel follows it checks itself. So nothing leads outside, whatever the slots hold.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg as _};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use half::bf16;
use qkvault::exec::{Element, Launches, Slot};

use super::memory::StepInputs;
use crate::ServerError;
use crate::config::ModelShape;
use crate::weights::Fill;

const SOURCE: &str = include_str!("kernels.cu");

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

/// The address of a slot that must have so many numbers, and begin where 16 bytes can be read at once.
pub(super) fn place<T: Element>(step: &Launches<'_>, slot: &Slot<T>, numbers: usize) -> Result<u64, ServerError> {
    let address = step.address(slot)?;
    match slot.len() >= numbers && address.is_multiple_of(16) {
        true => Ok(address),
        false => Err(format!("{slot:?} where {numbers} numbers at a multiple of 16 are needed").into()),
    }
}

macro_rules! functions {
    ($($name:ident),+) => {
        /// The loaded kernels.
        pub(super) struct GpuKernels {
            $($name: CudaFunction,)+
        }

        impl GpuKernels {
            pub(super) fn load(stream: &Arc<CudaStream>) -> Result<GpuKernels, ServerError> {
                let context = stream.context();
                let module = context.load_module(compile(context.compute_capability()?)?)?;
                Ok(GpuKernels { $($name: module.load_function(stringify!($name))?,)+ })
            }
        }
    };
}

functions!(fill, embed, rms_norm, rotate, silu, pick);

macro_rules! launch {
    ($self:ident.$name:ident on $step:ident, $grid:expr, $threads:expr, $($argument:ident),+) => {{
        let (x, y): (usize, usize) = $grid;
        let config = LaunchConfig { grid_dim: (x as u32, y as u32, 1), block_dim: ($threads, 1, 1), shared_mem_bytes: 0 };
        let function = $self.$name.clone();
        let queue = move |stream: &Arc<CudaStream>| {
            let mut launch = stream.launch_builder(&function);
            $(launch.arg(&$argument);)+
            // SAFETY: the arguments have the types of the kernel's parameters, and `place` has found at each address
            // the numbers that the kernel reads or writes for these sizes. It follows no integer without a check.
            unsafe { launch.launch(config) }?;
            Ok(())
        };
        // SAFETY: every address is of a slot of the step's arena (`place`), the launch is on the stream that is given,
        // and arguments are copied when it is queued.
        unsafe { $step.queue(queue) };
        Ok(())
    }};
}

type AddResult = Result<(), ServerError>;

impl GpuKernels {
    /// Fills a tensor with its random numbers.
    pub(super) fn fill(&self, step: &mut Launches<'static>, out: &Slot<bf16>, fill: &Fill) -> AddResult {
        let Fill { count, seed, scale, middle } = *fill;
        let (out, count) = (place(step, out, count)?, u32::try_from(count)?);
        launch!(self.fill on step, (4096, 1), THREADS, out, count, seed, scale, middle)
    }

    /// Hidden states of the tokens of rows. A token that the model does not have is token 0.
    pub(super) fn embed(
        &self,
        step: &mut Launches<'static>,
        (x, table): (&Slot<bf16>, &Slot<bf16>),
        of: &StepInputs,
        rows: usize,
        shape: &ModelShape,
    ) -> AddResult {
        let (x, table) = (place(step, x, rows * shape.hidden)?, place(step, table, shape.vocab * shape.hidden)?);
        let tokens = place(step, &of.tokens, rows)?;
        let (hidden, vocab) = (shape.hidden as i32, shape.vocab as i32);
        launch!(self.embed on step, (rows, 1), THREADS, x, table, tokens, hidden, vocab)
    }

    /// RMSNorm of rows, or of those whose numbers are in `chosen`; one that is not there is row 0.
    pub(super) fn norm(
        &self,
        step: &mut Launches<'static>,
        out: &Slot<bf16>,
        (x, factors): (&Slot<bf16>, &Slot<bf16>),
        (rows, chosen): (usize, Option<&Slot<i32>>),
        shape: &ModelShape,
    ) -> AddResult {
        if !shape.hidden.is_multiple_of(8) {
            return Err(format!("a hidden state of {} numbers; a multiple of 8 is needed", shape.hidden).into());
        }
        let room = (x.len() / shape.hidden) as i32;
        let needed = if chosen.is_some() { shape.hidden } else { rows * shape.hidden };
        let (out, x) = (place(step, out, rows * shape.hidden)?, place(step, x, needed)?);
        let factors = place(step, factors, shape.hidden)?;
        let chosen = chosen.map_or(Ok(0), |chosen| place(step, chosen, rows))?;
        let hidden = shape.hidden as i32;
        launch!(self.rms_norm on step, (rows, 1), THREADS, out, x, factors, chosen, hidden, room)
    }

    /// Rotary embedding, and the write of keys and values into pages. Rows without a slot of the pool write none.
    pub(super) fn rotate(
        &self,
        step: &mut Launches<'static>,
        (q, qkv): (&Slot<bf16>, &Slot<bf16>),
        (keys, values): (&Slot<bf16>, &Slot<bf16>),
        (of, rows): (&StepInputs, usize),
        shape: &ModelShape,
    ) -> AddResult {
        let room = keys.len().min(values.len()) / (shape.kv_heads * shape.head_dim);
        let pool = room * shape.kv_heads * shape.head_dim;
        let (q, qkv) = (place(step, q, rows * shape.heads * shape.head_dim)?, place(step, qkv, rows * shape.qkv())?);
        let (keys, values) = (place(step, keys, pool)?, place(step, values, pool)?);
        let (positions, slots) = (place(step, &of.positions, rows)?, place(step, &of.slots, rows)?);
        let (heads, kv_heads, head_dim) = (shape.heads as i32, shape.kv_heads as i32, shape.head_dim as i32);
        let (blocks, room) = ((rows, shape.heads + 2 * shape.kv_heads), i32::try_from(room)?);
        launch!(
            self.rotate on step, blocks, 32,
            q, keys, values, qkv, positions, slots, heads, kv_heads, head_dim, room
        )
    }

    /// SiLU of the gate times up.
    pub(super) fn silu(
        &self,
        step: &mut Launches<'static>,
        (out, gate_up): (&Slot<bf16>, &Slot<bf16>),
        rows: usize,
        shape: &ModelShape,
    ) -> AddResult {
        let (out, gate_up) = (place(step, out, rows * shape.inner)?, place(step, gate_up, 2 * rows * shape.inner)?);
        let (inner, blocks) = (shape.inner as i32, shape.inner.div_ceil(THREADS as usize));
        launch!(self.silu on step, (rows, blocks), THREADS, out, gate_up, inner)
    }

    /// Tokens and gaps of rows of logits. A picked row or a target that is not there is row 0, or no target.
    pub(super) fn pick(
        &self,
        step: &mut Launches<'static>,
        (out, logits): (&Slot<i32>, &Slot<f32>),
        (of, picks): (&StepInputs, usize),
        shape: &ModelShape,
    ) -> AddResult {
        let (out, logits) = (place(step, out, 2 * picks)?, place(step, logits, picks * shape.vocab)?);
        let (room, vocab) = (of.positions.len() as i32, shape.vocab as i32);
        let positions = place(step, &of.positions, 1)?;
        let (pick_rows, temperatures) = (place(step, &of.pick_rows, picks)?, place(step, &of.temperatures, picks)?);
        let (seeds, targets) = (place(step, &of.seeds, picks)?, place(step, &of.targets, picks)?);
        launch!(
            self.pick on step, (picks, 1), 1024,
            out, logits, pick_rows, positions, temperatures, seeds, targets, vocab, room
        )
    }
}
