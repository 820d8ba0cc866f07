//! The attention by qkvault: the plans of the serving set, loaded before the first request, each with its lengths and
//! tables on the GPU.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use qkvault::Runtime;
use qkvault::exec::serving::PlanSet;
use qkvault::exec::{Args, BatchMetadata, Launches, ServePlan, Workspace};
use qkvault::serving::{Buckets, StepSize};

use super::memory::{GpuLayer, StepBuffers};
use crate::ServerError;
use crate::config::{ModelShape, ServerLimits};
use crate::step::{ModelStep, StepPart};

struct LoadedStep {
    batch: BatchMetadata,
    plan: ServePlan,
}

/// A part of a step on its plan: the first row, and the plan's number.
type ChosenPlan = (usize, usize);

pub(super) struct GpuAttention {
    plans: PlanSet<LoadedStep>,
    workspace: Arc<Workspace>,
    runtime: Runtime,
    built: u64,
    chosen: Vec<ChosenPlan>,
    row: usize,
}

impl GpuAttention {
    pub(super) fn new(
        runtime: Runtime,
        (shape, limits): (&ModelShape, &ServerLimits),
        stream: &Arc<CudaStream>,
    ) -> Result<GpuAttention, ServerError> {
        let (layer, buckets) = (limits.layer(shape), Buckets::new(&limits.policy(shape))?);
        // In the background on all cores; `serving` then finds each one loaded. Decodes that are refused run as chunks.
        let failed = runtime.preload(limits.attentions(shape)?).wait();
        if let Some((_, error)) = failed.into_iter().find(|(_, error)| !error.is_refused()) {
            return Err(format!("{error}; start once with --build, or warm the vault").into());
        }
        let plans = runtime.serving(&layer, &buckets)?.plans.try_map(|_, plan| -> Result<LoadedStep, ServerError> {
            let batch = plan.batch(stream)?;
            Ok(LoadedStep { batch, plan })
        })?;
        let bytes = plans.iter().map(|(_, loaded)| loaded.plan.plan.workspace()).max().unwrap_or(0);
        let workspace = Workspace::allocate(stream, bytes.max(1))?;
        let built = runtime.planner().vault().stats().builds;
        Ok(GpuAttention { plans, workspace, runtime, built, chosen: Vec::new(), row: shape.heads * shape.head_dim })
    }

    /// The sequences of each plan.
    pub(super) fn batches(&self) -> impl Iterator<Item = usize> {
        self.plans.iter().map(|(bucket, _)| bucket.batch as usize)
    }

    /// The plan of a decode.
    pub(super) fn plan_of(&self, sequences: usize, keys: i64) -> Option<usize> {
        self.plans.pick(StepSize { sequences: sequences as i64, queries: 1, keys })
    }

    /// Chooses the plans of a step, and copies its lengths and tables to the GPU.
    pub(super) fn update(&mut self, step: &ModelStep, stream: &Arc<CudaStream>) -> Result<(), ServerError> {
        self.chosen.clear();
        for part in [step.decode(), step.prefill()].into_iter().flatten() {
            let at = self.plans.pick(part.size()).ok_or_else(|| format!("no plan for {:?}", part.size()))?;
            self.put(at, &part, stream)?;
        }
        Ok(())
    }

    fn put(&mut self, at: usize, part: &StepPart<'_>, stream: &Arc<CudaStream>) -> Result<(), ServerError> {
        let loaded = self.plans.get_mut(at).ok_or("the plan of a step is not there")?;
        loaded.batch.update(&part.batch(), stream)?;
        self.chosen.push((part.row, at));
        Ok(())
    }

    /// Chooses a plan whose sequences are as they were, for a capture.
    pub(super) fn choose(&mut self, at: usize) {
        self.chosen = vec![(0, at)];
    }

    /// Adds the attention of a layer to a step, for all parts: the decode first, because its plan may write rows behind
    /// the last sequence, which are then those of the chunks.
    pub(super) fn add(
        &self,
        step: &mut Launches<'static>,
        layer: &GpuLayer,
        buffers: &StepBuffers,
    ) -> Result<(), ServerError> {
        for &(row, at) in &self.chosen {
            let LoadedStep { batch, plan } = self.plans.get(at).ok_or("the plan of a step is not there")?;
            let from = row * self.row;
            let (q, o) = (buffers.q.part(from..buffers.q.len())?, buffers.o.part(from..buffers.o.len())?);
            let args = Args::new().q(&q).k(&layer.keys).v(&layer.values).o(&o);
            step.launch(&plan.plan, args.batch(batch).workspace(&self.workspace))?;
        }
        Ok(())
    }

    /// Plans that were built since the server was ready.
    pub(super) fn builds(&self) -> u64 {
        self.runtime.planner().vault().stats().builds - self.built
    }

    pub(super) fn plans(&self) -> usize {
        self.plans.iter().count()
    }
}
