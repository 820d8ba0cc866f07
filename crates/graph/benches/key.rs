//! Time from a description to its key, which every lookup needs.

use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use qkvault_graph::expr::{self, TensorSpec};
use qkvault_graph::{
    Attention, BackwardOptions, Band, CompileOptions, CudnnVersion, DType, LibrarySet, Profile, canonical_bytes, lower,
    plan_key, text, validate,
};

/// The prefill of an 8-billion-parameter model.
fn prefill() -> Attention {
    Attention::bshd(1, (32, 8), (4096, 4096), 128, DType::BF16).with_band(Band::CAUSAL).with_stats()
}

/// Everything at once: a backward with softcap, ALiBi, relative bias with gradient and a document mask.
fn largest() -> Attention {
    let tensor = |name, dims| expr::tensor(name, TensorSpec::new(DType::F32, dims));
    let ids = |name, dims| expr::tensor(name, TensorSpec::new(DType::I32, dims));
    let cap = expr::scalar("softcap");
    let distance = (expr::key() - expr::query()).to_float();
    let bias = expr::tensor("bias", TensorSpec::new(DType::F32, [1, 32, 4096, 4096]).with_grad());
    let score = (expr::score() / &cap).tanh() * &cap + tensor("slopes", [1, 32, 1, 1]) * distance + bias;
    let documents = ids("documents_q", [2, 1, 4096, 1]).eq(ids("documents_kv", [2, 1, 1, 4096]));
    let keep = documents & (expr::key().le(expr::query()) | expr::key().lt(expr::int_scalar("prefix")));
    let forward = Attention::bshd(2, (32, 8), (4096, 4096), 128, DType::BF16)
        .with_score_mod(score.build_score_mod().expect("well typed"))
        .with_mask_mod(keep.build_mask_mod().expect("well typed"))
        .with_lengths()
        .with_stats();
    forward.backward(BackwardOptions::default())
}

/// The golden vector with the most canonical bytes, and its name.
fn largest_golden() -> (String, Attention) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/bytes");
    let goldens = std::fs::read_dir(folder).expect("the goldens are checked in").map(|entry| {
        let path = entry.expect("an entry").path();
        let given = std::fs::read_to_string(&path).expect("a golden file");
        let attention = text::parse(given.split("\n---").next().unwrap_or_default()).expect("reads");
        (path.file_stem().expect("a name").to_string_lossy().into_owned(), attention)
    });
    let bytes = |a: &Attention| canonical_bytes(&validate(a.clone()).expect("sound")).len();
    goldens.max_by_key(|(_, a)| bytes(a)).expect("there are goldens")
}

fn keys(c: &mut Criterion) {
    let (name, golden) = largest_golden();
    let golden_name = format!("largest golden ({name})");
    for (name, attention) in [("prefill", prefill()), ("largest", largest()), (golden_name.as_str(), golden)] {
        c.bench_function(&format!("key of {name}: clone, validate, canonicalise, hash"), |b| {
            b.iter(|| validate(black_box(&attention).clone()).expect("sound").key());
        });
        let valid = validate(attention.clone()).expect("sound");
        c.bench_function(&format!("canonical bytes of {name}"), |b| b.iter(|| canonical_bytes(black_box(&valid))));
        let again = validate(attention.clone()).expect("sound");
        let hasher = RandomState::new();
        c.bench_function(&format!("clone valid {name}"), |b| b.iter(|| black_box(&valid).clone()));
        c.bench_function(&format!("compare valid {name}"), |b| b.iter(|| black_box(&valid) == black_box(&again)));
        c.bench_function(&format!("hash valid {name}"), |b| b.iter(|| hasher.hash_one(black_box(&valid))));
        let printed = text::print(&attention);
        c.bench_function(&format!("print {name}"), |b| b.iter(|| text::print(black_box(&attention))));
        c.bench_function(&format!("parse {name}"), |b| b.iter(|| text::parse(black_box(&printed)).expect("reads")));
    }
}

fn plans(c: &mut Criterion) {
    let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
    let options = CompileOptions::default();
    let valid = validate(prefill()).expect("sound");
    let graph = lower(&valid, &target, &options).expect("a dense forward lowers");
    c.bench_function("lower prefill", |b| b.iter(|| lower(black_box(&valid), &target, &options)));
    c.bench_function("plan key of prefill", |b| b.iter(|| plan_key(black_box(&graph), &target, &options)));
}

criterion_group!(benches, keys, plans);
criterion_main!(benches);
