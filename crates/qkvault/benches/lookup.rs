//! Measures look-ups of a compiled plan from memory and from disk, and the cost of its key.
//!
//! Bounds on an idle machine: a hit from disk takes less than 1 ms, lowering and key less than 20 µs. The plan is
//! artificial: it has the facts, size and approximate compressibility of a real one. A vault does not read a plan's
//! bytes, so the benchmark needs no cuDNN.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use qkvault::cache::{Key, Vault, VaultOptions};
use qkvault::compile::{OnMiss, Planner};
use qkvault::graph::{
    Attention, Band, CompileOptions, CudnnVersion, DType, LibrarySet, PlanKey, Profile, Target, Valid, lower, plan_key,
    validate,
};

/// Bytes of a forward plan for sm_90.
const BYTES: usize = 80_000;

/// A Llama-3.1-8B prompt.
fn prefill() -> Valid {
    let attention = Attention::bshd(1, (32, 8), (4096, 4096), 128, DType::BF16).with_band(Band::CAUSAL);
    validate(attention).expect("it is sound")
}

fn target() -> Target {
    Profile::named("h200").expect("it comes with qkvault").target(CudnnVersion::v9(27, 0), LibrarySet::Slim)
}

fn key(attention: &Valid, target: &Target) -> PlanKey {
    let policy = CompileOptions::default();
    let graph = lower(attention, target, &policy).expect("it is lowered");
    plan_key(&graph, target, &policy)
}

/// Text like that of a plan: base64, of which about a quarter is new and the rest repeats.
fn blob() -> Vec<u8> {
    let mut state = 1_u64;
    let mut bytes = Vec::with_capacity(BYTES);
    while bytes.len() < BYTES {
        for _ in 0..16 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes.push(b'A' + (state >> 59) as u8);
        }
        bytes.extend_from_slice(&[b'A'; 48]);
    }
    bytes.truncate(BYTES);
    bytes
}

fn lookup(c: &mut Criterion) {
    let (attention, target, policy) = (prefill(), target(), CompileOptions::default());
    let key = key(&attention, &target);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = |options: VaultOptions| Vault::open(options.without_environment()).expect("the folder is ours");
    let vault = open(VaultOptions::in_folder(folder.path()));
    let (_, entry) = Planner::entry_over(&attention, &target, &blob()).expect("lowers");
    vault.put(&Key(*key.bytes()), entry).expect("there is room");

    let mut group = c.benchmark_group("lookup");
    let warm = Planner::new(vault, None);
    let cold = Planner::new(open(VaultOptions::in_folder(folder.path()).memory(0, 0)), None);
    for (name, planner, build) in
        [("planner, from memory", &warm, OnMiss::Memory), ("planner, from disk", &cold, OnMiss::Load)]
    {
        group.bench_function(name, |b| {
            b.iter(|| {
                let answer = planner.plan(black_box(&attention), &target, &policy, build).expect("it is there");
                answer.outcome.expect("it is a plan")
            });
        });
    }
    group.bench_function("lowering and both keys", |b| {
        b.iter(|| {
            let attention = black_box(&attention);
            let graph = lower(attention, &target, &policy).expect("it is lowered");
            (attention.key(), plan_key(&graph, &target, &policy))
        });
    });
    group.finish();
}

criterion_group!(benches, lookup);
criterion_main!(benches);
