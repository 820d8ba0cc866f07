//! Times several plans of one attention on a GPU in turns, each recorded as a CUDA graph, so that neither the host nor
//! a clock that changes favours one: for `warm --autotune` and `qkvault-lab bench engines`.

use std::sync::Arc;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaSlice, CudaStream};
use qkvault_base::random::Rng;
use qkvault_exec::serving::{Rows, Step};
use qkvault_exec::{Args, BatchMetadata, Bound, LoadedPlan, cudarc};
use qkvault_graph::{DType, Lengths, Role, Valid};

use crate::clock::median;
use crate::memory::Recorded;

/// Microseconds of launches that a graph has, about.
const GRAPH_US: f64 = 2000.0;

/// Times of plans of one attention on the GPU, in microseconds and in their order: medians of `rounds` rounds, each of
/// which replays the graph of every plan once, in turns; every other round begins with the last one. `beside` is called
/// once in each round too, and in one more before them, with which everything warms up.
///
/// # Errors
///
/// The driver has no memory for the operands, or fails.
pub fn in_turns(
    stream: &Arc<CudaStream>,
    attention: &Valid,
    plans: &[LoadedPlan],
    rounds: usize,
    mut beside: impl FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f64>> {
    let upload = |plan| DeviceOperands::upload(stream, plan, attention.seq().0);
    let mut operands = plans.iter().map(upload).collect::<anyhow::Result<Vec<_>>>()?;
    let (mut bound, mut batches) = (Vec::new(), Vec::new());
    for (plan, operands) in plans.iter().zip(&mut operands) {
        let (one, batch) = operands.bind(plan, attention, stream)?;
        bound.push([one]);
        batches.extend(batch);
    }
    let mut graphs = Vec::new();
    for (at, bound) in bound.iter_mut().enumerate() {
        bound[0].launch(stream)?;
        let once = time(stream, || Ok(bound[0].launch(stream)?))?;
        let calls = ((GRAPH_US / once) as usize).clamp(2, 200);
        graphs.push((at, calls, Recorded::new(bound, stream, calls)?));
    }
    let mut times = vec![Vec::new(); plans.len()];
    for round in 0..=rounds {
        if round % 2 == 1 {
            graphs.reverse();
        }
        for (at, calls, graph) in &mut graphs {
            let us = time(stream, || graph.launch())? / *calls as f64;
            // The first round only warms up.
            if round > 0 {
                times[*at].push(us);
            }
        }
        beside(round)?;
    }
    Ok(times.iter_mut().map(|list| median(list).unwrap_or(f64::INFINITY)).collect())
}

/// Microseconds of the GPU for what `launch` queues.
///
/// # Errors
///
/// The launch fails, or the driver.
pub fn time(stream: &Arc<CudaStream>, mut launch: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let event = || stream.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
    let (start, end) = (event()?, event()?);
    start.record(stream)?;
    launch()?;
    end.record(stream)?;
    end.synchronize()?;
    Ok(f64::from(start.elapsed_ms(&end)?) * 1e3)
}

/// Tokens of the documents that integer tensors of expressions name by position.
const DOCUMENT: usize = 1024;

/// Device memory of one plan: operands by role, all with numbers, because zeros would need less power.
struct DeviceOperands {
    inputs: Vec<(Role, CudaSlice<u8>)>,
    outputs: Vec<(Role, CudaSlice<u8>)>,
}

impl DeviceOperands {
    fn upload(stream: &Arc<CudaStream>, plan: &LoadedPlan, queries: i64) -> anyhow::Result<DeviceOperands> {
        let queries = usize::try_from(queries)?.max(1);
        let mut rng = Rng::new(5);
        // 16-bit numbers of either sign between 2^-3 and 2 in bf16; also as f32 they are finite.
        let block: Vec<u8> = (0..1 << 19).flat_map(|_| ((rng.bits() as u16 & 0x81ff) | 0x3e00).to_ne_bytes()).collect();
        let block = stream.clone_htod(&block)?;
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        let given = plan.facts().bindings.iter().filter(|b| !b.scalar && !b.role.is_internal());
        for binding in given.filter(|b| !b.role.is_followed() && !plan.provides(b.role)) {
            let bytes = usize::try_from(binding.bytes)?;
            if binding.dtype == DType::I32 && !binding.output {
                let document = |at: usize| ((at % queries / DOCUMENT) as i32).to_ne_bytes();
                let ids: Vec<u8> = (0..bytes / 4).flat_map(document).collect();
                inputs.push((binding.role, stream.clone_htod(&ids)?));
                continue;
            }
            let mut slice = stream.alloc_zeros::<u8>(bytes)?;
            for from in (0..bytes).step_by(block.len()) {
                let to = bytes.min(from + block.len());
                stream.memcpy_dtod(&block.slice(..to - from), &mut slice.slice_mut(from..to))?;
            }
            if binding.output { &mut outputs } else { &mut inputs }.push((binding.role, slice));
        }
        Ok(DeviceOperands { inputs, outputs })
    }

    /// Binds the operands, with lengths and pages of a full batch.
    fn bind<'a>(
        &'a mut self,
        plan: &LoadedPlan,
        attention: &Valid,
        stream: &Arc<CudaStream>,
    ) -> anyhow::Result<(Bound<'a>, Option<BatchMetadata>)> {
        let mut args = Args::new().scale(0.088);
        // Values of a latent cache are columns of its keys.
        let latent = attention.k.strides == attention.v.strides && attention.v.head_dim() < attention.k.head_dim();
        let keys = self.inputs.iter().find(|(role, _)| *role == Role::K).filter(|_| latent);
        for (role, slice) in &self.inputs {
            args = args.tensor(*role, keys.filter(|_| *role == Role::V).map_or(slice, |(_, keys)| keys));
        }
        for (role, slice) in &mut self.outputs {
            args = args.tensor_mut(*role, slice);
        }
        for scalar in plan.facts().bindings.iter().filter(|b| b.scalar && b.role != Role::Scale) {
            args = args.scalar(scalar.role, 50.0_f32);
        }
        let batch = full(attention).map(|Full { queries, keys, tables }| {
            let mut batch = BatchMetadata::new(plan, attention, stream)?;
            batch.update(&Step::paged(Rows::Lengths(&queries), Rows::Lengths(&keys), &tables), stream)?;
            anyhow::Ok(batch)
        });
        let batch = batch.transpose()?;
        if let Some(batch) = &batch {
            args = args.batch(batch);
        }
        Ok((plan.bind(args, stream)?, batch))
    }
}

/// Queries, keys and pages of each sequence of a batch.
pub struct Full {
    /// Queries of each sequence.
    pub queries: Vec<i32>,
    /// Keys of each sequence.
    pub keys: Vec<i32>,
    /// Pages of each sequence; empty where keys are not in pages.
    pub tables: Vec<Vec<i32>>,
}

/// Queries, keys and pages of a batch whose sequences are as long as can be; `None` where lengths are not given.
#[must_use]
pub fn full(a: &Valid) -> Option<Full> {
    if a.mask.lengths != Lengths::PerSequence {
        return None;
    }
    let (queries, keys) = a.seq();
    let batch = usize::try_from(a.batch()).ok()?;
    let each = |n: i64| Some(vec![i32::try_from(n).ok()?; batch]);
    // Pages of a sequence lie apart, as in a server: the page after a sequence's is another one's.
    let pages = a.k.pages_per_sequence().unwrap_or(0);
    let table = |b: usize| (0..pages).map(|n| i32::try_from(n * a.batch()).unwrap_or(0) + b as i32).collect();
    let tables = if pages > 0 { (0..batch).map(table).collect() } else { Vec::new() };
    Some(Full { queries: each(queries)?, keys: each(keys)?, tables })
}
