//! Appends of new keys and values to caches on a real GPU: every byte of both pools is that of the oracle, launched and
//! replayed from a graph, whatever lengths and tables say; and an attention reads what was appended.
//!
//! The tests need a driver, a vault folder `QKVAULT_TEST_VAULT` (it may be empty) and NVRTC. Without them they are
//! skipped, or fail with `QKVAULT_REQUIRE=gpu`.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::say;
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaSlice, CudaStream};
use kit::Gpu;
use qkvault_cache::{Vault, VaultOptions};
use qkvault_compile::{KERNELS, OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::serving::{Rows, Step};
use qkvault_exec::{Args, BatchMetadata, LoadedPlan, cudarc};
use qkvault_graph::{Attention, CacheAppend, DType, Role, Scaled, Storage, Tensor, ValidCacheAppend, Varlen, validate};
use qkvault_reference::{Buffer, Inputs, append_to_caches};
use qkvault_skip::{Need, skip};

/// A GPU of at least compute capability 8.9 with a planner, or a skip.
fn open() -> Option<(Gpu, Planner)> {
    let gpu = Gpu::with_nvrtc()?;
    if gpu.engine.session().gpu().sm < 89 {
        skip(Need::Gpu, "the GPU has no 8 bits");
        return None;
    }
    Some((gpu, Planner::new(Vault::in_memory(VaultOptions::new()), None)))
}

type Memory = BTreeMap<Role, CudaSlice<u8>>;

fn upload(stream: &Arc<CudaStream>, inputs: &Inputs) -> Memory {
    inputs.iter().map(|(role, buffer)| (role, stream.clone_htod(buffer.bytes()).expect("copies"))).collect()
}

fn args(memory: &mut Memory) -> Args<'_> {
    memory.iter_mut().fold(Args::new(), |args, (role, slice)| match role {
        Role::K | Role::V => args.tensor_mut(*role, slice),
        // SAFETY: the kernel compares these numbers with what there is.
        role if role.is_followed() => unsafe { args.indices(*role, &*slice) },
        role => args.tensor(*role, &*slice),
    })
}

fn load(gpu: &Gpu, planner: &Planner, append: &ValidCacheAppend) -> LoadedPlan {
    let plan = gpu.engine.session().prepare_append(planner, append, OnMiss::Compile);
    plan.unwrap_or_else(|error| panic!("{append}: {error}"))
}

/// Compares every byte of both caches.
fn same(stream: &Arc<CudaStream>, append: &ValidCacheAppend, memory: &Memory, expected: &BTreeMap<Role, Buffer>) {
    for (role, buffer) in expected {
        let found = stream.clone_dtoh(&memory[role]).expect("copies");
        let wrong = (0..found.len()).find(|&i| found[i] != buffer.bytes()[i]);
        assert_eq!(wrong, None, "{append}: the first byte of {role} that differs");
    }
}

/// Lengths, offsets, tables and numbers of a step; `wild` ones lead anywhere.
fn step(append: &ValidCacheAppend, seed: u64, wild: bool) -> Inputs {
    let mut rng = qkvault_base::random::Rng::new(seed);
    let (rows, keys, batch) = (append.new_k.seq(), append.k.seq(), append.k.batch());
    let mut below = |n: i64| (rng.bits() % n.unsigned_abs()) as i64;
    let mut counts: Vec<i32> = (0..batch).map(|_| below(rows.min(keys) + 1) as i32).collect();
    let mut lengths: Vec<i32> = counts.iter().map(|&n| n + below(keys - i64::from(n) + 1) as i32).collect();
    let far = [i32::MIN, -1, i32::MAX, keys as i32 + 1];
    for at in (0..batch as usize).filter(|_| wild) {
        match below(6) {
            0 => counts[at] = far[below(4) as usize],
            1 => lengths[at] = far[below(4) as usize],
            _ => {}
        }
    }
    let mut inputs = Inputs::new();
    inputs.set_i32(Role::SeqLenQ, &counts);
    inputs.set_i32(Role::SeqLenKv, &lengths);
    for binding in append.bindings() {
        let count = binding.bytes as usize / binding.dtype.size();
        let buffer = match binding.role {
            Role::SeqLenQ | Role::SeqLenKv => continue,
            Role::PageTableK | Role::PageTableV => {
                let Storage::Paged { pages, .. } = append.k.storage else { panic!("paged") };
                // Each page is of one sequence.
                let page = |at: usize| match below(if wild { 5 } else { i64::MAX }) {
                    0 => far[below(3) as usize],
                    _ => (at as i64 * 7 % pages) as i32,
                };
                let table: Vec<i32> = (0..count).map(page).collect();
                inputs.set_i32(binding.role, &table);
                continue;
            }
            Role::Offsets(_) => {
                let step = append.new_k.strides[2];
                let mut all = vec![0_i64];
                for n in &counts {
                    all.push(all[all.len() - 1] + i64::from(*n).clamp(0, rows) * step);
                }
                Buffer::new(DType::I64, all.iter().flat_map(|n| n.to_ne_bytes()).collect()).expect("whole")
            }
            Role::Descale(of) => Buffer::from_values(DType::F32, [if of == Scaled::K { 0.037 } else { 41.0 }]),
            Role::NewK | Role::NewV => {
                let bytes = (0..binding.bytes).map(|_| below(256) as u8).collect();
                Buffer::new(binding.dtype, bytes).expect("whole")
            }
            _ => Buffer::poisoned(binding.dtype, count),
        };
        inputs.insert(binding.role, buffer);
    }
    inputs
}

/// Dense and varlen tokens over pages and dense caches, of every type.
fn appends() -> Vec<ValidCacheAppend> {
    let mut list = Vec::new();
    for (n, [new, cache]) in [
        [DType::BF16, DType::E4M3],
        [DType::F16, DType::E4M3],
        [DType::BF16, DType::E5M2],
        [DType::F16, DType::E5M2],
        [DType::BF16, DType::BF16],
        [DType::F16, DType::F16],
    ]
    .into_iter()
    .enumerate()
    {
        for (m, page) in [0, 1, 16, 64].into_iter().enumerate() {
            let (batch, heads, rows, keys) = ([3, 7, 300][(n + m) % 3], [8, 1, 2][n % 3], [1, 5, 33][m % 3], 130);
            let [k, v] = [[128, 128], [64, 80], [256, 256], [576, 512]][(n + m) % 4];
            let new = |d| match (n + m) % 2 {
                0 => Tensor::thd(batch, heads, rows, d, batch * rows, new),
                _ => Tensor::bshd(batch, heads, rows, d, new),
            };
            let cache = |d| match page {
                0 => Tensor::bhsd(batch, heads, keys, d, cache),
                // A number of pages that 7 does not divide.
                _ => Tensor::paged_nhd(batch, heads, keys, d, (batch * (keys / page + 1)) * 7 + 1, page, cache),
            };
            let append = CacheAppend { new_k: new(k), new_v: new(v), k: cache(k), v: cache(v) };
            list.push(append.validate().expect("sound"));
        }
    }
    list
}

#[test]
fn appends_of_every_layout_have_the_bytes_of_the_oracle_launched_and_replayed() {
    let Some((gpu, planner)) = open() else { return };
    let stream = &gpu.stream;
    for (n, append) in appends().iter().enumerate() {
        let plan = load(&gpu, &planner, append);
        let first = step(append, n as u64, n % 2 == 1);
        let mut memory = upload(stream, &first);
        plan.launch(stream, args(&mut memory)).unwrap_or_else(|error| panic!("{append}: {error}"));
        same(stream, append, &memory, &append_to_caches(append, &first).expect("computes"));
        // The graph sees what is new in place.
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("begins");
        // SAFETY: the memory outlives the graph.
        unsafe { plan.launch_captured(stream, args(&mut memory)) }.expect("is recorded");
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).expect("it ends").expect("a graph");
        let second = step(append, 1000 + n as u64, n % 2 == 0);
        for (role, buffer) in second.iter() {
            stream.memcpy_htod(buffer.bytes(), memory.get_mut(&role).expect("bound")).expect("copies");
        }
        graph.launch().expect("replays");
        same(stream, append, &memory, &append_to_caches(append, &second).expect("computes"));
    }
}

/// The attention that is queued next reads what was appended: its output is that over the whole cache.
#[test]
fn an_attention_reads_what_was_appended_just_before() {
    let Some((gpu, planner)) = open() else { return };
    let (stream, session) = (&gpu.stream, gpu.engine.session());
    if session.gpu().sm != 90 {
        return skip(Need::Gpu, "the GPU has no kernels of our own");
    }
    let (batch, keys, pages) = (16, 512, 16 * 32);
    let q = Tensor::thd(batch, 8, 4, 128, 40, DType::BF16);
    let pool = Tensor::paged_nhd(batch, 2, keys, 128, pages, 16, DType::BF16);
    let attention = validate(Attention::forward(q, pool, pool, q).with_lengths()).expect("sound");
    let append = CacheAppend::before(&attention, DType::BF16).validate().expect("sound");
    let appends = load(&gpu, &planner, &append);
    let options = CompileOptions { engine: KERNELS.policy(), ..CompileOptions::default() };
    let plan = session.prepare(&planner, &attention, &options, OnMiss::Compile).expect("a plan").plan;
    // Every fourth sequence has no new token.
    let counts: Vec<i32> = (0..batch as i32).map(|n| n % 4).collect();
    let lengths: Vec<i32> = (0..batch as i32).map(|n| 100 + n).collect();
    let mut inputs = step(&append, 5, false);
    inputs.set_i32(Role::SeqLenQ, &counts);
    inputs.set_i32(Role::SeqLenKv, &lengths);
    let ends = counts.iter().scan(0_i64, |end, n| {
        *end += i64::from(*n) * 256;
        Some(*end)
    });
    let offsets: Vec<u8> = std::iter::once(0).chain(ends).flat_map(i64::to_ne_bytes).collect();
    for of in [Varlen::NewK, Varlen::NewV] {
        inputs.insert(Role::Offsets(of), Buffer::new(DType::I64, offsets.clone()).expect("whole"));
    }
    let usual =
        |dtype, count: i64| Buffer::from_values(dtype, (0..count).map(|at| (at * 37 % 101) as f64 / 50.0 - 1.0));
    for (role, rows) in [(Role::K, pages * 16), (Role::V, pages * 16), (Role::NewK, 40), (Role::NewV, 40)] {
        inputs.insert(role, usual(DType::BF16, rows * 2 * 128));
    }
    let after = append_to_caches(&append, &inputs).expect("computes");
    let table = inputs.get(Role::PageTableK).expect("bound");
    let tables: Vec<Vec<i32>> =
        (0..batch as usize).map(|n| (0..32).map(|at| table.int(n * 32 + at) as i32).collect()).collect();
    // One batch for both launches.
    let mut metadata = BatchMetadata::with_append(&plan, &attention, &append, stream).expect("memory");
    metadata.update(&Step::paged(Rows::Lengths(&counts), Rows::Lengths(&lengths), &tables), stream).expect("sound");
    let q = stream.clone_htod(usual(DType::BF16, 40 * 8 * 128).bytes()).expect("copies");
    let attend = |memory: &Memory, o: &mut CudaSlice<u8>| {
        let args = Args::new().q(&q).k(&memory[&Role::K]).v(&memory[&Role::V]).o(o);
        plan.launch(stream, args.batch(&metadata)).expect("a launch");
    };
    let zeros = || stream.alloc_zeros::<u8>(40 * 8 * 128 * 2).expect("memory");
    let (mut found, mut expected, mut stale) = (zeros(), zeros(), zeros());
    let mut memory = upload(stream, &inputs);
    memory.retain(|role, _| !role.is_followed());
    attend(&memory, &mut stale);
    appends.launch(stream, args(&mut memory).batch(&metadata)).expect("a launch");
    attend(&memory, &mut found);
    same(stream, &append, &memory, &after);
    for (role, buffer) in &after {
        stream.memcpy_htod(buffer.bytes(), memory.get_mut(role).expect("bound")).expect("copies");
    }
    attend(&memory, &mut expected);
    let [found, expected, stale] = [&found, &expected, &stale].map(|o| stream.clone_dtoh(o).expect("copies"));
    assert!(found == expected, "other bits");
    assert!(found != stale, "the new tokens decide nothing");
}

/// Not a bound: it says what a step costs.
#[test]
fn times_of_appends() {
    let Some((gpu, planner)) = open() else { return };
    let stream = &gpu.stream;
    for (batch, rows, tokens) in [(1, 1, 1), (64, 1, 64), (256, 1, 256), (64, 8192, 8192), (1, 8192, 8192)] {
        let new = Tensor::thd(batch, 8, rows, 128, tokens, DType::BF16);
        let pages = batch * 8192 / 16;
        let cache = Tensor::paged_nhd(batch, 8, 8192, 128, pages, 16, DType::E4M3);
        let append = CacheAppend { new_k: new, new_v: new, k: cache, v: cache }.validate().expect("sound");
        let plan = load(&gpu, &planner, &append);
        let mut inputs = Inputs::new();
        let each = (tokens / batch) as i32;
        inputs.set_i32(Role::SeqLenQ, &vec![each; batch as usize]);
        inputs.set_i32(Role::SeqLenKv, &vec![each; batch as usize]);
        let offsets = (0..=batch).flat_map(|n| (n * i64::from(each) * 1024).to_ne_bytes()).collect::<Vec<_>>();
        let table: Vec<i32> = (0..pages as i32).collect();
        for (new, cache, table_of, of, scaled) in [
            (Role::NewK, Role::K, Role::PageTableK, Varlen::NewK, Scaled::K),
            (Role::NewV, Role::V, Role::PageTableV, Varlen::NewV, Scaled::V),
        ] {
            inputs.insert(new, Buffer::zeros(DType::BF16, (tokens * 1024) as usize));
            inputs.insert(cache, Buffer::zeros(DType::E4M3, (pages * 16 * 1024) as usize));
            inputs.set_i32(table_of, &table);
            inputs.insert(Role::Offsets(of), Buffer::new(DType::I64, offsets.clone()).expect("whole"));
            inputs.set_f32(Role::Descale(scaled), 0.5);
        }
        let mut memory = upload(stream, &inputs);
        let (launches, mut best) = (200, f32::MAX);
        for _ in 0..5 {
            let begin = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).expect("an event");
            for _ in 0..launches {
                plan.launch(stream, args(&mut memory)).expect("a launch");
            }
            let end = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).expect("an event");
            best = best.min(begin.elapsed_ms(&end).expect("a time") / launches as f32 * 1000.0);
        }
        let bytes = tokens as f32 * 2048.0 * 3.0;
        say(&format!("{batch} sequences, {tokens} tokens: {best:.1} us, {:.2} TB/s", bytes / best / 1e6));
    }
}
