//! Random attentions: what the kernels take has a source and a recipe that passes its check, and what they do not take
//! has reasons.

use std::cell::Cell;
use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};
use qkvault_graph::arbitrary::{self, Features, Space, attention};
use qkvault_graph::{Attention, BackwardOptions, Band, Corner, DType, PaddedRows, Tensor, Valid, validate};
use qkvault_kernels::codes;
use qkvault_kernels::recipe::{LaunchValue, RecipeStep, TENSOR_MAP_BYTES, bindings};
use qkvault_kernels::{Generated, SM, generate, takes};

fn over<S: Strategy>(cases: u32, strategy: &S, check: impl Fn(S::Value) -> TestCaseResult) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config).run(strategy, check).unwrap_or_else(|e| panic!("{e}"));
}

/// What is wrong with the recipe of an attention that the kernels take.
fn fault(attention: &Valid, made: &Generated) -> Option<String> {
    let mut recipe = made.recipe.clone();
    recipe.modules = vec![1];
    let bound = bindings(attention);
    let recipe = match recipe.check(&bound, 1) {
        Ok(recipe) => recipe,
        Err(bad) => return Some(bad.to_string()),
    };
    let mut roles = BTreeSet::new();
    for step in &recipe.steps {
        let RecipeStep::Launch(launch) = step else { return Some("a step that clears".to_owned()) };
        for param in &launch.params {
            let mut end = 0;
            for patch in &param.patches {
                if patch.at < end {
                    return Some(format!("two values at byte {}", patch.at));
                }
                let (role, size) = match &patch.value {
                    LaunchValue::Address(role) => (Some(*role), 8),
                    LaunchValue::Number(role) => (Some(*role), bound.iter().find(|b| b.role == *role)?.dtype.size()),
                    LaunchValue::Product(role, _) => (Some(*role), 4),
                    LaunchValue::Map(map) => (Some(map.role), TENSOR_MAP_BYTES),
                    LaunchValue::Fitting(map) => (Some(map.role), 4),
                    LaunchValue::Scratch(_) | LaunchValue::Constant(_) => (None, 8),
                };
                end = patch.at + u32::try_from(size).ok()?;
                roles.extend(role);
            }
        }
    }
    let missed: Vec<_> = bound.iter().filter(|b| !roles.contains(&b.role)).map(|b| b.role.name()).collect();
    (!missed.is_empty()).then(|| format!("nothing reads or writes {missed:?}"))
}

#[test]
fn what_is_taken_has_a_recipe_that_passes_its_check_and_uses_every_operand() {
    let (taken, refused) = (Cell::new(0), Cell::new(0));
    let features = Features { backward: false, dropout: false, block_mask: false, ..Features::ALL };
    let space = Space { head_dim: 256, ..Space::WIDE.with(features) };
    over(400, &(attention(space), any::<bool>()), |(a, near)| {
        let Ok(a) = validate(if near { arbitrary::aligned(a) } else { a }) else { return Ok(()) };
        match generate(&a, SM) {
            Ok(made) => {
                taken.set(taken.get() + 1);
                prop_assert_eq!(fault(&a, &made), None, "{}", a);
                prop_assert_eq!(takes(&a, SM), Ok(()));
                prop_assert_eq!(generate(&a, SM), Ok(made), "the same twice");
            }
            Err(refusal) => {
                refused.set(refused.get() + 1);
                prop_assert_eq!(takes(&a, SM), Err(refusal));
            }
        }
        Ok(())
    });
    assert!(taken.get() > 40 && refused.get() > 40, "{} taken, {} refused", taken.get(), refused.get());
}

#[test]
fn every_reason_names_what_is_not_taken() {
    let plain = || Attention::bshd(2, (8, 2), (4, 512), 128, DType::BF16);
    let refused = |a: Attention, sm| takes(&validate(a).expect("is valid"), sm).expect_err("is not taken");
    assert_eq!(takes(&validate(plain()).expect("is valid"), SM), Ok(()));
    assert!(refused(plain(), 100).has(&codes::KERNELS_GPU));
    assert!(refused(plain().with_stats().backward(BackwardOptions::default()), SM).has(&codes::KERNELS_BACKWARD));
    assert!(refused(Attention::bshd(2, (8, 2), (4, 512), 72, DType::BF16), SM).has(&codes::KERNELS_HEAD_DIM));
    assert!(refused(Attention::bshd(2, (8, 2), (4, 512), 592, DType::BF16), SM).has(&codes::KERNELS_HEAD_DIM));
    let mut varlen = plain().with_lengths();
    varlen.k = Tensor::thd(2, 2, 512, 128, 1024, DType::BF16);
    assert!(refused(varlen.clone(), SM).has(&codes::KERNELS_STORAGE));
    varlen.v = varlen.k;
    assert_eq!(takes(&validate(varlen).expect("is valid"), SM), Ok(()));
    // A block has room for the sums of all spans.
    let chunk = |keys| Attention::bshd(1, (32, 8), (512, keys), 128, DType::BF16).invariant();
    assert_eq!(takes(&validate(chunk(131_072)).expect("is valid"), SM), Ok(()));
    assert!(refused(chunk(1 << 20), SM).has(&codes::KERNELS_INVARIANT));
    assert!(
        refused(Attention::bshd(1, (8, 2), (1, 512), 320, DType::BF16).invariant(), SM).has(&codes::KERNELS_INVARIANT)
    );
    let mut packed = plain().with_lengths();
    packed.q = Tensor::thd(2, 8, 4, 128, 8, DType::BF16);
    packed.o = packed.q;
    assert_eq!(takes(&validate(packed.clone()).expect("is valid"), SM), Ok(()));
    packed.padded_rows = PaddedRows::Zero;
    assert!(refused(packed, SM).has(&codes::KERNELS_STORAGE));
    let mut odd = plain();
    odd.k.strides = [512 * 2 * 132, 132, 2 * 132, 1];
    assert!(refused(odd, SM).has(&codes::KERNELS_STRIDES));
    // Sequences, heads, rows and keys that 32 bits count, and tiles that a block's share counts.
    for ((batch, heads, rows, keys), taken) in [
        ((1 << 30, 1, 1, 1), true),
        (((1 << 30) + 1, 1, 1, 1), false),
        ((1, 1 << 30, 1, 1), true),
        ((1, (1 << 30) + 1, 1, 1), false),
        ((1, 1, 1 << 30, 1), true),
        ((1, 1, (1 << 30) + 1, 1), false),
        ((1, 1, 1, 1 << 30), true),
        ((1, 1, 1, (1 << 30) + 1), false),
        ((1, 8, 1 << 20, (1 << 24) - 32), true),
        ((1, 8, 1 << 20, (1 << 24) - 31), false),
    ] {
        let a = validate(Attention::bshd(batch, (heads, heads), (rows, keys), 16, DType::BF16)).expect("is valid");
        let found = takes(&a, SM);
        assert_eq!(found.is_ok(), taken, "{a}: {found:?}");
        assert!(found.err().is_none_or(|refusal| refusal.has(&codes::KERNELS_SIZE)), "{a}");
    }
    let grouped = |queries| Attention::bshd(1, (128, 1), (queries, 8), 16, DType::BF16);
    assert_eq!(takes(&validate(grouped(1 << 23)).expect("is valid"), SM), Ok(()));
    assert!(refused(grouped((1 << 23) + 1), SM).has(&codes::KERNELS_SIZE));
}

/// Numbers of a launch are no part of the source; what decides code is.
#[test]
fn attentions_that_compute_the_same_have_one_source() {
    let window =
        |n| Attention::bshd(1, (8, 2), (1, 4096), 128, DType::F16).with_band(Band::window(Corner::BottomRight, n));
    let source = |a: Attention| generate(&validate(a).expect("is valid"), SM).expect("is taken").source;
    assert_eq!(source(window(100)), source(window(100)));
    assert_ne!(source(window(100)), source(window(101)));
}

/// Engines with different amounts of free memory share plans.
#[test]
fn the_pages_of_a_pool_and_the_room_of_a_varlen_buffer_are_in_no_source_and_no_recipe() {
    let of = |pages, tokens, page| {
        let mut a = Attention::bshd(2, (8, 2), (4, 512), 128, DType::BF16).with_lengths();
        (a.k, a.q) = (
            Tensor::paged_nhd(2, 2, 512, 128, pages, page, DType::BF16),
            Tensor::thd(2, 8, 4, 128, tokens, DType::BF16),
        );
        (a.v, a.o) = (a.k, a.q);
        let a = validate(a).expect("is valid");
        (a.key(), generate(&a, SM).expect("is taken"))
    };
    // Small pages are copied row by row, by their addresses.
    for page in [64, 4] {
        let (small, large) = (of(1, 8, page), of(1000, 4096, page));
        assert!(small.0 != large.0 && small.1 == large.1, "pages of {page}");
    }
}

/// The driver makes each map anew in every launch, on the host.
#[test]
fn a_launch_makes_the_maps_of_keys_and_values_once() {
    let attention = validate(Attention::bshd(2, (8, 2), (4, 512), 128, DType::BF16)).expect("is valid");
    let made = generate(&attention, SM).expect("is taken");
    let maps = |step: &RecipeStep| match step {
        RecipeStep::Launch(launch) => {
            launch.params.iter().flat_map(|p| &p.patches).filter(|p| matches!(p.value, LaunchValue::Map(_))).count()
        }
        RecipeStep::Clear { .. } => 0,
    };
    assert_eq!(made.recipe.steps.iter().map(maps).sum::<usize>(), 2);
}
