//! Benchmark of the oracle. A forward of 8 heads over 1024 keys must take less than a second on two cores, so that
//! tests can use it freely.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use qkvault_graph::expr::{library, scalar, score};
use qkvault_graph::{Attention, BackwardOptions, Band, DType, validate};
use qkvault_reference::{Inputs, backward, forward, forward_f32};

fn bench(c: &mut Criterion) {
    let plain = Attention::bshd(1, (8, 8), (1024, 1024), 64, DType::BF16).with_stats();
    let causal = plain.clone().with_band(Band::CAUSAL);
    let capped = library::alibi(library::softcap(score(), scalar("cap")), 8).build_score_mod().expect("a score");
    for (name, a) in [("full", plain.clone()), ("causal", causal), ("softcap and ALiBi", plain.with_score_mod(capped))]
    {
        let a = validate(a).expect("sound");
        let inputs = Inputs::random(&a, 1).expect("random");
        c.bench_function(&format!("forward, {name}"), |b| b.iter(|| forward(black_box(&a), &inputs)));
        c.bench_function(&format!("forward in f32, {name}"), |b| b.iter(|| forward_f32(black_box(&a), &inputs)));
        let a = validate(a.backward(BackwardOptions::default())).expect("sound");
        let inputs = Inputs::random(&a, 1).expect("random");
        c.bench_function(&format!("backward, {name}"), |b| b.iter(|| backward(black_box(&a), &inputs)));
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(5));
    targets = bench
}
criterion_main!(benches);
