//! The model on a GPU: products by cuBLASLt, attention by qkvault, the rest by a few kernels of its own.
//!
//! Everything runs on one stream, in the order in which it is queued. A decode is a replay of a captured step of the
//! next larger number of sequences; a step with chunks is queued kernel by kernel.

mod attention;
mod graphs;
mod kernels;
mod memory;
mod products;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaSlice, CudaStream};
use qkvault::Runtime;
use qkvault::cache::VaultOptions;
use qkvault::exec::Device;

use crate::ServerError;
use crate::config::{ModelShape, ServerLimits};
use crate::engine::ServedModel;
use crate::metrics::Metrics;
use crate::step::{ModelStep, Picked};
use attention::GpuAttention;
use graphs::Graphs;
use kernels::GpuKernels;
pub use kernels::compile;
use memory::{StepBuffers, Weights, address};
use products::{Into, ProductSizes, Products};

/// How a model is made.
#[derive(Clone, Debug)]
pub struct GpuOptions {
    /// Whether decodes are captured.
    pub graphs: bool,
    /// Whether plans that the vault lacks are built before the server is ready.
    pub build: bool,
    /// The folder of the vault; the user's without one.
    pub vault: Option<PathBuf>,
    /// The seed of the weights.
    pub seed: u32,
}

/// How often the GPU is asked how much memory is in use.
const LOOK: Duration = Duration::from_millis(200);

/// The model.
pub struct GpuModel {
    // Dropped before what its graphs use.
    graphs: Graphs,
    engine: Queue,
    device: Device,
    looked: Option<Instant>,
    used: u64,
}

/// What a step is queued with.
struct Queue {
    shape: ModelShape,
    stream: Arc<CudaStream>,
    kernels: GpuKernels,
    products: Products,
    weights: Weights,
    buffers: StepBuffers,
    attention: GpuAttention,
}

impl GpuModel {
    /// Opens the GPU, loads every plan, makes the weights, and captures the decodes.
    ///
    /// # Errors
    ///
    /// No GPU, no cuDNN, no NVRTC, no cuBLASLt, no memory, or a plan that the vault lacks.
    pub fn new(shape: ModelShape, limits: ServerLimits, options: GpuOptions) -> Result<GpuModel, ServerError> {
        let GpuOptions { graphs, build, vault, seed } = options;
        let device = Device::open(0)?;
        // SAFETY: this model queues everything on one stream, so no event is needed to order it; a capture would be
        // refused if it waited for one.
        unsafe { device.context().disable_event_tracking() };
        let stream = device.context().new_stream()?;
        let kernels = GpuKernels::load(&stream)?;
        let vault = vault.map_or_else(VaultOptions::new, VaultOptions::in_folder).memory(0, 0);
        let runtime = Runtime::options().on(&device).vault(vault).build_missing(build).open()?;
        let attention = GpuAttention::new(runtime, (&shape, &limits), &stream)?;
        let products = Products::new(&stream)?;
        let weights = Weights::new((&shape, &limits), seed, &kernels, &stream)?;
        let buffers = StepBuffers::new(&shape, &limits, &stream)?;
        let mut engine = Queue { shape, stream, kernels, products, weights, buffers, attention };
        let graphs = Graphs::new(&mut engine, &limits, graphs)?;
        Ok(GpuModel { graphs, engine, device, looked: None, used: 0 })
    }
}

impl ServedModel for GpuModel {
    fn run(&mut self, step: &ModelStep) -> Result<Vec<Picked>, ServerError> {
        let GpuModel { graphs, engine, .. } = self;
        engine.attention.update(step, &engine.stream)?;
        let graph = graphs.for_step(step, &engine.attention);
        let (rows, picks) = match graph {
            Some((rows, _)) => (rows, rows),
            None => engine.buffers.padded(step),
        };
        engine.buffers.give(step, (rows, picks), &engine.stream)?;
        match graph {
            Some((_, graph)) => graph.launch()?,
            // SAFETY: nothing is captured.
            None => unsafe { engine.queue((rows, picks), false) }?,
        }
        graphs.count(graph.is_some());
        let picked = engine.buffers.take(step.picks.len(), &engine.stream)?;
        if engine.attention.builds() > 0 {
            return Err("a plan was built while the server served; the set of plans has a gap".into());
        }
        Ok(picked)
    }

    fn report(&mut self, metrics: &Metrics) {
        if self.looked.is_none_or(|at| at.elapsed() >= LOOK) {
            self.looked = Some(Instant::now());
            self.used = self.device.memory().map_or(0, |memory| memory.total - memory.free);
        }
        Metrics::set(&metrics.device_bytes, self.used);
        Metrics::set(&metrics.plans, self.engine.attention.plans() as u64);
        Metrics::set(&metrics.plan_builds_total, self.engine.attention.builds());
        self.graphs.report(metrics);
    }
}

impl Queue {
    /// Queues or records the model over the rows that the buffers have.
    ///
    /// # Safety
    ///
    /// A captured step is replayed only while this value lives.
    unsafe fn queue(&mut self, (rows, picks): (usize, usize), captured: bool) -> Result<(), ServerError> {
        let Queue { shape, stream, kernels, products, weights, buffers, attention } = self;
        let (shape, stream) = (&*shape, &*stream);
        let at = |slice: &CudaSlice<half::bf16>| address(slice, stream);
        let inputs = buffers.inputs(stream);
        let heads = shape.heads * shape.head_dim;
        let [x, normed, qkv, q, o] = [&buffers.x, &buffers.normed, &buffers.qkv, &buffers.q, &buffers.o].map(at);
        let [gate_up, inner] = [&buffers.gate_up, &buffers.inner].map(at);
        let (logits, out) = (address(&buffers.logits, stream), address(&buffers.out, stream));
        let product = |rows, columns, inner, into| ProductSizes { rows, columns, inner, into };
        let hidden = shape.hidden;
        // SAFETY: the buffers have room for the rows and picks, which `give` checks; tokens, slots and picked rows are
        // those of the scheduler, which keeps them in range; everything is on one stream.
        unsafe {
            kernels.embed(x, at(&weights.embedding), &inputs, rows, shape)?;
            for layer in &weights.layers {
                kernels.norm(normed, (x, at(&layer.attention_norm)), None, rows, shape)?;
                products.queue(product(rows, shape.qkv(), hidden, Into::Half), qkv, normed, at(&layer.qkv))?;
                kernels.rotate(q, (at(&layer.keys), at(&layer.values)), qkv, &inputs, rows, shape)?;
                attention.launch(layer, buffers, stream, captured)?;
                products.queue(product(rows, hidden, heads, Into::Added), x, o, at(&layer.out))?;
                kernels.norm(normed, (x, at(&layer.feed_norm)), None, rows, shape)?;
                products.queue(
                    product(rows, 2 * shape.inner, hidden, Into::Half),
                    gate_up,
                    normed,
                    at(&layer.gate_up),
                )?;
                kernels.silu(inner, gate_up, rows, shape)?;
                products.queue(product(rows, hidden, shape.inner, Into::Added), x, inner, at(&layer.down))?;
            }
            if picks > 0 {
                kernels.norm(normed, (x, at(&weights.last_norm)), Some(inputs.pick_rows), picks, shape)?;
                products.queue(product(picks, shape.vocab, hidden, Into::Float), logits, normed, at(&weights.head))?;
                kernels.pick(out, logits, &inputs, picks, shape)?;
            }
        }
        Ok(())
    }
}
