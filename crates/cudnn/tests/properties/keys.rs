//! Keys are pure functions of the meaning: equal for every way to write a description, and different for different
//! meanings.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use qkvault_cudnn::op::{Knob, NamedEngine};
use qkvault_cudnn::{
    Choice, CompileOptions, Form, Heuristics, OpGraph, Profile, QuirkSet, Target, Toolchain, lower, plan_key,
    plan_key_of,
};
use qkvault_graph::arbitrary::{self, Features, Space};
use qkvault_graph::expr::{TensorSpec, int_scalar, key, query, scalar, score, tensor};
use qkvault_graph::{
    Attention, Band, Corner, CudnnVersion, DType, GraphKey, Lengths, LibrarySet, Order, ScoreExpr, Tensor, codec, text,
    validate,
};

fn graph_key(a: Attention) -> GraphKey {
    validate(a).expect("sound").key()
}

fn target() -> Target {
    Profile::named("h200").expect("built in").target(CudnnVersion::v9(27, 0), LibrarySet::Slim)
}

fn base() -> Attention {
    Attention::bshd(2, (8, 2), (64, 128), 32, DType::BF16)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_key_survives_messagepack_json_and_text(a in arbitrary::attention(Space::SMALL)) {
        let base = graph_key(a.clone());
        let varlen: Attention = codec::decode(&codec::encode(&a)).expect("reads");
        prop_assert_eq!(&varlen, &a);
        prop_assert_eq!(graph_key(varlen), base);
        let json = serde_json::to_string(&a).expect("writes");
        let read: Attention = serde_json::from_str(&json).expect("reads");
        prop_assert_eq!(&read, &a);
        prop_assert_eq!(graph_key(read), base);
        prop_assert_eq!(graph_key(text::parse(&text::print(&a)).expect("reads")), base);
        // Fields of a JSON object in another order.
        let sorted: BTreeMap<String, serde_json::Value> = serde_json::from_str(&json).expect("an object");
        let reversed: Vec<String> = sorted.iter().rev().map(|(k, v)| format!("{k:?}:{v}")).collect();
        let read: Attention = serde_json::from_str(&format!("{{{}}}", reversed.join(","))).expect("reads");
        prop_assert_eq!(graph_key(read), base);
    }

    #[test]
    fn threads_and_fresh_allocations_agree(a in arbitrary::attention(Space::SMALL)) {
        let base = graph_key(a.clone());
        let elsewhere = std::thread::scope(|s| s.spawn(|| graph_key(a.clone())).join().expect("no panic"));
        prop_assert_eq!(elsewhere, base);
        let copies: Vec<Attention> = (0..3).map(|_| a.clone()).collect();
        drop(a);
        for copy in copies {
            prop_assert_eq!(graph_key(copy), base);
        }
    }
}

#[test]
fn the_order_in_which_things_are_added_does_not_matter() {
    let cap = || ((score() / scalar("cap")).tanh() * scalar("cap")).build_score_mod().expect("a score");
    let a = base().with_band(Band::CAUSAL).with_lengths().with_score_mod(cap()).with_stats().with_sink();
    let b = base().with_sink().with_stats().with_score_mod(cap()).with_lengths().with_band(Band::CAUSAL);
    assert_eq!(graph_key(a), graph_key(b));
}

#[test]
fn p2b_a_changed_expression_under_an_old_name_is_another_key() {
    let modified = |factor: f32| base().with_score_mod((score() * factor).build_score_mod().expect("a score"));
    assert_ne!(graph_key(modified(0.5)), graph_key(modified(0.25)));
}

#[test]
fn batch_sizes_have_different_keys() {
    let keys: BTreeSet<GraphKey> =
        (1..=16).map(|b| graph_key(Attention::bshd(b, (8, 2), (64, 128), 32, DType::BF16))).collect();
    assert_eq!(keys.len(), 16);
}

#[test]
fn every_band_has_one_encoding() {
    // The keys that every query sees, for fixed lengths or for every pair of lengths, per band and corner.
    let seen = |band: Option<Band>, s_q: i64, s_kv: i64, lengths: Lengths| -> Vec<bool> {
        let pairs: Vec<(i64, i64)> = match lengths {
            Lengths::Full => vec![(s_q, s_kv)],
            Lengths::PerSequence => (1..=s_q).flat_map(|q| (1..=s_kv).map(move |kv| (q, kv))).collect(),
        };
        pairs
            .into_iter()
            .flat_map(|(q, kv)| (0..q).flat_map(move |row| (0..kv).map(move |col| (row, col, q, kv))))
            .map(|(row, col, q, kv)| band.is_none_or(|b| b.keeps(row, col, q, kv)))
            .collect()
    };
    for (s_q, s_kv) in [(1, 1), (1, 4), (4, 4), (3, 5), (5, 3)] {
        for lengths in [Lengths::Full, Lengths::PerSequence] {
            for corner in [Corner::TopLeft, Corner::BottomRight] {
                let mut keys: BTreeMap<Vec<bool>, GraphKey> = BTreeMap::new();
                let bound = |low: i64| (low..8).map(Some).chain([None]);
                for (left, right) in bound(1).flat_map(|l| bound(0).map(move |r| (l, r))) {
                    let band = (left.is_some() || right.is_some()).then_some(Band { corner, left, right });
                    let mut a = Attention::bshd(1, (1, 1), (s_q, s_kv), 8, DType::F16);
                    a.mask.band = band;
                    a.mask.lengths = lengths;
                    let key = graph_key(a);
                    let other = keys.insert(seen(band, s_q, s_kv, lengths), key);
                    assert!(other.is_none_or(|other| other == key), "{band:?} over {s_q}x{s_kv} {lengths:?}");
                }
                let distinct: BTreeSet<&GraphKey> = keys.values().collect();
                assert_eq!(distinct.len(), keys.len(), "{s_q}x{s_kv} {lengths:?} {corner:?}");
            }
        }
    }
    let causal = |band| graph_key(base().with_band(band));
    assert_ne!(causal(Band::CAUSAL), causal(Band::CAUSAL_BOTTOM_RIGHT));
}

#[test]
fn every_tensor_has_its_own_format() {
    let dims = [2, 8, 64, 32];
    let mut keys = BTreeSet::new();
    for [q, k, v, o] in itertools(&Order::ALL).flat_map(|[a, b]| itertools(&Order::ALL).map(move |[c, d]| [a, b, c, d]))
    {
        let t = |order| Tensor::dense(order, dims, DType::F16);
        keys.insert(graph_key(Attention::forward(t(q), t(k), t(v), t(o))));
    }
    assert_eq!(keys.len(), 81);
}

fn itertools<T: Copy>(list: &[T]) -> impl Iterator<Item = [T; 2]> {
    list.iter().flat_map(move |&a| list.iter().map(move |&b| [a, b]))
}

#[test]
fn every_way_to_write_an_attention_gives_one_key() {
    let built = Attention::bshd(1, (32, 8), (4096, 4096), 128, DType::BF16).with_band(Band::CAUSAL);
    let q = Tensor::bshd(1, 32, 4096, 128, DType::BF16);
    // With one sequence, the order of batch and sequence in memory does not matter.
    let kv = Tensor::sbhd(1, 8, 4096, 128, DType::BF16);
    let by_hand = Attention::forward(q, kv, kv, q).with_band(Band::CAUSAL_BOTTOM_RIGHT);
    let read = text::parse("q: bf16 [1,32,4096,128]\nk: [1,8,4096,128]\nmask: causal").expect("reads");
    let keys: BTreeSet<GraphKey> = [built, by_hand, read].map(graph_key).into();
    assert_eq!(keys.len(), 1);
}

#[test]
fn host_scalars_and_device_tensors_are_different_kinds() {
    let scaled =
        |by: qkvault_graph::expr::Expr| base().with_score_mod((score() * by).build_score_mod().expect("a score"));
    let one = |dtype| tensor("x", TensorSpec::new(dtype, [1; 4]));
    let keys: BTreeSet<GraphKey> = [
        scaled(scalar("x")),
        scaled(int_scalar("x").to_float()),
        scaled(one(DType::F32)),
        scaled(one(DType::BF16)),
        scaled(one(DType::I32).to_float()),
    ]
    .map(graph_key)
    .into();
    assert_eq!(keys.len(), 5);
}

#[test]
fn values_of_scalars_are_in_no_key_but_their_existence_is() {
    let capped = |name: &str| {
        let e: ScoreExpr = (scalar(name) * score().tanh()).build_score_mod().expect("a score");
        base().with_score_mod(e)
    };
    assert_eq!(graph_key(capped("thirty")), graph_key(capped("fifty")));
    assert_eq!(graph_key(base().with_dropout(0.1)), graph_key(base().with_dropout(0.9)));
    assert_eq!(graph_key(base().with_dropout(0.0)), graph_key(base()));
    assert_ne!(graph_key(base().with_dropout(0.1)), graph_key(base()));

    assert_ne!(
        graph_key(base().with_mask_mod(key().le(query()).build_mask_mod().expect("a predicate"))),
        graph_key(base())
    );
    assert_eq!(graph_key(base().with_score_mod(score().build_score_mod().expect("a score"))), graph_key(base()));
    let always = qkvault_graph::expr::constant(true).build_mask_mod().expect("a predicate");
    assert_eq!(graph_key(base().with_mask_mod(always)), graph_key(base()));
}

#[test]
fn every_part_of_target_and_options_changes_the_plan_key() {
    let valid = validate(base()).expect("sound");
    let (target, options) = (target(), CompileOptions::default());
    let graph = lower(&valid, &target, &options).expect("dense forwards lower");
    let mut keys = BTreeSet::from([plan_key(&graph, &target, &options)]);
    let CompileOptions { heuristics: _, workspace_limit: _, allowed: _, lab: _, engine: _ } = options;
    let all_options = [
        CompileOptions { lab: qkvault_cudnn::LabOptions::form(Form::Fused), ..options },
        CompileOptions { heuristics: Heuristics::A, ..options },
        CompileOptions { heuristics: Heuristics::Fallback, ..options },
    ];
    for options in all_options {
        assert!(keys.insert(plan_key(&graph, &target, &options)), "{options:?}");
    }
    assert!(keys.insert(plan_key_of(&graph, &target, &options, Choice::LeastWorkspace)));
    for configuration in 1..=u8::MAX {
        let lab = qkvault_cudnn::LabOptions { configuration, ..options.lab };
        assert!(keys.insert(plan_key(&graph, &target, &CompileOptions { lab, ..options })), "{configuration}");
    }
    let Target { cudnn: _, libraries: _, toolchain, device } = &target;
    let mut larger = device.clone();
    larger.multi_processor_count += 1;
    let targets = [
        Target { cudnn: CudnnVersion::v9(27, 1), ..target.clone() },
        Target { libraries: LibrarySet::Full, ..target.clone() },
        Target { device: larger, ..target.clone() },
        Target { toolchain: Toolchain { cuda: 12, ..toolchain.clone() }, ..target.clone() },
    ];
    for target in targets {
        assert!(keys.insert(plan_key(&graph, &target, &options)), "{target}");
    }
    let mut named = target.clone();
    named.device.device_name = "the same silicon under another name".into();
    assert!(!keys.insert(plan_key(&graph, &named, &options)));
}

proptest! {
    /// With a limit from free memory, the vault was cold in every run.
    #[test]
    fn b10_p27_a_workspace_limit_changes_no_key(
        a in arbitrary::attention(Space::SMALL.with(Features::NONE)), limits in [any::<Option<u64>>(), any::<Option<u64>>()],
    ) {
        let target = target();
        let [one, other] = limits.map(|workspace_limit| CompileOptions { workspace_limit, ..CompileOptions::default() });
        if let Some(graph) = validate(a).ok().and_then(|valid| lower(&valid, &target, &one).ok()) {
            for choice in [Choice::First, Choice::LeastWorkspace] {
                prop_assert_eq!(plan_key_of(&graph, &target, &one, choice), plan_key_of(&graph, &target, &other, choice));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn plan_keys_are_equal_exactly_when_op_graphs_are(
        a in arbitrary::attention(Space::SMALL.with(Features::NONE)), b in arbitrary::attention(Space::SMALL.with(Features::NONE)),
        change in any::<prop::sample::Index>(),
    ) {
        let (target, options) = (target(), CompileOptions::default());
        let lowered = |a: &Attention| lower(&validate(a.clone()).ok()?, &target, &options).ok();
        let mutations = arbitrary::mutations(&a);
        let near = mutations[change.index(mutations.len())].attention.clone();
        for b in [b, near] {
            if let (Some(a), Some(b)) = (lowered(&a), lowered(&b)) {
                prop_assert_eq!(plan_key(&a, &target, &options) == plan_key(&b, &target, &options), a == b);
            }
        }
    }
}

/// The goldens show that keys without a named engine did not change; this test shows it for the bytes of a graph.
#[test]
fn a_named_engine_changes_key_and_bytes_and_its_absence_does_not() {
    let (target, options) = (target(), CompileOptions::default());
    let bare = lower(&validate(base()).expect("sound"), &target, &options).expect("dense forwards lower");
    let bytes = codec::encode(&bare);
    assert_eq!(bytes[0], 0x94, "a list of four: tensors, operations, engines to avoid, quirks");
    assert_eq!(codec::decode::<OpGraph>(&bytes).expect("reads"), bare);
    assert!(!serde_json::to_string(&bare).expect("writes").contains("\"engine\""));
    assert!(!bare.to_string().contains("engine"));

    let with = |index: i64, knobs: &[(Knob, i64)]| {
        let engine = Some(NamedEngine { index, knobs: knobs.to_vec() });
        OpGraph { engine, ..bare.clone() }
    };
    let allowed = OpGraph { accepted_quirks: QuirkSet::from_codes(["engine.wrong"]).expect("a quirk"), ..bare.clone() };
    let mut keys = BTreeSet::from([plan_key(&bare, &target, &options), plan_key(&allowed, &target, &options)]);
    let named = [
        with(5, &[]),
        with(6, &[]),
        with(5, &[(Knob::Stages, 2)]),
        with(5, &[(Knob::Stages, 3)]),
        with(5, &[(Knob::KernelCfg, 2)]),
        with(5, &[(Knob::KernelCfg, 2), (Knob::Stages, 2)]),
        OpGraph { accepted_quirks: allowed.accepted_quirks, ..with(5, &[]) },
    ];
    for graph in named {
        assert!(keys.insert(plan_key(&graph, &target, &options)), "{graph}");
        assert_eq!(codec::decode::<OpGraph>(&codec::encode(&graph)).expect("reads"), graph);
        let json = serde_json::to_string(&graph).expect("writes");
        assert_eq!(serde_json::from_str::<OpGraph>(&json).expect("reads"), graph);
    }
    let graph = with(5, &[(Knob::TileCgaM, 0), (Knob::Stages, 2)]);
    assert!(graph.to_string().ends_with("\nby engine 5 tile-cga-m=0 stages=2\n"));
    let json = serde_json::to_value(&graph).expect("writes");
    assert_eq!(json["engine"], serde_json::json!({"index": 5, "knobs": [["tile-cga-m", 0], ["stages", 2]]}));
}

/// The numbers of the header: a wrong one would select another knob.
#[test]
fn knobs_have_the_numbers_of_the_header() {
    let numbers =
        [Knob::Stages, Knob::KernelCfg, Knob::TileCgaM, Knob::StreamK, Knob::TileM, Knob::TileN].map(|k| k as u32);
    assert_eq!(numbers, [14, 24, 27, 38, 40, 41]);
}
