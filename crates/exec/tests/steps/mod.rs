//! Shared by the GPU tests of serving: random steps, and the memory of an attention.

use std::collections::BTreeMap;

use cudarc::driver::{CudaSlice, DevicePtr as _};
use qkvault_exec::serving::{Rows, Step};
use qkvault_exec::{Args, BatchMetadata, Bound, LoadedPlan, cudarc};
use qkvault_graph::{Attention, CuSeqlens, DType, Role, Storage, Valid, buffer_len, operands, ragged_offsets};
use qkvault_reference::{
    Buffer, ExactOutputs, Inputs, LengthChoice, OutputTolerance, POISON, RandomChoice, Unused, compare, forward,
};

use crate::common::say;
use crate::kit::Gpu;

/// Queries, keys and pages of each sequence.
#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    pub(crate) queries: Vec<i32>,
    pub(crate) keys: Vec<i32>,
    pub(crate) tables: Vec<Vec<i32>>,
}

pub(crate) fn drawn(queries: &[i32], keys: &[i32], tables: &[Vec<i32>]) -> Drawn {
    Drawn { queries: queries.to_vec(), keys: keys.to_vec(), tables: tables.to_vec() }
}

impl Drawn {
    pub(crate) fn step(&self) -> Step<'_> {
        Step::paged(Rows::Lengths(&self.queries), Rows::Lengths(&self.keys), &self.tables)
    }
}

/// splitmix64, from 0 to below `n`.
fn below(state: &mut u64, n: i64) -> i64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 8) as i64 % n
}

/// Random steps of an attention: one to all sequences, some empty, lengths around tiles, shuffled pages, one shared
/// page.
pub(crate) fn steps_of(a: &Attention, count: u64) -> Vec<Drawn> {
    (0..count).map(|n| step_of(a, n)).collect()
}

fn step_of(a: &Attention, n: u64) -> Drawn {
    let mut state = n.wrapping_mul(77) + 5;
    let (s_q, s_kv) = a.seq();
    let room = |t: &qkvault_graph::Tensor| match t.storage {
        Storage::Varlen { tokens } => tokens,
        Storage::Dense | Storage::Paged { .. } => i64::MAX,
    };
    let mut left = (room(&a.q), room(&a.k));
    let sequences = 1 + below(&mut state, a.batch());
    let paged = match a.k.storage {
        Storage::Paged { pages, page_size } => Some((pages, page_size)),
        Storage::Dense | Storage::Varlen { .. } => None,
    };
    let mut free: Vec<i32> = (0..paged.map_or(0, |(pages, _)| pages as i32)).collect();
    for i in (1..free.len()).rev() {
        free.swap(i, below(&mut state, i as i64 + 1) as usize);
    }
    let first = free.pop();
    let mut step = drawn(&[], &[], &[]);
    for sequence in 0..sequences {
        let edges = [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, s_kv];
        let keys = edges[below(&mut state, edges.len() as i64) as usize].min(s_kv);
        let queries = match below(&mut state, 6) {
            0 if sequence > 0 => 0,
            1 | 2 => 1,
            3 => keys.min(s_q),
            _ => (1 + below(&mut state, s_q)).min(keys),
        };
        let keys = if queries == 0 && n.is_multiple_of(2) { 0 } else { keys };
        let (queries, keys) = (queries.min(left.0), keys.min(left.1));
        let (queries, mut keys) = (queries.min(keys), keys);
        let mut pages = Vec::new();
        if let Some((_, rows)) = paged {
            keys = keys.min((free.len() as i64 + 1) * rows).max(queries.min(rows));
            let used = (keys + rows - 1) / rows;
            // Sequences with a common beginning share their first pages.
            pages.extend(first.filter(|_| keys >= rows || (used > 0 && free.is_empty())));
            let own = used as usize - pages.len();
            pages.extend(free.drain(free.len() - own..));
        }
        let queries = queries.min(keys);
        left = (left.0 - queries, left.1 - keys);
        step.queries.push(queries as i32);
        step.keys.push(keys as i32);
        step.tables.push(pages);
    }
    step
}

/// The operands of an attention on the GPU, at fixed addresses.
pub(crate) struct Stage {
    attention: Valid,
    plan: LoadedPlan,
    memory: BTreeMap<Role, CudaSlice<u8>>,
}

impl Stage {
    pub(crate) fn new(gpu: &Gpu, attention: Valid, plan: LoadedPlan) -> Stage {
        let own = |role: &Role| matches!(role, Role::Q | Role::K | Role::V | Role::O | Role::Stats);
        let memory = operands(&attention).into_iter().filter(|o| own(&o.role)).map(|o| {
            let length = buffer_len(&attention, o.role).expect("every operand has a size");
            let zeros = gpu.stream.alloc_zeros::<u8>(length * o.tensor.dtype.size()).expect("memory");
            (o.role, zeros)
        });
        let memory = memory.collect();
        Stage { attention, plan, memory }
    }

    pub(crate) fn attention(&self) -> &Attention {
        self.attention.get()
    }

    pub(crate) fn attention_of(&self) -> &Valid {
        &self.attention
    }

    pub(crate) fn plan(&self) -> &LoadedPlan {
        &self.plan
    }

    /// Bytes of an operand.
    pub(crate) fn memory(&self, role: Role) -> u64 {
        self.memory[&role].len() as u64
    }

    pub(crate) fn address(&self, gpu: &Gpu, role: Role) -> u64 {
        self.memory[&role].device_ptr(&gpu.stream).0
    }

    /// Binds the plan to this memory and a batch.
    pub(crate) fn bind(&self, gpu: &Gpu, batch: &BatchMetadata) -> Bound<'static> {
        let scale = self.attention.default_scale();
        let bindings =
            self.memory.iter().fold(Args::new().scalar(Role::Scale, scale).batch(batch), |all, (role, m)| {
                // SAFETY: tests keep the stage for as long as what is bound runs, and one stream orders all use of it.
                unsafe { all.address(*role, m.device_ptr(&gpu.stream).0, m.len() as u64) }
            });
        self.plan.bind(bindings, &gpu.stream).expect("all roles are bound")
    }

    /// Writes random queries, keys and values to the device, and NaN to unused pages and all outputs. Returns the
    /// result of the oracle for the step.
    pub(crate) fn prepare(&mut self, gpu: &Gpu, drawn: &Drawn, seed: u64) -> ExactOutputs {
        let a = &self.attention;
        let inputs = inputs(a, drawn, seed);
        for (role, memory) in &mut self.memory {
            let bytes = match inputs.get(*role) {
                Some(buffer) => buffer.bytes().to_vec(),
                None => vec![POISON; memory.len()],
            };
            gpu.stream.memcpy_htod(&bytes, memory).expect("it can be written");
        }
        forward(a, &inputs).expect("the oracle can do it")
    }

    /// Compares the outputs with the expected ones, in the rows of the step's sequences.
    pub(crate) fn check(&self, gpu: &Gpu, expected: &ExactOutputs, drawn: &Drawn) {
        for output in expected.iter() {
            let (role, dtype) = (output.role(), output.operand().tensor.dtype);
            let bytes = gpu.stream.clone_dtoh(&self.memory[&role]).expect("it can be read");
            let actual = Buffer::new(dtype, bytes).expect("whole elements");
            let found = compare(output, &actual, OutputTolerance::for_role(role, dtype));
            say(&format!("{}: {role}: {found}", self.attention));
            assert!(found.good, "{}: {role}: {found}: {drawn:?}", self.attention);
        }
    }
}

/// The operands of a step for the oracle, made from the lengths and not from the batch.
pub(crate) fn inputs(a: &Valid, drawn: &Drawn, seed: u64) -> Inputs {
    let batch = a.batch() as usize;
    let all =
        |lengths: &[i32]| -> Vec<i32> { lengths.iter().copied().chain(std::iter::repeat(0)).take(batch).collect() };
    let (queries, keys) = (all(&drawn.queries), all(&drawn.keys));
    let exact = |lengths: &[i32]| lengths.iter().map(|n| *n as usize).collect();
    let lengths = LengthChoice::Exact { q: exact(&queries), kv: exact(&keys) };
    let choice = RandomChoice { lengths, ..RandomChoice::default() };
    let mut inputs = Inputs::random_with(a, seed, &choice).expect("random operands");
    inputs.set_f32(Role::Scale, a.default_scale());
    inputs.set_i32(Role::SeqLenQ, &queries);
    inputs.set_i32(Role::SeqLenKv, &keys);
    for (role, t) in [(Role::PageTableK, &a.k), (Role::PageTableV, &a.v)] {
        let Some(width) = t.pages_per_sequence() else { continue };
        let row = |sequence: usize| {
            let pages = drawn.tables.get(sequence).map_or(&[][..], Vec::as_slice);
            let last = pages.last().copied().unwrap_or(0);
            pages.iter().copied().chain(std::iter::repeat(last)).take(width as usize)
        };
        inputs.set_i32(role, &(0..batch).flat_map(row).collect::<Vec<_>>());
    }
    let cumulative = |lengths: &[i32]| CuSeqlens::from_lengths(lengths).expect("lengths");
    for (varlen, offsets) in ragged_offsets(a, &cumulative(&queries), &cumulative(&keys)).expect("they fit") {
        let elements = offsets.elements().iter().map(|&n| n as f64);
        inputs.insert(Role::Offsets(varlen), Buffer::from_values(DType::I64, elements));
    }
    inputs.poison_unused(a, Unused::Pages).expect("pages are known");
    inputs
}
