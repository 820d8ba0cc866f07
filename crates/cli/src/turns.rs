//! Times several plans of one attention on a GPU in turns, each recorded as a CUDA graph, so that neither the host nor
//! a clock that changes favours one: for `warm --autotune` and `qkvault-lab bench engines`.

use std::sync::Arc;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaSlice, CudaStream};
use qkvault_base::random::Rng;
use qkvault_exec::serving::{Rows, Step};
use qkvault_exec::{Args, BatchMetadata, Bound, LoadedPlan, cudarc};
use qkvault_graph::{DType, Lengths, Role, Storage, TILE, Tensor, Valid};

use crate::clock::median;
use crate::memory::Recorded;

/// Microseconds of launches that a graph has, about.
const GRAPH_US: f64 = 2000.0;

/// A plan that takes so many times as long as the fastest is timed once: no noise makes it the first.
const FAR: f64 = 3.0;

/// Microseconds of all rounds of a plan after which there are no more, but two.
const ENOUGH_US: f64 = 300_000.0;

/// A launch of so many microseconds is long: it warms the card by itself and needs no others beside it, and half as
/// much more than the fastest is far. A step of 8,192 new tokens over latent caches takes half a second.
const LONG_US: f64 = 20_000.0;
const LONG_FAR: f64 = 1.5;

/// Times of plans of one attention on the GPU, in microseconds and in their order: medians of `rounds` rounds, each of
/// which replays the graph of every plan once, in turns; every other round begins with the last one. `beside` is called
/// once in each round too, and in one more before them, with which everything warms up. A plan that is far from the
/// fastest has the time of one launch, and long launches have fewer rounds.
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
    let upload = |plan| DeviceOperands::upload(stream, plan, attention);
    let mut operands = plans.iter().map(upload).collect::<anyhow::Result<Vec<_>>>()?;
    let (mut bound, mut batches) = (Vec::new(), Vec::new());
    for (plan, operands) in plans.iter().zip(&mut operands) {
        let (one, batch) = operands.bind(plan, attention, stream)?;
        bound.push([one]);
        batches.extend(batch);
    }
    let mut times = vec![Vec::new(); plans.len()];
    let mut once = Vec::new();
    for bound in &mut bound {
        bound[0].launch(stream)?;
        once.push(time(stream, || Ok(bound[0].launch(stream)?))?);
    }
    let least = once.iter().copied().fold(f64::MAX, f64::min);
    let mut graphs = Vec::new();
    for (at, (bound, once)) in bound.iter_mut().zip(&once).enumerate() {
        // Of a short launch most is the launch itself, which a graph has not.
        let far = if *once > LONG_US { LONG_FAR } else { FAR };
        if *once > GRAPH_US && *once > far * least {
            times[at].push(*once);
            continue;
        }
        let calls = ((GRAPH_US / once) as usize).clamp(if *once > LONG_US { 1 } else { 2 }, 200);
        graphs.push((at, calls, Recorded::new(bound, stream, calls)?));
    }
    let rounds = rounds.min(((ENOUGH_US / least.max(GRAPH_US)) as usize).max(2));
    for round in usize::from(least > LONG_US)..=rounds {
        let backwards = round % 2 == 1;
        graphs.sort_by_key(|(at, ..)| if backwards { plans.len() - at } else { *at });
        // Long launches leave a card warm and slow: who comes behind them must not be the same in all rounds.
        if backwards {
            beside(round)?;
        }
        for (at, calls, graph) in &mut graphs {
            let us = time(stream, || graph.launch())? / *calls as f64;
            // The first round only warms up.
            if round > 0 {
                times[*at].push(us);
            }
        }
        if !backwards {
            beside(round)?;
        }
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
pub const DOCUMENT: usize = 1024;

/// The scalars of expressions.
pub const SCALAR: f32 = 50.0;

/// Device memory of one plan: operands by role, all with numbers, because zeros would need less power.
struct DeviceOperands {
    inputs: Vec<(Role, CudaSlice<u8>)>,
    outputs: Vec<(Role, CudaSlice<u8>)>,
}

impl DeviceOperands {
    fn upload(stream: &Arc<CudaStream>, plan: &LoadedPlan, attention: &Valid) -> anyhow::Result<DeviceOperands> {
        let mut rng = Rng::new(5);
        // 16-bit numbers of either sign between 2^-3 and 2 in bf16; also as f32 they are finite.
        let block: Vec<u8> = (0..1 << 19).flat_map(|_| ((rng.bits() as u16 & 0x81ff) | 0x3e00).to_ne_bytes()).collect();
        // Of either sign between 1 and 2 in e4m3.
        let narrow: Vec<u8> = block.iter().map(|byte| (byte & 0x87) | 0x38).collect();
        let (block, narrow) = (stream.clone_htod(&block)?, stream.clone_htod(&narrow)?);
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        let given = plan.facts().bindings.iter().filter(|b| !b.scalar && !b.role.is_internal());
        for binding in given.filter(|b| !b.role.is_followed() && !plan.provides(b.role)) {
            let bytes = usize::try_from(binding.bytes)?;
            if let Some(mask) = mask_data(attention, (binding.role, binding.dtype), bytes).filter(|_| !binding.output) {
                inputs.push((binding.role, stream.clone_htod(&mask)?));
                continue;
            }
            let mut slice = stream.alloc_zeros::<u8>(bytes)?;
            let block = if binding.dtype.is_fp8() { &narrow } else { &block };
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
        let keys = self.inputs.iter().find(|(role, _)| *role == Role::K).filter(|_| is_latent(attention));
        for (role, slice) in &self.inputs {
            args = args.tensor(*role, keys.filter(|_| *role == Role::V).map_or(slice, |(_, keys)| keys));
        }
        for (role, slice) in &mut self.outputs {
            args = args.tensor_mut(*role, slice);
        }
        for scalar in plan.facts().bindings.iter().filter(|b| b.scalar && b.role != Role::Scale) {
            args = args.scalar(scalar.role, SCALAR);
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

/// Whether values are columns of keys, as in a latent cache: rows of both lie where those of keys do. Strides of axes
/// with one element say nothing, and are others in canonical form.
#[must_use]
pub fn is_latent(a: &Valid) -> bool {
    let same = |axis: usize| a.k.dims[axis] == 1 || a.k.strides[axis] == a.v.strides[axis];
    a.k.is_paged() && a.v.head_dim() < a.k.head_dim() && (0..3).all(same)
}

/// What decides which keys are seen, so that tiles are left out as in training and not by chance: each token has a
/// document of [`DOCUMENT`] tokens, a tensor over queries and keys is a causal mask within documents, of the blocks of
/// a block mask every fourth diagonal is there, and drafts are a tree of two children each. `None` for any other
/// operand than of integers.
fn mask_data(attention: &Valid, (role, dtype): (Role, DType), bytes: usize) -> Option<Vec<u8>> {
    let at_least_one = |n: i64| usize::try_from(n).unwrap_or(0).max(1);
    let (queries, keys) = attention.seq();
    let [queries, keys] = [queries, keys].map(at_least_one);
    if role == Role::BlockMask {
        let [rows, columns] = [queries, keys].map(|n| n.div_ceil(TILE));
        let line = columns.div_ceil(8);
        let byte = |at: usize| {
            let (row, first) = (at / line % rows, at % line * 8);
            (0..8)
                .filter(|bit| (row + 4 * columns - first - bit).is_multiple_of(4))
                .fold(0, |byte, bit| byte | 1 << bit)
        };
        return Some((0..bytes).map(byte).collect());
    }
    if dtype != DType::I32 {
        return None;
    }
    if role == Role::DraftTree {
        let bits: Vec<u64> = tree(queries);
        return Some((0..bytes / 8).flat_map(|at| bits[at % queries].to_le_bytes()).collect());
    }
    let mut whole = attention.score_tensors().filter(|tensor| tensor.dims[2] > 1 && tensor.dims[3] > 1);
    let whole = whole.any(|tensor| tensor.role == role);
    let value = |at: usize| {
        let (query, key) = (at / keys % queries, at % keys);
        let id = if whole {
            i32::from(key <= query && key / DOCUMENT == query / DOCUMENT)
        } else {
            (at % queries / DOCUMENT) as i32
        };
        id.to_ne_bytes()
    };
    Some((0..bytes / 4).flat_map(value).collect())
}

/// A tree of so many drafts in which each has two children, as bits: of a draft and those that it follows.
fn tree(drafts: usize) -> Vec<u64> {
    let mut bits: Vec<u64> = Vec::new();
    for draft in 0..drafts {
        let before = draft.checked_sub(1).map_or(0, |n| bits[n / 2]);
        bits.push(before | 1_u64.checked_shl(draft as u32).unwrap_or(0));
    }
    bits
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

/// Queries, keys and pages of a batch whose sequences are as long as can be; `None` where lengths are not given. Where
/// packed rows have less room than that, they are as uneven as such batches are: documents take half of what is left
/// each, and in a step of serving one prompt takes what the decodes leave, a row each.
#[must_use]
pub fn full(a: &Valid) -> Option<Full> {
    if a.mask.lengths != Lengths::PerSequence {
        return None;
    }
    let (queries, keys) = a.seq();
    let batch = usize::try_from(a.batch()).ok()?;
    let share = if matches!(a.k.storage, Storage::Varlen { .. }) { 2 } else { 1 };
    let each = |tensor: &Tensor, n: i64| {
        let (most, mut rows) = (i32::try_from(n).ok()?, vec![]);
        match tensor.storage {
            Storage::Varlen { tokens } if tokens < a.batch() * n => {
                let mut left = i32::try_from(tokens).ok()?;
                for behind in (0..i32::try_from(batch).ok()?).rev() {
                    let one = (left - left / share * (share - 1)).min(most).min(left - behind);
                    rows.push(one);
                    left -= one;
                }
            }
            Storage::Varlen { .. } | Storage::Dense | Storage::Paged { .. } => rows.resize(batch, most),
        }
        Some(rows)
    };
    // Pages of a sequence lie apart, as in a server: the page after a sequence's is another one's.
    let pages = a.k.pages_per_sequence().unwrap_or(0);
    let pool = match a.k.storage {
        Storage::Paged { pages, .. } => pages.max(1),
        Storage::Dense | Storage::Varlen { .. } => 1,
    };
    // A server's pool may have fewer pages than all sequences could fill; they share them then.
    let page = |n: i64, b: usize| i32::try_from((n * a.batch() + b as i64) % pool).unwrap_or(0);
    let table = |b: usize| (0..pages).map(|n| page(n, b)).collect();
    let tables = if pages > 0 { (0..batch).map(table).collect() } else { Vec::new() };
    Some(Full { queries: each(&a.q, queries)?, keys: each(&a.k, keys)?, tables })
}

#[cfg(test)]
mod tests {
    use qkvault_graph::{Attention, Band, validate};

    use super::*;

    fn full_batch(q: Tensor, k: Tensor) -> Full {
        let a = Attention::forward(q, k, k, q).with_lengths().with_band(Band::CAUSAL_BOTTOM_RIGHT);
        full(&validate(a).expect("valid")).expect("lengths")
    }

    #[test]
    fn packed_rows_without_room_for_all_are_shared_out_unevenly() {
        let documents = Tensor::thd(8, 4, 8192, 64, 16_384, DType::BF16);
        let Full { queries, keys, .. } = full_batch(documents, documents);
        assert_eq!(queries, [8192, 4096, 2048, 1024, 512, 256, 128, 64]);
        assert_eq!(keys, queries);
        let step = Tensor::thd(33, 4, 512, 64, 544, DType::BF16);
        let pages = Tensor::paged_nhd(33, 4, 1024, 64, 33 * 16, 64, DType::BF16);
        let Full { queries, keys, .. } = full_batch(step, pages);
        assert_eq!((queries[0], &queries[1..], keys), (512, &[1; 32][..], vec![1024; 33]));
        let all = Tensor::thd(2, 4, 512, 64, 1024, DType::BF16);
        assert_eq!(full_batch(all, all).queries, [512, 512]);
    }

    /// `warm --autotune` gave pages that are not there: illegal addresses, and times of nothing that were kept.
    #[test]
    fn a_pool_that_is_smaller_than_a_full_batch_has_no_page_beyond_it() {
        let q = Tensor::bshd(32, 4, 1, 64, DType::BF16);
        let pages = Tensor::paged_nhd(32, 4, 32_768, 64, 8192, 64, DType::BF16);
        let tables = full_batch(q, pages).tables;
        assert_eq!((tables.len(), tables[0].len()), (32, 512));
        assert!(tables.iter().flatten().all(|page| (0..8192).contains(page)));
    }

    #[test]
    fn masks_of_operands_leave_tiles_out() {
        let a = Attention::bshd(1, (2, 2), (2048, 2048), 64, DType::BF16);
        let mut blocks = a.clone();
        blocks.block_mask = true;
        let blocks = validate(blocks).expect("valid");
        let bits = mask_data(&blocks, (Role::BlockMask, DType::U8), 2 * 16 * 2).expect("a block mask");
        let seen = |row: usize, column: usize| bits[row * 2 + column / 8] >> (column % 8) & 1 == 1;
        assert!(seen(0, 0) && seen(5, 5) && seen(20, 4) && seen(3, 15) && !seen(5, 6) && !seen(6, 5));
        let ids =
            qkvault_graph::expr::library::document_mask("q", "k", 1, 2048, 2048).build_mask_mod().expect("builds");
        let documents = validate(a.with_mask_mod(ids)).expect("valid");
        let ids = mask_data(&documents, (Role::ScoreTensor(0), DType::I32), 2048 * 4).expect("ids");
        assert_eq!((ids[1023 * 4], ids[1024 * 4]), (0, 1));
        assert_eq!(mask_data(&documents, (Role::Q, DType::BF16), 4), None);
        // The place of a chunk is no noise.
        assert_eq!(mask_data(&documents, (Role::QueryOrigin, DType::I32), 4), Some(vec![0; 4]));
    }
}
