//! Origins of a plan as the planner would write its facts: what is refused, and the numbers that follow.

use qkvault_cudnn::op::Fixed;
use qkvault_cudnn::{CompileOptions, lower};
use qkvault_graph::{Attention, BackwardOptions, Band, Corner, CudnnVersion, DType, Origins, Valid};

use super::*;
use crate::bindings::RawBindings;
use crate::check::tests::check_bindings;
use crate::check::{StopAtFirst, faults};
use crate::common::{forward, h200};
use crate::driver::MemoryKind;

/// A backward of 256 queries over 1024 keys, with a window of 300.
fn attention(origins: Origins) -> Valid {
    let band = Band { corner: Corner::TopLeft, left: Some(300), right: Some(0) };
    let a = Attention::bshd(1, (2, 2), (256, 1024), 64, DType::BF16).with_stats().with_band(band).with_origins(origins);
    a.backward(BackwardOptions::default()).validate().expect("valid")
}

fn facts(origins: Origins) -> PlanFacts {
    let target = h200(CudnnVersion::v9(27, 0));
    let attention = attention(origins);
    let graph = lower(&attention, &target, &CompileOptions::default()).expect("lowers");
    crate::common::fixed(PlanFacts { bindings: graph.bindings(None), ..forward(&target) }, graph.fixed_numbers())
}

fn table(facts: &PlanFacts) -> OriginTable {
    let scalars: Vec<Binding> = facts.bindings.iter().copied().filter(|b| b.scalar).collect();
    OriginTable::new(facts, &scalars).expect("it has origins")
}

fn told(facts: &PlanFacts, [query, key]: [i32; 2]) -> Vec<BindError> {
    let table = table(facts);
    let given = |role, _| Some(Number::I32(if role == Role::QueryOrigin { query } else { key }));
    let found = faults(|all| table.check(given, all));
    assert_eq!(table.check(given, &mut StopAtFirst).is_break(), !found.is_empty(), "{query} {key}: {found:?}");
    found
}

#[test]
fn origins_out_of_range_are_told_one_by_one() {
    for kind in [Origins::Any, Origins::EveryQuerySeesAKey] {
        let (facts, mut right) = (facts(kind), 0);
        let some = [0, 1, 299, 300, 1067, 1068, MAX_ORIGIN, MAX_ORIGIN + 1, -1, i32::MIN, i32::MAX];
        for (query, key) in some.iter().flat_map(|q| some.iter().map(|k| (*q, *k))) {
            let far = [(Role::QueryOrigin, query), (Role::KeyOrigin, key)];
            let far = far.into_iter().filter(|(_, given)| !(0..=MAX_ORIGIN).contains(given));
            let far: Vec<BindError> = far.map(|(role, given)| BindError::Origin { role, given }).collect();
            match &told(&facts, [query, key])[..] {
                [] => right += 1,
                [BindError::NoKey { query: of, key: to }] => assert_eq!((*of, *to, far.len()), (query, key, 0)),
                told => assert_eq!(told, far),
            }
        }
        assert!((10..60).contains(&right), "{right}");
    }
}

#[test]
fn a_promise_that_a_launch_breaks_is_told_with_the_origins() {
    let (any, promised) = (facts(Origins::Any), facts(Origins::EveryQuerySeesAKey));
    for (origins, kept) in [([0, 0], true), ([4, 5], false), ([1067, 0], true), ([1068, 0], false)] {
        assert_eq!(told(&any, origins), []);
        let expected = if kept { vec![] } else { vec![BindError::NoKey { query: origins[0], key: origins[1] }] };
        assert_eq!(told(&promised, origins), expected);
    }
    let text = BindError::NoKey { query: 4, key: 5 }.to_string();
    assert!(text.contains("query_origin 4") && text.contains("Origins::Any"), "{text}");
}

#[test]
fn bounds_move_by_the_distance_of_the_origins() {
    let facts = facts(Origins::Any);
    let table = table(&facts);
    let at = |origins| {
        let of = |at: usize| facts.fixed()[at].value.dtype();
        let number = |(at, bytes): (usize, [u8; 4])| match of(at) {
            DType::F32 => f64::from(f32::from_ne_bytes(bytes)),
            _ => f64::from(i32::from_ne_bytes(bytes)),
        };
        table.numbers(origins).map(number).collect::<Vec<_>>()
    };
    // The right bound, and the left one, which falls.
    assert_eq!(at([0, 0]), [0.0, 300.0]);
    assert_eq!(at([4096, 0]), [4096.0, 300.0 - 4096.0]);
    assert_eq!(at([4096, 5000]), [-904.0, 1204.0]);
    let fixed = |at: &usize| matches!(facts.fixed()[*at], Fixed { value: Constant::OfOrigins(_), .. });
    assert!(table.numbers([0, 0]).all(|(at, _)| fixed(&at)));
}

#[test]
fn a_missing_origin_is_a_missing_operand() {
    let facts = facts(Origins::Any);
    let bindings = RawBindings::new().scalar(Role::QueryOrigin, 5).scalar(Role::Scale, 1.0_f32);
    let errors = check_bindings(&facts, &bindings, 0, &|_| MemoryKind::Unknown).expect_err("much is missing");
    let missing = |role: Role| errors.iter().any(|e| matches!(e, BindError::Missing { role: of, .. } if *of == role));
    assert!(missing(Role::KeyOrigin) && !missing(Role::QueryOrigin));
}
