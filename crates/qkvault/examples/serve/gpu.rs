//! Runs steps on a GPU with plans from the vault. Each plan has one batch of lengths, offsets and page tables, updated
//! in place.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use half::bf16;
use qkvault::Runtime;
use qkvault::cache::VaultOptions;
use qkvault::exec::serving::{PlanSet, Step};
use qkvault::exec::{Args, BatchMetadata, Device, ServePlan, cudarc};
use qkvault::graph::DType;
use qkvault::serving::{Buckets, StepSize};

use crate::model::{HEAD_DIM, KEY_HEADS, Model, PAGE, PAGES, QUERY_HEADS};
use crate::pages::Pool;
use crate::{Failure, Machine, Ran, cpu};

/// Rows of the query buffer and of the output buffer.
const ROWS: usize = 256;

struct Loaded {
    batch: BatchMetadata,
    plan: ServePlan,
}

pub(crate) struct Gpu {
    plans: PlanSet<Loaded>,
    stream: Arc<CudaStream>,
    runtime: Runtime,
    queries: CudaSlice<bf16>,
    keys: CudaSlice<bf16>,
    values: CudaSlice<bf16>,
    outputs: CudaSlice<bf16>,
    built: u64,
    name: String,
}

impl Gpu {
    pub(crate) fn new(
        device: &Device,
        model: &Model,
        buckets: &Buckets,
        vault: VaultOptions,
        build: bool,
    ) -> Result<Gpu, Failure> {
        let runtime = Runtime::options().on(device).vault(vault).build_missing(build).open()?;
        let served = runtime.serving(&model.layer(), buckets)?;
        let stream = device.context().new_stream()?;
        let pool = PAGES * PAGE * KEY_HEADS * HEAD_DIM;
        let zeros = |n| stream.alloc_zeros::<bf16>(n);
        let [queries, outputs] = [zeros(ROWS * QUERY_HEADS * HEAD_DIM)?, zeros(ROWS * QUERY_HEADS * HEAD_DIM)?];
        let [keys, values] = [zeros(pool)?, zeros(pool)?];
        let plans = served.plans.try_map(|_, plan| -> Result<Loaded, Failure> {
            let mut batch = plan.batch(&stream)?;
            batch.check_pages(true);
            Ok(Loaded { batch, plan })
        })?;
        let built = runtime.planner().vault().stats().builds;
        let name = device.name().to_owned();
        Ok(Gpu { plans, stream, runtime, queries, keys, values, outputs, built, name })
    }
}

impl Machine for Gpu {
    fn name(&self) -> String {
        let cudnn = self.runtime.target().map_or_else(|_| "no cuDNN".to_owned(), ToString::to_string);
        format!("{}, {cudnn}", self.name)
    }

    fn pick(&self, size: StepSize) -> Option<usize> {
        self.plans.pick(size)
    }

    fn run(&mut self, at: usize, step: &Step<'_>, queries: &[bf16], pool: &Pool) -> Result<Ran, Failure> {
        let Loaded { batch, plan } = self.plans.get_mut(at).ok_or("the picked plan does not exist")?;
        batch.update(step, &self.stream)?;
        // A real engine's kernels write keys and values into the pool; here they come from the host.
        self.stream.memcpy_htod(&pool.keys, &mut self.keys)?;
        self.stream.memcpy_htod(&pool.values, &mut self.values)?;
        self.stream.memcpy_htod(queries, &mut self.queries)?;
        let args = Args::new().q(&self.queries).k(&self.keys).v(&self.values).o(&mut self.outputs);
        plan.plan.launch(&self.stream, args.batch(batch))?;
        let outputs = self.stream.clone_dtoh(&self.outputs.slice(..queries.len()))?;
        batch.verify(&self.stream)?;
        let dtype = |role| plan.plan.facts().bindings.iter().find(|b| b.role == role).map_or(DType::I32, |b| b.dtype);
        let inputs = cpu::inputs(&plan.attention, batch.buffer(), dtype, queries, pool)?;
        let outputs = outputs.into_iter().map(bf16::to_f32).collect();
        Ok(Ran { outputs, attention: plan.attention.clone(), inputs })
    }

    fn builds(&self) -> u64 {
        self.runtime.planner().vault().stats().builds - self.built
    }
}
