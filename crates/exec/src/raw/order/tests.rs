//! The order of a launch and its names, of plans that no GPU has loaded.

use qkvault_cudnn::{CompileOptions, Profile, lower};
use qkvault_graph::expr::{TensorSpec, library, scalar, score, tensor};
use qkvault_graph::{Attention, BackwardOptions, CudnnVersion, DType, LibrarySet, validate};

use super::*;
use crate::common::forward;

fn order(attention: Attention) -> (LaunchOrder, PlanFacts) {
    let attention = validate(attention).expect("sound");
    let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
    let graph = lower(&attention, &target, &CompileOptions::default()).expect("lowers");
    let facts = PlanFacts { bindings: graph.bindings(Some(&attention)), ..forward(&target) };
    (LaunchOrder::for_plan(&facts, &attention), facts)
}

fn shaped() -> Attention {
    Attention::bshd(1, (4, 4), (64, 64), 64, DType::BF16)
}

/// Softcap, a bias with a gradient, and ALiBi.
fn modified() -> Attention {
    let spec = TensorSpec::new(DType::BF16, [1, 4, 64, 64]).with_grad();
    let score = library::alibi(library::softcap(score() + tensor("bias", spec), scalar("cap")), 4);
    shaped().with_score_mod(score.build_score_mod().expect("sound")).with_stats()
}

fn at(address: u64) -> DeviceBuffer {
    DeviceBuffer { address, bytes: 1 << 20 }
}

#[test]
fn constants_are_left_out_of_the_order_and_keep_their_place_in_the_plan() {
    let (order, facts) = order(modified());
    let roles: Vec<Role> = order.tensors().iter().map(|tensor| tensor.role).collect();
    let all = facts.bindings.iter().filter(|b| !b.scalar && !b.role.is_internal());
    let all: Vec<Role> = all.map(|b| b.role).collect();
    let [(constant, place)] = order.constant_places() else { panic!("one constant: {order:?}") };
    assert_eq!(all[*place], *constant);
    assert_eq!(order.constants().collect::<Vec<_>>(), [*constant]);
    assert!(!roles.contains(constant) && roles.len() + 1 == all.len());
    assert_eq!(order.scalars().iter().map(|s| s.role).collect::<Vec<_>>(), [Role::Scale, Role::Scalar(0)]);
}

#[test]
fn names_of_roles_and_of_expressions_find_the_same_places() {
    let backward = modified().backward(BackwardOptions::default());
    let (order, _) = order(backward);
    let place = |name: &str| order.places(name).next().unwrap_or_else(|| panic!("{name}: {order:?}"));
    let role = |(place, scalar): (usize, bool)| {
        if scalar { order.scalars()[place].role } else { order.tensors()[place].role }
    };
    assert_eq!((role(place("d_q")), role(place("q"))), (Role::DQ, Role::Q));
    assert_eq!((role(place("cap")), place("cap")), (Role::Scalar(0), place("scalar.0")));
    assert!(
        matches!((role(place("bias")), role(place("d_bias"))), (Role::ScoreTensor(a), Role::DScoreTensor(b)) if a == b)
    );
    assert_eq!(order.places("capp").count(), 0);
    let BindError::NoSuchName { nearest, .. } = order.unknown("capp") else { panic!("a name") };
    assert_eq!(nearest.as_deref(), Some("cap"));
}

#[test]
fn arguments_by_name_come_into_order_and_the_scale_has_its_usual_value() {
    let (order, facts) = order(modified());
    let tensors: Vec<(String, DeviceBuffer)> = order
        .tensors()
        .iter()
        .rev()
        .map(|t| (t.role.name().into_owned(), at(t.role.uid().unsigned_abs() << 20)))
        .collect();
    let named: Vec<(&str, DeviceBuffer)> = tensors.iter().map(|(name, buffer)| (name.as_str(), *buffer)).collect();
    let scalars = [("cap", Number::F32(30.0))];
    let args = NamedArgs { tensors: &named, scalars: &scalars, ..NamedArgs::default() };
    let (buffers, values) = order.arrange(&facts, &args).expect("complete");
    assert!(buffers.iter().zip(order.tensors()).all(|(b, t)| *b == at(t.role.uid().unsigned_abs() << 20)));
    assert_eq!(values.as_slice(), [Number::F32(0.125), Number::F32(30.0)]);
    let given = [("scale", Number::F32(1.0)), ("cap", Number::F32(30.0))];
    let (_, values) = order.arrange(&facts, &NamedArgs { scalars: &given, ..args }).expect("complete");
    assert_eq!(values[0], Number::F32(1.0));
}

#[test]
fn everything_that_is_wrong_in_names_is_told_at_once() {
    let (order, facts) = order(modified());
    let tensors = [("q", at(1 << 20)), ("q", at(2 << 20)), ("cap", at(3 << 20)), ("biass", at(4 << 20))];
    let scalars = [("k", Number::F32(1.0)), ("capp", Number::F32(30.0))];
    let args = NamedArgs { tensors: &tensors, scalars: &scalars, ..NamedArgs::default() };
    let errors = order.arrange(&facts, &args).expect_err("all of it");
    let told = errors.to_string();
    let has = |wanted: fn(&BindError) -> bool| assert!(errors.iter().any(wanted), "{told}");
    has(|e| matches!(e, BindError::Duplicate { role: Role::Q, .. }));
    has(|e| matches!(e, BindError::NotATensor { role: Role::Scalar(0), .. }));
    has(|e| matches!(e, BindError::NotANumber { role: Role::K, .. }));
    has(|e| matches!(e, BindError::NoSuchName { nearest: Some(near), .. } if near == "bias"));
    has(|e| matches!(e, BindError::NoSuchName { nearest: Some(near), .. } if near == "cap"));
    has(|e| matches!(e, BindError::Missing { role: Role::Scalar(0), scalar: true, .. }));
    has(|e| matches!(e, BindError::Missing { role: Role::O, .. }));
    assert!(!errors.iter().any(|e| matches!(e, BindError::Missing { role: Role::Scale, .. })), "{told}");
}

/// The check of a launch without a GPU took buffers of two bytes, and numbers of any type.
#[test]
fn audit_14_a_check_of_arguments_by_name_refuses_buffers_of_two_bytes() {
    let (order, facts) = order(modified());
    let named = |bytes: u64| -> Vec<(String, DeviceBuffer)> {
        let buffer = |t: &Binding| (t.role.name().into_owned(), DeviceBuffer { address: 1 << 20, bytes });
        order.tensors().iter().map(buffer).collect()
    };
    let check = |tensors: &[(String, DeviceBuffer)], cap: Number| {
        let tensors: Vec<(&str, DeviceBuffer)> = tensors.iter().map(|(name, buffer)| (&**name, *buffer)).collect();
        order.check(&facts, &NamedArgs { tensors: &tensors, scalars: &[("cap", cap)], ..NamedArgs::default() })
    };
    check(&named(1 << 20), Number::F32(1.0)).expect("all of it is right");
    let small = check(&named(2), Number::F32(1.0)).expect_err("two bytes");
    assert!(small.iter().all(|e| matches!(e, BindError::TooSmall { given: 2, .. })), "{small}");
    assert_eq!(small.len(), order.tensors().len());
    for (at, tensor) in order.tensors().iter().enumerate() {
        let mut tensors = named(1 << 20);
        tensors[at].1.bytes = tensor.bytes - 1;
        let error = check(&tensors, Number::F32(1.0)).expect_err("a byte too few");
        assert_eq!(*error, [BindError::TooSmall { role: tensor.role, needed: tensor.bytes, given: tensor.bytes - 1 }]);
    }
    let wrong = check(&named(1 << 20), Number::I32(1)).expect_err("an integer");
    assert_eq!(*wrong, [BindError::WrongDType { role: Role::Scalar(0), needed: DType::F32, given: DType::I32 }]);
}
