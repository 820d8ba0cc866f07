//! The model on a GPU: products by cuBLASLt, attention by qkvault, the rest by a few kernels of its own.
//!
//! All memory is of one arena, so a step is a `Launches` over its slots and nothing here is `unsafe`; what cannot be
//! checked stands in `kernels.rs` and `products.rs`. A decode is a replay of a captured step of the next larger number
//! of sequences; a step with chunks is put together and queued layer by layer.

mod attention;
mod graphs;
#[allow(unsafe_code, reason = "launches of kernels of one's own: each function checks what its kernel reaches")]
mod kernels;
mod memory;
#[allow(unsafe_code, reason = "calls of cuBLASLt: each product checks its operands")]
mod products;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use qkvault::Runtime;
use qkvault::cache::VaultOptions;
use qkvault::exec::{Arena, Device, Launches};

use crate::ServerError;
use crate::config::{ModelShape, ServerLimits};
use crate::engine::ServedModel;
use crate::metrics::Metrics;
use crate::step::{ModelStep, Picked};
use attention::GpuAttention;
use graphs::Graphs;
use kernels::GpuKernels;
pub use kernels::compile;
use memory::{StepBuffers, Weights};
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
    graphs: Graphs,
    engine: Queue,
    device: Device,
    /// What the metrics say of the machine.
    labels: String,
    looked: Option<Instant>,
    used: u64,
}

/// What a step is queued with.
struct Queue {
    shape: ModelShape,
    stream: Arc<CudaStream>,
    arena: Arena,
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
        let stream = device.context().new_stream()?;
        let (arena, kernels) = (Arena::new(&stream), GpuKernels::load(&stream)?);
        let vault = vault.map_or_else(VaultOptions::new, VaultOptions::in_folder).memory(0, 0);
        let runtime = Runtime::options().on(&device).vault(vault).build_missing(build).open()?;
        let labels = format!("device=\"{}\",cudnn=\"{}\"", device.name(), runtime.target()?.cudnn);
        let attention = GpuAttention::new(runtime, (&shape, &limits), &stream)?;
        let products = Products::new(&stream, &arena, limits.invariant)?;
        let weights = Weights::new((&shape, &limits), seed, &kernels, (&stream, &arena))?;
        let buffers = StepBuffers::new(&shape, &limits, &arena)?;
        let mut engine = Queue { shape, stream, arena, kernels, products, weights, buffers, attention };
        let graphs = Graphs::new(&mut engine, &limits, graphs)?;
        Ok(GpuModel { graphs, engine, device, labels, looked: None, used: 0 })
    }
}

impl ServedModel for GpuModel {
    fn run(&mut self, step: &ModelStep) -> Result<Vec<Picked>, ServerError> {
        let GpuModel { graphs, engine, .. } = self;
        engine.attention.update(step, &engine.stream)?;
        match graphs.for_step(step, &engine.attention) {
            Some((rows, graph)) => {
                engine.buffers.give(step, (rows, rows), &engine.stream)?;
                graph.launch()?;
            }
            None => {
                let size = engine.buffers.padded(step);
                engine.buffers.give(step, size, &engine.stream)?;
                engine.run(size)?;
            }
        }
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
        metrics.labels.get_or_init(|| self.labels.clone());
        Metrics::set(&metrics.plans, self.engine.attention.plans() as u64);
        Metrics::set(&metrics.plan_builds_total, self.engine.attention.builds());
        self.graphs.report(metrics);
    }
}

/// A part of the model.
#[derive(Clone, Copy)]
enum ModelPart {
    Embedding,
    Layer(usize),
    Picks,
}

impl Queue {
    fn parts(&self, picks: usize) -> impl Iterator<Item = ModelPart> + use<> {
        let layers = (0..self.weights.layers.len()).map(ModelPart::Layer);
        [ModelPart::Embedding].into_iter().chain(layers).chain((picks > 0).then_some(ModelPart::Picks))
    }

    /// The model over the rows that the buffers have, as one step.
    fn whole(&mut self, size: (usize, usize)) -> Result<Launches<'static>, ServerError> {
        let mut step = Launches::new(&self.stream, &self.arena);
        self.parts(size.1).try_for_each(|part| self.add(&mut step, part, size))?;
        Ok(step)
    }

    /// Queues the model part by part: the GPU works on one while the host puts the next together.
    fn run(&mut self, size: (usize, usize)) -> Result<(), ServerError> {
        self.parts(size.1).try_for_each(|part| {
            let mut step = Launches::new(&self.stream, &self.arena);
            self.add(&mut step, part, size)?;
            Ok(step.run()?)
        })
    }

    /// Adds a part of the model to a step.
    fn add(
        &mut self,
        step: &mut Launches<'static>,
        part: ModelPart,
        (rows, picks): (usize, usize),
    ) -> Result<(), ServerError> {
        let Queue { shape, kernels, products, weights, buffers, attention, .. } = self;
        let (shape, buffers) = (&*shape, &*buffers);
        let StepBuffers { x, normed, qkv, q, o, gate_up, inner, logits, out, inputs, .. } = buffers;
        let (hidden, heads) = (shape.hidden, shape.heads * shape.head_dim);
        let sizes = |rows, columns, inner| ProductSizes { rows, columns, inner };
        match part {
            ModelPart::Embedding => kernels.embed(step, (x, &weights.embedding), inputs, rows, shape),
            ModelPart::Layer(number) => {
                let layer = &weights.layers[number];
                kernels.norm(step, normed, (x, &layer.attention_norm), (rows, None), shape)?;
                products.add(step, sizes(rows, shape.qkv(), hidden), Into::Half(qkv), (normed, &layer.qkv))?;
                kernels.rotate(step, (q, qkv), (&layer.keys, &layer.values), (inputs, rows), shape)?;
                attention.add(step, layer, buffers)?;
                products.add(step, sizes(rows, hidden, heads), Into::Added(x), (o, &layer.out))?;
                kernels.norm(step, normed, (x, &layer.feed_norm), (rows, None), shape)?;
                let both = sizes(rows, 2 * shape.inner, hidden);
                products.add(step, both, Into::Half(gate_up), (normed, &layer.gate_up))?;
                kernels.silu(step, (inner, gate_up), rows, shape)?;
                products.add(step, sizes(rows, hidden, shape.inner), Into::Added(x), (inner, &layer.down))
            }
            ModelPart::Picks => {
                let chosen = (picks, Some(&inputs.pick_rows));
                kernels.norm(step, normed, (x, &weights.last_norm), chosen, shape)?;
                let wide = sizes(picks, shape.vocab, hidden);
                products.add(step, wide, Into::Float(logits), (normed, &weights.head))?;
                kernels.pick(step, (out, logits), (inputs, picks), shape)
            }
        }
    }
}
