//! Attentions by kernels of our own on a real GPU: random ones are generated, compiled, launched over poisoned outputs
//! and compared with the oracle.
//!
//! The tests need a driver, a cuDNN, a vault folder `QKVAULT_TEST_VAULT` (it may be empty) and NVRTC, which compiles
//! the kernels here. Without them they are skipped, or fail with `QKVAULT_REQUIRE=gpu`.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::say;
use kit::{Case, Gpu};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use qkvault_cache::{Vault, VaultOptions};
use qkvault_compile::{KernelPlan, OnMiss, Plan, Planner};
use qkvault_exec::LoadedPlan;
use qkvault_graph::arbitrary::{self, Features, Space, attention};
use qkvault_graph::{Attention, Band, DType, Role, Tensor, Valid, validate};
use qkvault_kernels::{SM, generate, takes};

/// Random attentions of a run.
const CASES: usize = 100;

/// Random attentions that the kernels take: the same in every run. Every second one has a score modification or a mask
/// of the library. Random expressions are compared with their definition on the host (`src/expression/tests.rs` of
/// `qkvault-kernels`): most amplify the roundings of scores beyond any tolerance.
fn random(count: usize) -> Vec<Valid> {
    let features = Features { storage: true, sink: true, padded_rows: true, ..Features::NONE };
    let space = Space { batch: 3, heads: 2, seq: 400, head_dim: 256, features };
    let (mut runner, strategy) = (TestRunner::deterministic(), attention(space));
    std::iter::repeat_with(|| strategy.new_tree(&mut runner).expect("a value").current())
        .enumerate()
        .filter_map(|(n, a)| validate(arbitrary::modified(arbitrary::aligned(a), n)).ok())
        .filter(|a| takes(a, SM).is_ok())
        .take(count)
        .collect()
}

/// Long caches, in every way that a kernel divides its work and brings pages: by boxes, or row by row.
fn long() -> Vec<Valid> {
    let sizes = [(1, 8, 1, 128), (1, 8, 3, 64), (2, 2, 16, 128), (1, 1, 40, 256), (2, 4, 128, 128), (3, 32, 1, 80)];
    let of = |page: i64, (batch, group, queries, d): (i64, i64, i64, i64)| {
        let mut a = Attention::bshd(batch, (2 * group, 2), (queries, 5000), d, DType::BF16);
        a.k = Tensor::paged_nhd(batch, 2, 5000, d, 16_000 / page, page, DType::BF16);
        a.v = a.k;
        validate(a.with_band(Band::CAUSAL_BOTTOM_RIGHT).with_lengths().with_stats()).expect("is valid")
    };
    [64, 1, 4, 12].into_iter().flat_map(|page| sizes.map(|size| of(page, size))).collect()
}

/// Latent caches: in pages or not, of one head.
fn latent() -> Vec<Valid> {
    let of = |(batch, heads, queries): (i64, i64, i64), page: Option<i64>| {
        let mut a = Attention::bshd(batch, (heads, 1), (queries, 3000), 576, DType::BF16);
        if let Some(page) = page {
            a.k = Tensor::paged_nhd(batch, 1, 3000, 576, 9600 / page, page, DType::BF16);
        }
        a.v = Tensor { dims: [a.k.dims[0], 1, a.k.dims[2], 512], ..a.k };
        a.o = Tensor::bshd(batch, heads, queries, 512, DType::BF16);
        validate(a.with_band(Band::CAUSAL_BOTTOM_RIGHT).with_lengths().with_stats()).expect("is valid")
    };
    vec![
        of((3, 16, 1), Some(64)),
        of((2, 128, 1), Some(64)),
        of((1, 16, 4), None),
        of((3, 128, 2), Some(64)),
        of((3, 16, 1), Some(1)),
        of((2, 128, 2), Some(4)),
    ]
}

fn plan(attention: &Valid) -> Plan {
    let made = generate(attention, SM).expect("is taken");
    let of = KernelPlan { of: attention, made };
    let planner = Planner::new(Vault::in_memory(VaultOptions::new()), None);
    let found = planner.kernels(&of, OnMiss::Compile).unwrap_or_else(|error| panic!("{attention}: {error}"));
    Plan::clone(&found.outcome.expect("a plan"))
}

/// Compiles on all cores.
fn compiled(attentions: &[Valid]) -> Vec<Plan> {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut made: Vec<(usize, Plan)> = std::thread::scope(|scope| {
        let one = || {
            let places = std::iter::repeat_with(|| next.fetch_add(1, Relaxed)).take_while(|at| *at < attentions.len());
            places.map(|at| (at, plan(&attentions[at]))).collect::<Vec<_>>()
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("ends")).collect()
    });
    made.sort_by_key(|(at, _)| *at);
    made.into_iter().map(|(_, plan)| plan).collect()
}

fn check(gpu: &Gpu, plan: &LoadedPlan, attention: &Valid, seed: u64) {
    let mut case = Case::new(gpu, attention, seed);
    plan.launch(&gpu.stream, case.bindings(plan)).unwrap_or_else(|error| panic!("{attention}: {error}"));
    case.check(gpu);
    // Again over the sums that the first launch left in the scratch memory.
    case.poison(gpu);
    plan.launch(&gpu.stream, case.bindings(plan)).expect("launches again");
    case.check(gpu);
}

/// Values of a latent cache in memory of their own, and in that of its keys.
#[test]
fn latent_caches_are_read_once_or_twice_with_the_same_numbers() {
    let Some(gpu) = Gpu::with_nvrtc() else { return };
    for (attention, plan) in latent().iter().zip(compiled(&latent())) {
        let loaded = gpu.engine.session().load(&plan).unwrap_or_else(|error| panic!("{attention}: {error}"));
        check(&gpu, &loaded, attention, 5);
        let mut case = Case::new(&gpu, attention, 6);
        case.share(Role::V, Role::K);
        if attention.k.is_paged() {
            case.share(Role::PageTableV, Role::PageTableK);
        }
        loaded.launch(&gpu.stream, case.bindings(&loaded)).expect("launches");
        case.check(&gpu);
    }
}

#[test]
fn generated_kernels_compute_what_the_oracle_computes() {
    let Some(gpu) = Gpu::with_nvrtc() else { return };
    let attentions: Vec<Valid> = long().into_iter().chain(random(CASES)).collect();
    let plans = compiled(&attentions);
    // All of them, so that one run names every fault.
    let judge = |(seed, (attention, plan)): (usize, (&Valid, &Plan))| {
        let loaded = gpu.engine.session().load(plan).unwrap_or_else(|error| panic!("{attention}: {error}"));
        let judged = catch_unwind(AssertUnwindSafe(|| check(&gpu, &loaded, attention, seed as u64)));
        judged.is_err().then(|| format!("{seed}: {attention}"))
    };
    let wrong: Vec<String> = attentions.iter().zip(&plans).enumerate().filter_map(judge).collect();
    say(&format!("{} attentions, {} wrong", attentions.len(), wrong.len()));
    assert!(wrong.is_empty(), "{wrong:#?}");
}
