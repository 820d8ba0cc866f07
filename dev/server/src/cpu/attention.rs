//! The attention on the CPU: the same descriptions and the same lengths, offsets and page tables as on a GPU, computed
//! by the oracle.

use half::bf16;
use qkvault::cudnn::op::TensorKind;
use qkvault::cudnn::{CompileOptions, OpGraph, Profile, lower};
use qkvault::exec::serving::{PlanSet, StepBuffer, StepLayout};
use qkvault::graph::{CudnnVersion, DType, LibrarySet, Role, Valid};
use qkvault::serving::Buckets;
use qkvault_reference::{Buffer, Inputs, forward};

use crate::ServerError;
use crate::config::{ModelShape, ServerLimits};
use crate::step::{ModelStep, StepPart};

/// Keys and values of a layer, in pages.
pub(super) struct LayerPages {
    keys: Vec<u8>,
    values: Vec<u8>,
    row: usize,
}

impl LayerPages {
    pub(super) fn new(shape: &ModelShape, limits: &ServerLimits) -> LayerPages {
        let row = shape.kv_heads * shape.head_dim;
        let zeros = vec![0; limits.pages * limits.page * row * 2];
        LayerPages { keys: zeros.clone(), values: zeros, row }
    }

    /// Writes a key and a value. A slot below zero is that of no sequence.
    pub(super) fn write(&mut self, slot: i32, key: &[f32], value: &[f32]) {
        let Ok(slot) = usize::try_from(slot) else { return };
        let range = slot * self.row * 2..(slot + 1) * self.row * 2;
        self.keys[range.clone()].copy_from_slice(&bytes(key));
        self.values[range].copy_from_slice(&bytes(value));
    }
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|&x| bf16::from_f32(x).to_ne_bytes()).collect()
}

/// What stands for a plan: its attention, and the place of each operand of its steps.
struct CpuPlan {
    attention: Valid,
    graph: OpGraph,
    image: StepBuffer,
}

pub(super) struct CpuAttention {
    plans: PlanSet<CpuPlan>,
    heads: usize,
    head_dim: usize,
}

impl CpuAttention {
    pub(super) fn new(shape: &ModelShape, limits: &ServerLimits) -> Result<CpuAttention, ServerError> {
        let target = Profile::named("h200")?.target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
        let layer = limits.layer(shape);
        let plans = PlanSet::new(Buckets::new(&limits.policy(shape))?, |bucket| -> Result<_, ServerError> {
            let attention = layer.attention(&bucket)?;
            let graph = lower(&attention, &target, &CompileOptions::default())?;
            let image = StepBuffer::new(StepLayout::of_graph(&attention, &graph)?);
            Ok(Some(CpuPlan { attention, graph, image }))
        })?;
        Ok(CpuAttention { plans, heads: shape.heads, head_dim: shape.head_dim })
    }

    pub(super) fn plans(&self) -> usize {
        self.plans.iter().count()
    }

    /// The output of every row.
    pub(super) fn run(
        &mut self,
        step: &ModelStep,
        queries: &[f32],
        pool: &LayerPages,
    ) -> Result<Vec<f32>, ServerError> {
        let mut outputs = Vec::with_capacity(queries.len());
        for part in [step.decode(), step.prefill()].into_iter().flatten() {
            self.part(&part, queries, pool, &mut outputs)?;
        }
        Ok(outputs)
    }

    fn part(
        &mut self,
        part: &StepPart<'_>,
        queries: &[f32],
        pool: &LayerPages,
        outputs: &mut Vec<f32>,
    ) -> Result<(), ServerError> {
        let CpuAttention { plans, heads, head_dim } = self;
        let at = plans.pick(part.size()).ok_or_else(|| format!("no plan for {:?}", part.size()))?;
        let CpuPlan { attention, graph, image } = plans.get_mut(at).ok_or("the plan of a step is not there")?;
        image.fill(&part.batch())?;
        let mut inputs = Inputs::new();
        for (role, at, words) in image.layout().operands() {
            let is = |kind| matches!(kind, TensorKind::Operand(other) if other == role);
            let dtype = graph.tensors.iter().find(|tensor| is(tensor.kind)).map_or(DType::I32, |tensor| tensor.dtype);
            let bytes = image.words()[at..at + words].iter().flat_map(|word| word.to_ne_bytes()).collect();
            inputs.insert(role, Buffer::new(dtype, bytes)?);
        }
        let sequences = part.queries.sequences();
        let rows: i64 = (0..sequences).map(|sequence| part.queries.length(sequence)).sum();
        let own = &queries[part.row * *heads * *head_dim..][..rows as usize * *heads * *head_dim];
        let mut own = bytes(own);
        own.resize(2 * attention.q.span().ok_or("the queries are too large")? as usize, 0);
        inputs.insert(Role::Q, Buffer::new(DType::BF16, own)?);
        inputs.insert(Role::K, Buffer::new(DType::BF16, pool.keys.clone())?);
        inputs.insert(Role::V, Buffer::new(DType::BF16, pool.values.clone())?);
        inputs.set_f32(Role::Scale, attention.default_scale());
        let all = forward(attention, &inputs)?;
        let o = all.get(Role::O).ok_or("the forward has no output")?;
        for sequence in 0..sequences {
            for s in 0..part.queries.length(sequence) as usize {
                let each = (0..*heads).flat_map(|h| (0..*head_dim).map(move |d| (h, d)));
                outputs.extend(each.map(|(h, d)| bf16::from_f64(o.at(sequence, h, s, d)).to_f32()));
            }
        }
        Ok(())
    }
}
