//! Measures the host's work for a serving step before its launch: choosing the plan, and filling in lengths and page
//! tables.
//!
//! Bound on an idle machine: choosing a plan takes less than 1 µs. The benchmark needs neither cuDNN nor a GPU.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use qkvault::exec::serving::{PlanSet, Rows, Step, StepBuffer, StepLayout};
use qkvault::graph::{CompileOptions, CudnnVersion, DType, LibrarySet, Profile, lower};
use qkvault::serving::{Buckets, ServeLayer, ServePolicy, StepSize};

fn serving(c: &mut Criterion) {
    let buckets = Buckets::new(&ServePolicy::default()).expect("it is sound");
    let set = PlanSet::new(buckets.clone(), |bucket| Ok::<_, ()>(Some(bucket))).expect("nothing fails");
    let steps = [(1, 1, 900), (37, 1, 8000), (256, 1, 32_768), (3, 700, 5000), (200, 8192, 32_000)];
    let steps = steps.map(|(sequences, queries, keys)| StepSize { sequences, queries, keys });
    c.bench_function("choose a plan, five steps", |b| {
        b.iter(|| steps.map(|step| black_box(set.pick(black_box(step)))))
    });

    let layer = ServeLayer::new((32, 8), (128, 128), DType::BF16, 131_072, 64);
    let at = buckets.pick(steps[2]).expect("within the ranges");
    let attention = layer.attention(&buckets.get(at)).expect("it is sound");
    let target = Profile::named("h200").expect("it comes with qkvault");
    let target = target.target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
    let graph = lower(&attention, &target, &CompileOptions::default()).expect("it is lowered");
    let mut image = StepBuffer::new(StepLayout::of_graph(&attention, &graph).expect("it has steps"));
    let tables: Vec<Vec<i32>> = (0..256).map(|i| (0..512).map(|page| i * 512 + page).collect()).collect();
    for checks in [false, true] {
        image.check_pages(checks);
        // A decode of 256 sequences: every length grows by one, and some sequences get a new page in every 64th step.
        let mut keys = vec![32_000; 256];
        c.bench_function(&format!("fill in a decode of 256 x 32k keys, page checks {checks}"), |b| {
            b.iter(|| {
                keys.iter_mut().for_each(|n| *n = if *n == 32_768 { 32_000 } else { *n + 1 });
                let step = Step::paged(Rows::One(256), Rows::Lengths(&keys), &tables);
                black_box(image.fill(&step).expect("it is sound").len())
            });
        });
    }
}

criterion_group!(benches, serving);
criterion_main!(benches);
