//! FlashAttention-4's kernels over lists of tiles on a real GPU: lists that a plan has as data, and those of masks with
//! an element for each score. Launches, and replays of a captured one, are compared with the oracle.
//!
//! What the tests need, and how `fill` makes the plans, is in `gpu_fa4.rs`.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::say;
use kit::fa4::HOPPER;
use kit::{Case, Gpu};
use qkvault_compile::{FA4, OnMiss};
use qkvault_cudnn::CompileOptions;
use qkvault_graph::expr::ScoreExpr;
use qkvault_graph::{Attention, BackwardOptions, Band, DType, Valid, validate};

/// Predicates of places: a window with sinks, a prefix, a dilated window, blocks that see those before them, and what
/// heads see differently.
const PLACES: [&str; 5] = [
    "query - key < 150 & query >= key | key < 4",
    "key < 200 | key <= query",
    "(query - key) % 3 == 0 & abs(query - key) < 300",
    "query // 100 >= key // 100",
    "query - key < 64 + head * 100 & query >= key",
];

/// Masks with an element for each score, by batch or for all, of integers and of floats.
const ELEMENTS: [&str; 3] = [
    "tensor @m: i32[2, 1, 700, 900]; key < @m | key == query",
    "tensor @m: i32[1, 4, 700, 900]; @m % 3 != 0",
    "tensor @m: bf16[1, 1, 700, 900]; @m > 0.0 | key < 3",
];

/// Every mask in both directions, every second one within a band; whether its lists are in the plan.
fn attentions() -> Vec<(Valid, bool)> {
    let masks = PLACES.map(|mask| (mask, true)).into_iter().chain(ELEMENTS.map(|mask| (mask, false)));
    let mut list = Vec::new();
    for (n, (mask, known)) in masks.enumerate() {
        let mask: ScoreExpr = mask.parse().unwrap_or_else(|error| panic!("{mask}: {error}"));
        let mut a = Attention::bshd(2, (4, 2), (700, 900), 128, DType::BF16).with_stats().with_mask_mod(mask);
        a.mask.band = (n % 2 == 1).then_some(Band::CAUSAL_BOTTOM_RIGHT);
        for a in [a.clone(), a.backward(BackwardOptions::default())] {
            list.push((validate(a).unwrap_or_else(|refusal| panic!("{refusal}")), known));
        }
    }
    list
}

#[test]
fn fill() {
    let attentions: Vec<Valid> = attentions().into_iter().map(|(attention, _)| attention).collect();
    kit::fa4::fill(&attentions);
}

#[test]
fn launches_and_replays_over_lists_compute_what_the_oracle_computes() {
    let Some(gpu) = Gpu::open() else { return };
    let attentions = attentions();
    // All of them, so that one run names every fault.
    let judge = |(seed, (attention, known)): (usize, &(Valid, bool))| {
        let judged = catch_unwind(AssertUnwindSafe(|| {
            let planner = gpu.engine.planner();
            let answer = planner.plan_by(FA4, attention, HOPPER, &CompileOptions::default(), OnMiss::Load);
            let plan = answer.expect("`fill` compiled it").outcome.expect("a plan");
            let recipe = &plan.facts.kernels().expect("a plan of kernels").recipe;
            assert_eq!(recipe.constants > 0, *known, "where its lists are");
            let loaded = gpu.engine.session().load(&plan).unwrap_or_else(|error| panic!("{error}"));
            let mut case = Case::new(&gpu, attention, seed as u64);
            loaded.launch(&gpu.stream, case.bindings(&loaded)).unwrap_or_else(|error| panic!("{error}"));
            case.check(&gpu);
            case.poison(&gpu);
            let bound = loaded.bind(case.bindings(&loaded), &gpu.stream).expect("bound");
            // The graph keeps the plan, and with it the lists.
            drop(loaded);
            let mut captured = bound.capture(&gpu.stream).expect("captured");
            for _ in 0..3 {
                captured.launch().expect("replayed");
            }
            drop(captured);
            case.check(&gpu);
        }));
        judged.is_err().then(|| format!("{seed}: {}", **attention))
    };
    let wrong: Vec<String> = attentions.iter().enumerate().filter_map(judge).collect();
    say(&format!("{} attentions, {} wrong", attentions.len(), wrong.len()));
    assert!(wrong.is_empty(), "{wrong:#?}");
}
