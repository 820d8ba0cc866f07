//! Training and serving loops that request plans at every step, with the real cuDNN. Planned shapes are built once.
//! With `OnMiss::Load` other shapes are an error that names the plan, and do not stall the loop.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use std::collections::BTreeSet;

use qkvault_cache::Source;
use qkvault_compile::{OnMiss, PlanError};
use qkvault_graph::expr::{library, score};
use qkvault_graph::{Attention, BackwardOptions, Band, DType, PlanKey, Valid, validate};
use qkvault_serving::{Bucket, Buckets, Growth, ServeLayer, ServePolicy, StepKind, StepSize};
use qkvault_tests::bench::Bench;

/// Samples of the data set.
const SAMPLES: usize = 10;
/// Samples of a batch. The last batch of an epoch has two.
const BATCH: usize = 4;
const EPOCHS: usize = 3;

/// Sizes of the batches of an epoch: 4, 4, 2.
fn epoch() -> impl Iterator<Item = i64> {
    let samples: Vec<usize> = (0..SAMPLES).collect();
    samples.chunks(BATCH).map(|batch| batch.len() as i64).collect::<Vec<_>>().into_iter()
}

/// The forward and the backward of a step with `batch` samples.
fn step(batch: i64) -> [Valid; 2] {
    let forward = Attention::bshd(batch, (2, 2), (128, 128), 64, DType::BF16).with_band(Band::CAUSAL).with_stats();
    let backward = forward.backward(BackwardOptions::default());
    [forward, backward].map(|a| validate(a).unwrap())
}

/// Once, the smaller last batch was built again at the end of every epoch, while training waited.
#[test]
fn three_epochs_with_a_ragged_last_batch_build_nothing_after_the_first() {
    let Some(bench) = Bench::new() else { return };
    let planner = bench.planner();
    let mut builds = Vec::new();
    for _ in 0..EPOCHS {
        for batch in epoch() {
            for attention in step(batch) {
                let answer = bench.ask(&planner, &attention, OnMiss::Compile).unwrap();
                answer.outcome.unwrap_or_else(|refusal| panic!("{refusal}"));
            }
            builds.push(planner.vault().stats().builds);
        }
    }
    assert_eq!(builds, [2, 2, 4, 4, 4, 4, 4, 4, 4], "builds so far, after each step");
    let stats = planner.vault().stats();
    assert_eq!((stats.misses, stats.hits_memory, stats.stores), (4, 14, 4), "{stats:?}");
}

#[test]
fn an_unplanned_ragged_batch_is_an_error_with_its_key_in_every_epoch() {
    let Some(bench) = Bench::new() else { return };
    let warm = bench.planner();
    for attention in step(BATCH as i64) {
        bench.ask(&warm, &attention, OnMiss::Compile).unwrap();
    }
    // Training runs in another process, which builds nothing.
    let planner = bench.planner();
    let mut missing: BTreeSet<PlanKey> = BTreeSet::new();
    for _ in 0..EPOCHS {
        for batch in epoch() {
            for attention in step(batch) {
                match bench.ask(&planner, &attention, OnMiss::Load) {
                    Ok(answer) => {
                        assert!(batch == BATCH as i64 && answer.outcome.is_ok(), "a plan of another size was given");
                    }
                    Err(PlanError::Missing { key, what, .. }) => {
                        assert!(batch < BATCH as i64, "{what} was built ahead");
                        missing.insert(key);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
    let stats = planner.vault().stats();
    assert_eq!((stats.builds, stats.stores, stats.hits_disk), (0, 0, 2), "{stats:?}");
    // The errors named the keys of the missing plans. After they are built, they serve every later epoch.
    let built = step((SAMPLES % BATCH) as i64).map(|attention| {
        let answer = bench.ask(&warm, &attention, OnMiss::Compile).unwrap();
        assert_eq!(answer.source, Source::Built);
        answer.key.unwrap()
    });
    assert_eq!(missing, built.into_iter().collect());
    for attention in epoch().flat_map(step) {
        assert!(bench.ask(&planner, &attention, OnMiss::Load).unwrap().outcome.is_ok());
    }
    assert_eq!(planner.vault().stats().builds, 0);
}

fn layer() -> ServeLayer {
    ServeLayer::new((2, 1), (64, 64), DType::BF16, 32, 16)
}

/// Steps with up to 4 sequences, 32 new tokens and 128 keys: plans for decodes of 1 and of up to 4 sequences, and one
/// plan for mixed steps.
fn buckets() -> Buckets {
    let growth = Growth { few: Some(4), many: Some(4), mixed: None, queries: None, keys: None };
    let policy = ServePolicy {
        batch: 4,
        queries: 32,
        keys: 128,
        tokens: 64,
        least_batch: 1,
        least_queries: 32,
        least_keys: 128,
        few: 4,
        growth,
    };
    Buckets::new(&policy).unwrap()
}

/// A server builds its set once. Every step within the limits runs on it; a step beyond them has no plan.
#[test]
fn steps_of_every_size_within_a_set_build_nothing() {
    let Some(bench) = Bench::new() else { return };
    let (layer, buckets) = (layer(), buckets());
    let attention = |bucket: &Bucket| layer.attention(bucket).unwrap();
    let warm = bench.planner();
    for bucket in buckets.iter() {
        bench.ask(&warm, &attention(&bucket), OnMiss::Compile).unwrap().outcome.unwrap();
    }
    assert_eq!((buckets.len(), warm.vault().stats().builds), (3, 3));
    let planner = bench.planner();
    let (mut steps, mut kinds) = (0, BTreeSet::new());
    for sequences in 1..=4 {
        for queries in [1, 2, 7, 31, 32] {
            for keys in [queries, 33, 127, 128] {
                let at = buckets.pick(StepSize { sequences, queries, keys }).unwrap();
                let bucket = buckets.get(at);
                kinds.insert((bucket.kind == StepKind::Decode, bucket.batch));
                let answer = bench.ask(&planner, &attention(&bucket), OnMiss::Load).unwrap();
                assert!(answer.outcome.is_ok());
                steps += 1;
            }
        }
    }
    let stats = planner.vault().stats();
    assert_eq!((stats.builds, stats.hits_disk, stats.hits_memory), (0, 3, steps - 3), "{stats:?}");
    assert_eq!(kinds.len(), 3, "every plan of the set was picked: {kinds:?}");
    // One sequence more has no plan in the set. Requesting such a plan is an error with its key, and builds nothing.
    assert_eq!(buckets.pick(StepSize { sequences: 5, queries: 1, keys: 64 }), None);
    let wider = Bucket { batch: 5, ..buckets.get(0) };
    let error = bench.ask(&planner, &attention(&wider), OnMiss::Load).unwrap_err();
    let PlanError::Missing { key, .. } = &error else { panic!("{error}") };
    assert!(error.to_string().contains(&key.to_string()), "{error}");
    assert_eq!(planner.vault().stats().builds, 0);
}

/// NVRTC took a second for each of 32 plans of a layer's serving set, whose code differed in its sizes alone.
#[test]
fn the_serving_set_of_a_model_has_few_sources_of_kernels() {
    // Llama 3.1 8B, gpt-oss 20B with its windows and sinks, Gemma 2 27B with its caps.
    let plain = ServeLayer::new((32, 8), (128, 128), DType::BF16, 10_000, 64);
    let mut sinks = ServeLayer::new((64, 8), (64, 64), DType::BF16, 10_000, 64);
    sinks.sink = true;
    let mut windows = sinks.clone();
    windows.window = Some(128);
    let softcap = library::softcap(score(), 50.0).build_score_mod().unwrap();
    let mut caps = ServeLayer::new((32, 16), (128, 128), DType::BF16, 10_000, 64);
    caps.score_mod = Some(softcap);
    let (buckets, mut all) = (Buckets::new(&ServePolicy::default()).unwrap(), 0);
    for layers in [vec![plain.clone()], vec![plain.invariant()], vec![sinks, windows], vec![caps]] {
        let mut sources = BTreeSet::new();
        for (layer, bucket) in layers.iter().flat_map(|layer| buckets.iter().map(move |bucket| (layer, bucket))) {
            let made = qkvault_kernels::generate(&layer.attention(&bucket).unwrap(), qkvault_kernels::SM).unwrap();
            sources.insert((made.source, made.options));
            all += 1;
        }
        assert!((2..=4 * layers.len()).contains(&sources.len()), "{} sources of {layers:?}", sources.len());
    }
    assert!(all > 100, "{all} plans");
}
