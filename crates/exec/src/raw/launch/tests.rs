//! The quick check of a launch and the one that tells what is wrong agree about random arguments.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use qkvault_graph::op::SCRATCH_ALIGNMENT;
use qkvault_graph::{CudnnVersion, DType, Role, Scaled};

use super::*;
use crate::bind_error::BindError;
use crate::check::{check_bindings, check_workspace};
use crate::common::{forward, h200, operand};

/// The address of the first tensor; the others follow it, and then the workspace.
const BASE: u64 = 0x7f00_0000_0000;

fn facts(alignment: u32) -> PlanFacts {
    let mut facts = forward(&h200(CudnnVersion::v9(27, 0)));
    facts.bindings.push(operand(Role::DqAccum, DType::F32, true, 512));
    // Block scales, which may not be larger than they are.
    facts.bindings.push(operand(Role::Descale(Scaled::Q), DType::E8M0, false, 512));
    facts.bindings.iter_mut().filter(|b| !b.scalar).for_each(|b| b.alignment = alignment);
    facts
}

/// Arguments that own what [`RawArgs`] borrows.
#[derive(Clone, Debug)]
struct Case {
    tensors: Vec<DeviceBuffer>,
    scalars: Vec<Number>,
    workspace: DeviceBuffer,
    interleaved: Vec<(Role, Role)>,
    needed: u64,
}

impl Case {
    fn right(table: &LaunchTable, needed: u64) -> Case {
        let at = |i: usize| BASE + 0x1_0000 * i as u64;
        let buffer = |(i, t): (usize, &Binding)| DeviceBuffer { address: at(i), bytes: t.bytes };
        let number = |s: &Binding| if s.dtype == DType::I32 { Number::I32(-3) } else { Number::F32(0.125) };
        Case {
            tensors: table.tensors.iter().enumerate().map(buffer).collect(),
            scalars: table.scalars.iter().map(number).collect(),
            workspace: DeviceBuffer { address: at(table.tensors.len()), bytes: needed },
            interleaved: Vec::new(),
            needed,
        }
    }

    fn args(&self) -> RawArgs<'_> {
        let Case { tensors, scalars, workspace, interleaved, needed: _ } = self;
        RawArgs { tensors, scalars, workspace: *workspace, interleaved }
    }

    /// What the check that tells finds.
    fn found(&self, facts: &PlanFacts, table: &LaunchTable) -> Vec<BindError> {
        let bindings = table.bindings(&self.args());
        let DeviceBuffer { address, bytes } = self.workspace;
        let found = check_bindings(facts, &bindings, 0, &|_| MemoryKind::Unknown)
            .and_then(|()| check_workspace(facts, &bindings, self.needed, address, bytes));
        found.map_or_else(|errors| errors.into_vec(), |()| Vec::new())
    }
}

/// A change of right arguments; most are faults.
#[derive(Clone, Debug)]
enum Change {
    Bytes(usize, u64),
    /// Bytes that are missing or too many.
    Resize(usize, i64),
    Address(usize, u64),
    /// Near another tensor, or near the workspace.
    Onto(usize, usize, i64),
    Scalar(usize, Number),
    Interleaved(usize, usize),
    Workspace(u64, u64),
    WorkspaceOnto(usize, i64),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let place = 0_usize..5;
    let near = prop_oneof![Just(0_i64), -4200..4200_i64, (-40..40_i64).prop_map(|n| n * 16)];
    let number = prop_oneof![Just(Number::F32(1.0)), Just(Number::I32(1)), Just(Number::I64(1))];
    let address = prop_oneof![
        Just(0),
        Just(u64::MAX - 15),
        Just(u64::MAX - 4096),
        (0..64_u64).prop_map(|n| BASE + 0x40_0000 + n)
    ];
    let bytes = prop_oneof![Just(0), Just(u64::MAX), 1..10_000_u64];
    let change = prop_oneof![
        (place.clone(), bytes).prop_map(|(i, bytes)| Change::Bytes(i, bytes)),
        (place.clone(), -2..3_i64).prop_map(|(i, by)| Change::Resize(i, by)),
        (place.clone(), address.clone()).prop_map(|(i, at)| Change::Address(i, at)),
        (place.clone(), place.clone(), near.clone()).prop_map(|(i, j, by)| Change::Onto(i, j, by)),
        (0..2_usize, number).prop_map(|(i, value)| Change::Scalar(i, value)),
        (place.clone(), place.clone()).prop_map(|(i, j)| Change::Interleaved(i, j)),
        (address, 0..3000_u64).prop_map(|(at, bytes)| Change::Workspace(at, bytes)),
        (place, near).prop_map(|(i, by)| Change::WorkspaceOnto(i, by)),
    ];
    proptest::collection::vec(change, 0..5)
}

fn apply(case: &mut Case, table: &LaunchTable, change: &Change) {
    let role = |i: usize| table.tensors[i].role;
    match *change {
        Change::Bytes(i, bytes) => case.tensors[i].bytes = bytes,
        Change::Resize(i, by) => case.tensors[i].bytes = case.tensors[i].bytes.saturating_add_signed(by),
        Change::Address(i, address) => case.tensors[i].address = address,
        Change::Onto(i, j, by) => case.tensors[i].address = case.tensors[j].address.saturating_add_signed(by),
        Change::Scalar(i, value) => case.scalars[i] = value,
        Change::Interleaved(i, j) => case.interleaved.push((role(i), role(j))),
        Change::Workspace(address, bytes) => case.workspace = DeviceBuffer { address, bytes },
        Change::WorkspaceOnto(i, by) => {
            let near = case.tensors[i].address.saturating_add_signed(by);
            case.workspace.address = near - near % SCRATCH_ALIGNMENT;
        }
    }
}

fn tables() -> [(PlanFacts, LaunchTable); 2] {
    [16, 0].map(|alignment| {
        let facts = facts(alignment);
        let table = LaunchTable::new(&facts, &facts.scratch());
        (facts, table)
    })
}

/// A launch that needs no workspace was refused, with a report of a bug, when it was given one within an operand.
#[test]
fn a_workspace_that_is_not_needed_may_lie_anywhere() {
    let [(facts, table), _] = tables();
    let mut case = Case::right(&table, 0);
    case.workspace = DeviceBuffer { address: case.tensors[3].address + 256, bytes: 256 };
    assert_eq!(case.found(&facts, &table), []);
    assert!(table.accepts(&case.args(), 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_quick_check_accepts_exactly_what_the_other_has_no_errors_for(
        changes in changes(),
        needed in prop_oneof![Just(0_u64), Just(1024)],
        aligned in 0..2_usize,
    ) {
        let (facts, table) = &tables()[aligned];
        let mut case = Case::right(table, needed);
        prop_assert!(table.accepts(&case.args(), needed));
        changes.iter().for_each(|change| apply(&mut case, table, change));
        let found = case.found(facts, table);
        prop_assert_eq!(table.accepts(&case.args(), needed), found.is_empty(), "{:?}: {:?}", case, found);
    }
}

/// A launch with few changes is right often enough for the property to say something about either answer.
#[test]
fn random_arguments_are_right_and_wrong() {
    let [(facts, table), _] = tables();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut right = 0;
    for _ in 0..400 {
        let changes = changes().new_tree(&mut runner).expect("a case").current();
        let mut case = Case::right(&table, 1024);
        changes.iter().for_each(|change| apply(&mut case, &table, change));
        right += usize::from(case.found(&facts, &table).is_empty());
    }
    assert!((60..340).contains(&right), "{right} of 400 are right");
}
