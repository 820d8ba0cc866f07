//! Lowering: every op graph is well formed, says what the description says, and has its slots and roles.

use std::collections::BTreeSet;

use proptest::prelude::*;
use qkvault_graph::arbitrary::{self, Features, Space};
use qkvault_graph::op::{Constant, TensorKind};
use qkvault_graph::{
    Attention, CudnnVersion, DType, Form, Layer, LibrarySet, OpGraph, Order, Policy, Profile, Role, Target, Tensor,
    lower, op, validate,
};

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
    fn p15_p25_every_attention_is_lowered_soundly_or_refused_by_name(
        a in arbitrary::attention(Space::WIDE), dense in arbitrary::attention(Space::WIDE.with(Features::NONE)),
        target in prop::sample::select(targets()),
        form in prop::sample::select(vec![Form::Expanded, Form::Fused, Form::Unified]),
    ) {
        let policy = Policy { form, ..Policy::default() };
        for (a, must) in [(a, false), (dense, form == Form::Expanded)] {
            let valid = validate(a).expect("sound");
            match lower(&valid, &target, &policy) {
                Ok(graph) => {
                    prop_assert_eq!(op::check(&graph), Ok(()), "{}", graph);
                    roles_are_one_to_one(&graph)?;
                }
                Err(refusal) => {
                    prop_assert!(!must, "{}", refusal);
                    let layers: Vec<Layer> = refusal.reasons().iter().map(|r| r.layer).collect();
                    prop_assert!(layers.iter().all(|l| matches!(l, Layer::NotBuilt | Layer::Rule | Layer::Quirk)));
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
fn p7_lowered_strides_are_those_of_the_tensors_that_are_bound() {
    let (dims_q, dims_kv) = ([2, 8, 64, 32], [2, 4, 128, 32]);
    for q in Order::ALL {
        for k in Order::ALL {
            for v in Order::ALL {
                for o in Order::ALL {
                    let t = |order, dims| Tensor::dense(order, dims, DType::F16);
                    let a = Attention::forward(t(q, dims_q), t(k, dims_kv), t(v, dims_kv), t(o, dims_q));
                    let graph = lower(&validate(a.clone()).expect("sound"), &h200(), &Policy::default());
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
fn p20_roles_do_not_depend_on_the_order_of_tensors_in_a_graph() {
    let a = Attention::bshd(2, (8, 2), (64, 128), 32, DType::BF16).with_stats().with_lengths();
    let graph = lower(&validate(a).expect("sound"), &h200(), &Policy::default()).expect("dense forwards lower");
    let mut turned = graph.clone();
    turned.tensors.reverse();
    assert_eq!(graph.roles(), turned.roles());
    let expected = [Role::Q, Role::K, Role::V, Role::O, Role::Stats, Role::Scale, Role::SeqLenQ, Role::SeqLenKv];
    assert_eq!(graph.roles(), expected);
}

#[test]
fn p47_the_scale_is_always_a_slot() {
    for hidden in [64, 128] {
        let a = Attention::bshd(2, (8, 2), (64, 128), hidden, DType::BF16);
        let scale = a.default_scale();
        let graph = lower(&validate(a).expect("sound"), &h200(), &Policy::default()).expect("dense forwards lower");
        assert!(graph.tensors.iter().any(|t| t.kind == TensorKind::Slot(Role::Scale)));
        assert!(!graph.tensors.iter().any(|t| t.kind == TensorKind::Constant(Constant::f32(scale))));
    }
}

/// The flag is a field of the backward's own that has no second place; what is summed in any order is an f32 buffer of its own.
#[test]
fn p45_a_deterministic_backward_is_lowered_as_one_on_every_target() {
    let forward = Attention::bshd(1, (4, 2), (128, 128), 64, DType::F16).with_stats();
    for target in targets() {
        let any_order = |deterministic| {
            let options = qkvault_graph::BackwardOptions { deterministic, ..Default::default() };
            let valid = validate(forward.backward(options)).expect("sound");
            let graph = lower(&valid, &target, &Policy::default()).expect("it is lowered");
            graph.roles().contains(&Role::DqAccum)
        };
        assert!(any_order(false) && !any_order(true), "{target}");
    }
}
