//! Lowering: every op graph is well formed, computes the description, and has its scalars and roles.

use std::collections::BTreeSet;

use proptest::prelude::*;
use qkvault_cudnn::op::{Constant, TensorKind};
use qkvault_cudnn::registry::codes;
use qkvault_cudnn::{CompileOptions, Form, OpGraph, Profile, Target, lower, op};
use qkvault_graph::arbitrary::{self, Features, Space};
use qkvault_graph::{Attention, CudnnVersion, DType, LibrarySet, Order, Origin, Refusal, Role, Tensor, validate};

fn targets() -> Vec<Target> {
    let versions = [CudnnVersion::v9(14, 0), CudnnVersion::v9(19, 0), CudnnVersion::v9(27, 0)];
    Profile::built_in().flat_map(|p| versions.map(|v| p.target(v, LibrarySet::Slim))).collect()
}

fn h200() -> Target {
    Profile::named("h200").expect("built in").target(CudnnVersion::v9(27, 0), LibrarySet::Slim)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn every_attention_is_lowered_to_a_valid_graph_or_refused_with_a_code(
        a in arbitrary::attention(Space::WIDE), dense in arbitrary::attention(Space::WIDE.with(Features::NONE)),
        target in prop::sample::select(targets()),
        form in prop::sample::select(vec![Form::Expanded, Form::Fused]),
    ) {
        let options = CompileOptions { lab: qkvault_cudnn::LabOptions::form(form), ..CompileOptions::default() };
        for (a, must) in [(a, false), (dense, form == Form::Expanded)] {
            let valid = validate(a).expect("sound");
            match lower(&valid, &target, &options) {
                Ok(graph) => {
                    prop_assert_eq!(op::check(&graph), Ok(()), "{}", graph);
                    roles_are_one_to_one(&graph)?;
                }
                Err(refusal) => {
                    prop_assert!(!must, "{}", refusal);
                    let layers: Vec<Origin> = refusal.reasons().iter().map(|r| r.origin).collect();
                    prop_assert!(layers.iter().all(|l| matches!(l, Origin::NotBuilt | Origin::Rule | Origin::Quirk)));
                }
            }
        }
    }
}

fn roles_are_one_to_one(graph: &OpGraph) -> Result<(), TestCaseError> {
    let roles = graph.roles();
    let uids: BTreeSet<i64> = roles.iter().map(|r| r.uid()).collect();
    prop_assert_eq!(uids.len(), roles.len());
    for role in roles {
        prop_assert_eq!(Role::from_uid(role.uid()), Some(role));
    }
    Ok(())
}

#[test]
fn lowered_strides_equal_those_of_bound_tensors() {
    let (dims_q, dims_kv) = ([2, 8, 64, 32], [2, 4, 128, 32]);
    for q in Order::ALL {
        for k in Order::ALL {
            for v in Order::ALL {
                for o in Order::ALL {
                    let t = |order, dims| Tensor::dense(order, dims, DType::F16);
                    let a = Attention::forward(t(q, dims_q), t(k, dims_kv), t(v, dims_kv), t(o, dims_q));
                    let graph = lower(&validate(a.clone()).expect("sound"), &h200(), &CompileOptions::default());
                    let graph = graph.expect("dense forwards lower");
                    for (role, bound) in [(Role::Q, a.q), (Role::K, a.k), (Role::V, a.v), (Role::O, a.o)] {
                        let kind = TensorKind::Operand(role);
                        let declared = graph.tensors.iter().find(|t| t.kind == kind).expect("it is an operand");
                        let axes = |dims: [i64; 4], strides: [i64; 4]| -> BTreeSet<(i64, i64)> {
                            dims.into_iter().zip(strides).collect()
                        };
                        assert_eq!(axes(declared.dims, declared.strides), axes(bound.dims, bound.strides), "{role}");
                    }
                }
            }
        }
    }
}

#[test]
fn roles_do_not_depend_on_the_order_of_tensors_in_a_graph() {
    let a = Attention::bshd(2, (8, 2), (64, 128), 32, DType::BF16).with_stats().with_lengths();
    let graph = lower(&validate(a).expect("sound"), &h200(), &CompileOptions::default()).expect("dense forwards lower");
    let mut turned = graph.clone();
    turned.tensors.reverse();
    assert_eq!(graph.roles(), turned.roles());
    let expected = [Role::Q, Role::K, Role::V, Role::O, Role::Stats, Role::Scale, Role::SeqLenQ, Role::SeqLenKv];
    assert_eq!(graph.roles(), expected);
}

#[test]
fn the_scale_is_always_a_scalar() {
    for head_dim in [64, 128] {
        let a = Attention::bshd(2, (8, 2), (64, 128), head_dim, DType::BF16);
        let scale = a.default_scale();
        let graph =
            lower(&validate(a).expect("sound"), &h200(), &CompileOptions::default()).expect("dense forwards lower");
        assert!(graph.tensors.iter().any(|t| t.kind == TensorKind::Scalar(Role::Scale)));
        assert!(!graph.tensors.iter().any(|t| t.kind == TensorKind::Constant(Constant::f32(scale))));
    }
}

/// A deterministic backward has no buffer for dQ; sums in any order go into an f32 buffer.
#[test]
fn a_deterministic_backward_stays_deterministic_on_every_target() {
    let forward = Attention::bshd(1, (4, 2), (128, 128), 64, DType::F16).with_stats();
    for target in targets() {
        let any_order = |deterministic| {
            let options = qkvault_graph::BackwardOptions { deterministic, ..Default::default() };
            let valid = validate(forward.backward(options)).expect("sound");
            let graph = lower(&valid, &target, &CompileOptions::default())?;
            Ok::<_, Refusal>(graph.roles().contains(&Role::DqAccum))
        };
        assert_eq!(any_order(false), Ok(true), "{target}");
        match any_order(true) {
            Ok(any_order) => assert!(!any_order, "{target}"),
            Err(refusal) => {
                assert_eq!((target.sm(), target.cudnn), (100, CudnnVersion::v9(14, 0)), "{target}");
                assert_eq!(refusal.reasons()[0].code, codes::BACKWARD_DETERMINISTIC_ENGINE);
            }
        }
    }
}

/// NVIDIA names the engine there; if it names none, the request is refused instead of left to heuristics.
#[test]
fn a_deterministic_backward_on_a_b200_names_its_engine() {
    let target = |gpu: &str, version: &str| {
        let cudnn = version.parse().expect("a version");
        Profile::named(gpu).expect("built in").target(cudnn, LibrarySet::Slim)
    };
    let lowered = |head_dim: i64, deterministic: bool, target: &Target| {
        let options = qkvault_graph::BackwardOptions { deterministic, ..Default::default() };
        let forward = Attention::bshd(1, (4, 2), (128, 128), head_dim, DType::F16).with_stats();
        lower(&validate(forward.backward(options)).expect("sound"), target, &CompileOptions::default())
    };
    let text = |head_dim, deterministic, gpu: &str, version: &str| {
        let graph = lowered(head_dim, deterministic, &target(gpu, version)).expect("it is lowered");
        let lines: Vec<String> =
            graph.to_string().lines().filter(|l| l.starts_with("by ")).map(str::to_owned).collect();
        lines.join("")
    };
    let (old, new) = (
        "by engine 5 kernel-cfg=31 stages=2",
        "by engine 5 tile-m=3 tile-n=2 kernel-cfg=2 stream-k=0 tile-cga-m=0 stages=",
    );
    assert_eq!(text(64, true, "b200", "9.18.0"), old);
    assert_eq!(text(128, true, "b200", "9.22.9"), old);
    assert_eq!(text(128, true, "b200", "9.23.0"), format!("{new}2"));
    assert_eq!(text(256, true, "b200", "9.27.0"), format!("{new}3"));
    assert_eq!(text(256, true, "b200", "9.23.0"), format!("{new}3"));
    assert_eq!(text(64, false, "b200", "9.27.0"), "");
    for gpu in ["a100", "l40s", "h200", "rtx-pro-6000"] {
        assert_eq!(text(64, true, gpu, "9.27.0"), "", "{gpu}");
    }
    let with_sm = |sm: i64, version| {
        let mut target = target("b200", version);
        target.device.device_ver = sm * 10;
        lowered(64, true, &target).map(|graph| graph.engine.is_some())
    };
    assert_eq!(with_sm(103, "9.19.0"), Ok(true));
    for (sm, version) in [(100, "9.17.1"), (104, "9.27.0")] {
        let refusal = with_sm(sm, version).expect_err("no engine is known");
        assert_eq!(refusal.reasons()[0].code, codes::BACKWARD_DETERMINISTIC_ENGINE);
    }
}

/// cuDNN refused every launch of such a plan: its variant pack had a number that the plan did not know.
#[test]
fn a_whole_quotient_leaves_no_constant_that_nothing_reads() {
    let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
    for text in ["score + float(query // 64)", "score + float(query // 64) * float(key % 64)"] {
        let text = format!("q: bf16 [1,2,128,64]\nscore_mod: {text}");
        let attention = validate(qkvault_graph::text::parse(&text).expect("it parses")).expect("valid");
        let graph = lower(&attention, &target, &CompileOptions::default()).expect("it lowers");
        assert_eq!(op::check(&graph), Ok(()), "{graph}");
    }
}

/// The dividend of a quotient of two constants is an operand, unlike its divisor.
#[test]
fn the_dividend_of_a_whole_quotient_is_read_if_it_is_a_constant() {
    let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
    let text = "q: bf16 [1,2,128,64]\nscore_mod: score + float(1000 // 128)";
    let attention = validate(qkvault_graph::text::parse(text).expect("it parses")).expect("valid");
    let graph = lower(&attention, &target, &CompileOptions::default()).expect("it lowers");
    assert!(graph.to_string().contains("1000i") && !graph.to_string().contains("128i"), "{graph}");
}
