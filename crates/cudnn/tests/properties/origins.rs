//! Origins: their canonical form, their stored forms, and that plans with them differ from plans of constant bands in
//! nothing but where one number comes from.

use proptest::prelude::*;
use qkvault_cudnn::op::{Constant, OfOrigins, OpGraph, TensorKind};
use qkvault_cudnn::registry::codes;
use qkvault_cudnn::{CompileOptions, Profile, lower, plan_key};
use qkvault_graph::expr::{Expr, key, library, position, query, score};
use qkvault_graph::{
    Attention, BackwardOptions, Band, Corner, CudnnVersion, DType, LibrarySet, MAX_ORIGIN, Origins, Role, Valid, codec,
    text, validate,
};

fn chunk() -> Attention {
    Attention::bshd(1, (4, 2), (256, 1024), 64, DType::BF16).with_stats()
}

fn band(left: Option<i64>, right: Option<i64>) -> Band {
    Band { corner: Corner::TopLeft, left, right }
}

fn lowered(a: &Valid) -> OpGraph {
    let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
    lower(a, &target, &CompileOptions::default()).expect("lowers")
}

fn numbers(graph: &OpGraph) -> Vec<OfOrigins> {
    let of = |kind| if let TensorKind::Constant(Constant::OfOrigins(number)) = kind { Some(number) } else { None };
    graph.tensors.iter().filter_map(|t| of(t.kind)).collect()
}

#[test]
fn origins_are_removed_where_nothing_counts_positions() {
    let by_key = |e: Expr| e.build_score_mod().expect("a score");
    let kept = |a: Attention| a.with_origins(Origins::Any).validate().expect("valid").origins.is_some();
    assert!(!kept(chunk()) && !kept(chunk().with_score_mod(by_key(score().tanh()))));
    assert!(kept(chunk().causal()) && kept(chunk().with_score_mod(by_key(score() + key().to_float()))));
    assert!(kept(chunk().with_mask_mod(query().le(5).build_mask_mod().expect("a predicate"))));
    let plain = chunk().validate().expect("valid");
    assert_eq!(chunk().with_origins(Origins::EveryQuerySeesAKey).validate(), Ok(plain));
}

/// ALiBi and the masks of the library count from the end of the keys, which with origins is not that of the chunk.
#[test]
fn positions_of_the_library_are_those_of_the_launch() {
    let of = |a: Attention| a.with_origins(Origins::Any).validate().expect("valid");
    let by_position = score() + (key() - position()).to_float();
    let by_query = score() + (key() - query()).to_float();
    for a in [chunk(), chunk().with_lengths()] {
        let with = |e: &Expr| of(a.clone().with_score_mod(e.build_score_mod().expect("a score")));
        assert_eq!(with(&by_position).key(), with(&by_query).key());
        let causal = of(a.clone().with_mask_mod(library::causal().build_mask_mod().expect("a predicate")));
        assert_eq!(causal, of(a.clone().causal()));
    }
}

#[test]
fn a_promise_is_kept_where_it_changes_the_backward_and_can_hold() {
    let promised = |a: Attention| a.with_origins(Origins::EveryQuerySeesAKey);
    let of = |a: Attention| a.validate().expect("valid").origins;
    let backward = |a: Attention| promised(a).backward(BackwardOptions::default());
    assert_eq!(of(promised(chunk().causal())), Some(Origins::Any));
    assert_eq!(of(backward(chunk().causal())), Some(Origins::EveryQuerySeesAKey));
    assert_eq!(of(backward(chunk().causal().with_lengths())), Some(Origins::Any));
    // 1024 queries over 256 keys: a window of 600 leaves some query without a key, wherever the chunk lies.
    let long = |left| {
        let a = Attention::bshd(1, (4, 2), (1024, 256), 64, DType::BF16).with_stats();
        of(backward(a.with_band(band(Some(left), Some(0)))))
    };
    assert_eq!((long(768), long(769)), (Some(Origins::Any), Some(Origins::EveryQuerySeesAKey)));
}

#[test]
fn bounds_with_origins_are_dropped_only_beyond_every_distance() {
    let of = |b: Band| chunk().with_band(b).with_origins(Origins::Any).validate().expect("valid").mask.band;
    let far = 2 * i64::from(MAX_ORIGIN);
    let kept = band(Some(5000), Some(3000));
    assert_eq!(of(kept), Some(kept));
    assert_eq!(of(band(Some(far), Some(far - 2))), Some(band(None, Some(far - 2))));
    assert_eq!(of(band(Some(far - 1), Some(far - 1))), Some(band(Some(far - 1), None)));
    // Both corners are the beginning of all positions, with lengths too.
    let bottom = Band { corner: Corner::BottomRight, left: Some(100), right: Some(0) };
    assert_eq!(of(bottom), Some(band(Some(100), Some(0))));
    let lengths = chunk().with_band(bottom).with_lengths().with_origins(Origins::Any).validate().expect("valid");
    assert_eq!(lengths.mask.band, Some(band(Some(100), Some(0))));
}

#[test]
fn bounds_that_hide_every_key_at_all_origins_are_a_contradiction() {
    let far = 2 * i64::from(MAX_ORIGIN);
    for (left, right, valid) in [
        (None, Some(1 - far), true),
        (None, Some(-far), false),
        (Some(2 - far), None, true),
        (Some(1 - far), None, false),
        (Some(-4), Some(5), true),
        (Some(-5), Some(5), false),
    ] {
        let result = chunk().with_band(band(left, right)).with_origins(Origins::Any).validate();
        let refused = result.as_ref().err().is_some_and(|refusal| refusal.has(&codes::MASK_CONTRADICTION));
        assert_eq!((result.is_ok(), refused), (valid, !valid), "{left:?} {right:?}");
    }
}

#[test]
fn extents_with_origins_are_exact_in_f32() {
    let of =
        |keys| Attention::bshd(1, (1, 1), (1, keys), 64, DType::BF16).causal().with_origins(Origins::Any).validate();
    assert!(of(MAX_ORIGIN.into()).is_ok());
    assert!(of(i64::from(MAX_ORIGIN) + 1).expect_err("too long").has(&codes::ORIGINS_EXTENT));
}

/// The graph with every number that follows from origins as the number that it is at these.
fn at(graph: &OpGraph, origins: [i32; 2]) -> OpGraph {
    let mut graph = graph.clone();
    for t in &mut graph.tensors {
        if let TensorKind::Constant(Constant::OfOrigins(number)) = t.kind {
            let value = number.value(origins);
            let fixed = if number.dtype == DType::F32 { Constant::f32(value as f32) } else { Constant::I32(value) };
            t.kind = TensorKind::Constant(fixed);
        }
    }
    graph
}

#[test]
fn a_band_with_origins_is_the_op_graph_of_a_constant_band() {
    for backward in [false, true] {
        for (left, right) in [(None, Some(7)), (Some(300), Some(7)), (Some(300), None)] {
            let whole = |band| {
                let a = chunk().with_band(band);
                if backward { a.backward(BackwardOptions::default()) } else { a }
            };
            let promise = Origins::EveryQuerySeesAKey;
            let moved = lowered(&whole(band(left, right)).with_origins(promise).validate().expect("valid"));
            // The constant bands whose rows all see a key too, moved by 100.
            let constant =
                lowered(&whole(band(left.map(|l| l - 100), right.map(|r| r + 100))).validate().expect("valid"));
            assert_eq!(at(&moved, [400, 300]), constant, "{left:?} {right:?} {backward}");
            assert_eq!(numbers(&moved).len(), usize::from(left.is_some()) + usize::from(right.is_some()));
            let roles: Vec<Role> = moved.bindings(None).iter().filter(|b| b.scalar).map(|b| b.role).collect();
            assert_eq!(roles, [Role::Scale, Role::QueryOrigin, Role::KeyOrigin]);
        }
    }
}

#[test]
fn a_promise_bounds_the_numbers_of_a_launch() {
    let a = chunk().with_band(band(Some(300), Some(0))).with_origins(Origins::EveryQuerySeesAKey);
    let numbers = numbers(&lowered(&a.backward(BackwardOptions::default()).validate().expect("valid")));
    let accepts = |query, key| numbers.iter().all(|number| number.accepts([query, key]));
    // 256 queries over 1024 keys: the first query needs the first key, the last one a window that ends before 1024.
    assert!(accepts(0, 0) && accepts(5, 5) && accepts(1067, 0));
    assert!(!accepts(4, 5) && !accepts(1068, 0));
}

#[test]
fn expressions_of_distances_need_one_number_and_others_two() {
    let of = |e: Expr| {
        let a = chunk().with_score_mod(e.build_score_mod().expect("a score")).with_origins(Origins::Any);
        let distinct = |pass: Attention| {
            let mut found = numbers(&lowered(&pass.validate().expect("valid")));
            found.sort_unstable();
            found.dedup();
            found.iter().map(|n| (n.query, n.key)).collect::<Vec<_>>()
        };
        let forward = distinct(a.clone());
        assert_eq!(distinct(a.backward(BackwardOptions::default())), forward);
        forward
    };
    assert_eq!(of(library::alibi(score(), 4)), [(-1, 1)]);
    assert_eq!(of(score() + key().to_float() * 0.5), [(0, 1)]);
    assert_eq!(of(score() * (query() + key()).to_float().cos()), [(0, 1), (1, 0)]);
}

proptest! {
    #[test]
    fn forms_without_origins_are_as_before_and_forms_with_them_are_read_again(
        a in qkvault_graph::arbitrary::attention(qkvault_graph::arbitrary::Space::SMALL),
    ) {
        let json = serde_json::to_value(&a).expect("serialises");
        let object = json.as_object().expect("an object");
        let flags = a.invariant || a.draft_tree;
        let behind = a.origins.is_some() || flags;
        prop_assert_eq!(object.contains_key("invariant"), flags);
        prop_assert_eq!(object.contains_key("origins"), behind);
        prop_assert_eq!(object.contains_key("score_mod_bprop"), behind || a.score_mod_bprop.is_some());
        prop_assert_eq!(&serde_json::from_value::<Attention>(json).expect("reads"), &a);
        prop_assert_eq!(&codec::decode::<Attention>(&codec::encode(&a)).expect("reads"), &a);
        prop_assert_eq!(&text::parse(&text::print(&a)).expect("reads"), &a);
        prop_assert_eq!(text::print(&a).contains("\norigins: "), a.origins.is_some());
    }
}

#[test]
fn one_plan_serves_every_chunk_and_another_band_has_another() {
    let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
    let key = |a: Attention| plan_key(&lowered(&validate(a).expect("valid")), &target, &CompileOptions::default());
    let with = |b, origins| chunk().with_band(b).with_origins(origins);
    let causal = key(with(Band::CAUSAL, Origins::Any));
    assert_eq!(causal, key(with(Band::CAUSAL, Origins::EveryQuerySeesAKey)));
    assert_ne!(causal, key(chunk().causal()));
    assert_ne!(causal, key(with(band(None, Some(1)), Origins::Any)));
    assert_ne!(key(with(band(Some(5), Some(0)), Origins::Any)), key(with(band(Some(6), Some(0)), Origins::Any)));
}
