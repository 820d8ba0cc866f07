//! Time of the rules for one description on one target; the target is under 20 microseconds.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use qkvault_graph::expr::{TensorSpec, library, scalar, score, tensor};
use qkvault_graph::{
    Attention, BackwardOptions, Band, CompileOptions, CudnnVersion, DType, LibrarySet, Profile, lower, validate,
};
use qkvault_probe::{Request, check, nearest};

fn bench(c: &mut Criterion) {
    let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
    let plain = Attention::bshd(1, (32, 8), (4096, 4096), 128, DType::BF16).with_band(Band::CAUSAL).with_stats();
    let capped = library::softcap(score(), scalar("cap")).build_score_mod().expect("a score");
    let backward = plain.clone().with_score_mod(capped).with_lengths().backward(BackwardOptions::default());
    // Tensors with one number per query: the rule that counts them looks at the lowered graph.
    let of_query = |name: &str| tensor(name, TensorSpec::new(DType::F32, [1, 32, 4096, 1]));
    let scaled =
        library::softcap(score() * of_query("t") + of_query("u"), scalar("cap")).build_score_mod().expect("a score");
    let counted = plain.clone().with_score_mod(scaled).with_lengths().backward(BackwardOptions::default());
    let cases = [
        ("causal forward", plain),
        ("softcap backward with lengths", backward),
        ("backward with numbers per query", counted),
    ];
    for (name, a) in cases {
        let a = validate(a).expect("sound");
        let request = Request::new(&a, &target);
        c.bench_function(&format!("rules, {name}"), |b| b.iter(|| check(black_box(&request))));
        let options = CompileOptions::default();
        c.bench_function(&format!("of which lowering, {name}"), |b| b.iter(|| lower(black_box(&a), &target, &options)));
    }
    let odd = validate(Attention::bshd(1, (8, 8), (512, 512), 100, DType::F16)).expect("sound");
    let versions = [CudnnVersion::v9(14, 0), CudnnVersion::v9(27, 0)];
    let request = Request::new(&odd, &target);
    c.bench_function("nearest supported", |b| b.iter(|| nearest(black_box(&request), &versions)));
}

criterion_group!(benches, bench);
criterion_main!(benches);
