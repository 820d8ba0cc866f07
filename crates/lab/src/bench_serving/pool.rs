//! Memory of the measurements: a page pool for keys, one for values, and queries, and plans bound to them, each with
//! outputs of its own. All memory that is read holds nonzero numbers, because zeros would need less power.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use qkvault_compile::OnMiss;
use qkvault_exec::{Args, BatchMetadata, Bound, Captured, ServePlan, cudarc};
use qkvault_graph::Role;
use qkvault_serving::{Bucket, ServeLayer};

use super::{Bench, DTYPE, HEAD_DIM, HEADS, PAGE, SCALE};

/// Bytes of a page of keys, or of values.
const PAGE_BYTES: usize = (PAGE * HEADS.1 * HEAD_DIM * 2) as usize;

/// Rows of the query buffer.
const ROWS: usize = 40_000;

/// The pool.
pub(super) struct Pool {
    keys: CudaSlice<u8>,
    values: CudaSlice<u8>,
    queries: CudaSlice<u8>,
    /// Pages in random order.
    pub(super) order: Vec<i32>,
}

/// splitmix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `n - 1`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((self.bits() >> 16) % n.max(1) as u64) as usize
    }

    /// A number from `low` to `high`, uniform in its logarithm.
    pub(super) fn spread(&mut self, low: usize, high: usize) -> usize {
        let unit = (self.bits() >> 11) as f64 * 2f64.powi(-53);
        let (a, b) = ((low as f64).ln(), ((high + 1) as f64).ln());
        ((a + unit * (b - a)).exp() as usize).clamp(low, high)
    }
}

impl Pool {
    /// Allocates and fills the pool.
    pub(super) fn new(stream: &Arc<CudaStream>, pages: usize) -> anyhow::Result<Pool> {
        let mut random = Random(1);
        // bf16 numbers of either sign between 2^-3 and 2. Kernels do the same work for all of them.
        let word = |random: &mut Random| {
            let bits = random.bits();
            (0..4_u32).map(move |i| ((bits >> (16 * i)) as u16 & 0x81ff) | 0x3e00)
        };
        let block: Vec<u8> = (0..1 << 20).flat_map(|_| word(&mut random)).flat_map(u16::to_ne_bytes).collect();
        let block = stream.clone_htod(&block)?;
        let filled = |bytes: usize| -> anyhow::Result<CudaSlice<u8>> {
            let mut memory = stream.alloc_zeros::<u8>(bytes)?;
            for start in (0..bytes).step_by(block.len()) {
                let end = bytes.min(start + block.len());
                stream.memcpy_dtod(&block.slice(..end - start), &mut memory.slice_mut(start..end))?;
            }
            Ok(memory)
        };
        let mut order: Vec<i32> = (0..pages as i32).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i + 1));
        }
        let rows = ROWS * (HEADS.0 * HEAD_DIM * 2) as usize;
        let [keys, values, queries] = [pages * PAGE_BYTES, pages * PAGE_BYTES, rows].map(filled);
        Ok(Pool { keys: keys?, values: values?, queries: queries?, order })
    }

    /// Page tables of sequences with these numbers of keys. Takes pages in the random order, beginning at `from`.
    pub(super) fn tables(&self, from: usize, keys: &[i32]) -> Vec<Vec<i32>> {
        let mut pages = self.order.iter().copied().cycle().skip(from % self.order.len());
        let count = |n: i32| (i64::from(n) + PAGE - 1) / PAGE;
        keys.iter().map(|&n| pages.by_ref().take(count(n) as usize).collect()).collect()
    }

    /// The layer that all measurements use, over this pool.
    pub(super) fn layer(&self) -> ServeLayer {
        ServeLayer::new(HEADS, (HEAD_DIM, HEAD_DIM), DTYPE, self.order.len() as i64, PAGE)
    }

    /// The plan of these sizes.
    pub(super) fn plan(&self, bench: &Bench<'_>, bucket: Bucket) -> anyhow::Result<ServePlan> {
        let attention = self.layer().attention(&bucket)?;
        let plan = bench.session.prepare(&bench.planner, &attention, &bench.options, OnMiss::Compile)?.plan;
        Ok(ServePlan { bucket, attention, plan })
    }

    /// A plan bound to the pool, to a batch and to outputs that it owns.
    pub(super) fn bind<'a>(
        &'a self,
        bench: &Bench<'_>,
        plan: &ServePlan,
        batch: &BatchMetadata,
    ) -> anyhow::Result<Bound<'a>> {
        let stream = &bench.stream;
        let bytes = plan.plan.facts().bindings.iter().find(|binding| binding.role == Role::O).map_or(0, |o| o.bytes);
        let outputs = stream.alloc_zeros::<u8>(usize::try_from(bytes)?)?;
        let args = Args::new().q(&self.queries).k(&self.keys).v(&self.values).o(outputs);
        Ok(plan.plan.bind(args.scale(SCALE).batch(batch), stream)?)
    }
}

/// A plan that owns its outputs.
pub(super) trait Outputs {
    /// The outputs.
    fn outputs(&mut self) -> Option<&mut CudaSlice<u8>>;

    /// The first rows of the outputs.
    fn rows(&mut self, bench: &Bench<'_>, rows: usize) -> anyhow::Result<Vec<u8>> {
        let bytes = rows * (HEADS.0 * HEAD_DIM * 2) as usize;
        let outputs = self.outputs().ok_or_else(|| anyhow::anyhow!("the plan has no outputs"))?;
        Ok(bench.stream.clone_dtoh(&outputs.slice(..bytes))?)
    }

    /// Overwrites the outputs with zeros.
    fn overwrite(&mut self, bench: &Bench<'_>) -> anyhow::Result<()> {
        let outputs = self.outputs().ok_or_else(|| anyhow::anyhow!("the plan has no outputs"))?;
        Ok(bench.stream.memset_zeros(outputs)?)
    }
}

impl Outputs for Bound<'_> {
    fn outputs(&mut self) -> Option<&mut CudaSlice<u8>> {
        self.slice_mut(Role::O)
    }
}

impl Outputs for Captured<'_> {
    fn outputs(&mut self) -> Option<&mut CudaSlice<u8>> {
        self.slice_mut(Role::O)
    }
}
