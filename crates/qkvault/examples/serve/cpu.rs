//! Runs steps without a GPU: interprets the op graph of each plan on the operands that the GPU would get, and rounds
//! every result to its declared type.

use half::bf16;
use qkvault::exec::serving::{PlanSet, Step, StepBuffer, StepLayout};
use qkvault::graph::op::TensorKind;
use qkvault::graph::{CompileOptions, CudnnVersion, DType, LibrarySet, OpGraph, Profile, Role, Valid, lower};
use qkvault::serving::{Bucket, Buckets, StepSize};
use qkvault_reference::{Buffer, Inputs, Precision, interpret};

use crate::model::{HEAD_DIM, Model, QUERY_HEADS};
use crate::pages::Pool;
use crate::{Failure, Machine, Ran, is_decode};

/// One plan: its attention, the op graph that cuDNN would get, and its step operands.
struct Interpreted {
    bucket: Bucket,
    attention: Valid,
    graph: OpGraph,
    image: StepBuffer,
}

pub(crate) struct Cpu {
    plans: PlanSet<Interpreted>,
    version: CudnnVersion,
}

impl Cpu {
    pub(crate) fn new(model: &Model, buckets: &Buckets, version: &str) -> Result<Cpu, Failure> {
        let version: CudnnVersion = version.parse()?;
        let target = Profile::named("h200")?.target(version, LibrarySet::Slim);
        let layer = model.layer();
        let plans = PlanSet::new(buckets.clone(), |bucket| -> Result<_, Failure> {
            let attention = layer.attention(&bucket)?;
            let graph = lower(&attention, &target, &CompileOptions::default())?;
            let mut image = StepBuffer::new(StepLayout::of_graph(&attention, &graph)?);
            image.check_pages(true);
            Ok(Some(Interpreted { bucket, attention, graph, image }))
        })?;
        Ok(Cpu { plans, version })
    }
}

/// The operands of a step, by role, in the form that the oracle reads.
pub(crate) fn inputs(
    attention: &Valid,
    image: &StepBuffer,
    dtype: impl Fn(Role) -> DType,
    queries: &[bf16],
    pool: &Pool,
) -> Result<Inputs, Failure> {
    let mut inputs = Inputs::new();
    for (role, at, words) in image.layout().operands() {
        let bytes = image.words()[at..at + words].iter().flat_map(|word| word.to_ne_bytes()).collect();
        inputs.insert(role, Buffer::new(dtype(role), bytes)?);
    }
    let numbers = |list: &[bf16], room: usize| -> Result<Buffer, Failure> {
        let zeros = std::iter::repeat_n(bf16::ZERO, room.saturating_sub(list.len()));
        let bytes = list.iter().copied().chain(zeros).flat_map(bf16::to_ne_bytes).collect();
        Ok(Buffer::new(DType::BF16, bytes)?)
    };
    let room = attention.q.span().ok_or("the queries are too large")? as usize;
    inputs.insert(Role::Q, numbers(queries, room)?);
    inputs.insert(Role::K, numbers(&pool.keys, 0)?);
    inputs.insert(Role::V, numbers(&pool.values, 0)?);
    inputs.set_f32(Role::Scale, attention.default_scale());
    Ok(inputs)
}

impl Machine for Cpu {
    fn name(&self) -> String {
        format!("op graphs for cuDNN {}, interpreted", self.version)
    }

    fn pick(&self, size: StepSize) -> Option<usize> {
        self.plans.pick(size)
    }

    fn run(&mut self, at: usize, step: &Step<'_>, queries: &[bf16], pool: &Pool) -> Result<Ran, Failure> {
        let plan = self.plans.get_mut(at).ok_or("the picked plan does not exist")?;
        let Interpreted { bucket, attention, graph, image } = plan;
        image.fill(step)?;
        let dtype = |role| {
            let is = |kind| matches!(kind, TensorKind::Operand(r) if r == role);
            graph.tensors.iter().find(|t| is(t.kind)).map_or(DType::I32, |t| t.dtype)
        };
        let inputs = inputs(attention, image, dtype, queries, pool)?;
        let results = interpret(graph, &inputs, Precision::Rounded)?;
        let o = results.get(&Role::O).ok_or("the forward has no output")?;
        let mut outputs = Vec::new();
        for sequence in 0..step.queries.sequences() {
            for s in 0..step.queries.length(sequence) as usize {
                let each = (0..QUERY_HEADS).flat_map(|h| (0..HEAD_DIM).map(move |d| (h, d)));
                outputs.extend(each.map(|(h, d)| o.at([sequence, h, s, d]) as f32));
            }
        }
        debug_assert!(!is_decode(bucket.kind) || outputs.len() == step.queries.sequences() * QUERY_HEADS * HEAD_DIM);
        Ok(Ran { outputs, attention: attention.clone(), inputs })
    }

    fn builds(&self) -> u64 {
        0
    }
}
