//! The quick check of arguments and the one that tells what is wrong agree about random arguments, without a GPU.

use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use qkvault_compile::PlanFacts;
use qkvault_graph::expr::{Grad, TensorSpec, library, scalar, score, tensor};
use qkvault_graph::{Attention, BackwardOptions, CompileOptions, CudnnVersion, lower, validate};

use super::*;
use crate::bind_error::BindError;
use crate::check::{check_bindings, check_workspace};
use crate::common::{facts_of, h200};
use crate::driver::MemoryKind;
use crate::raw::RawArgs;
use crate::raw::launch::LaunchTable;

const GPU: i32 = 0;
const BASE: u64 = 0x7f00_0000_0000;
/// Bytes of the scratch memory of every launch here.
const SCRATCH: u64 = 1024;

/// A plan that was never compiled, of a description with everything that a launch may be given: lengths, a scalar and
/// a tensor with names, and slopes that the plan has itself.
struct Plan {
    attention: Valid,
    facts: PlanFacts,
    table: LaunchTable,
    constants: Vec<BoundConstant>,
}

static PLAN: LazyLock<Plan> = LazyLock::new(|| {
    let bias = tensor("bias", TensorSpec::new(DType::F32, [1, 4, 1, 1]));
    let modified = library::alibi(library::softcap(score() + bias, scalar("cap")), 4);
    let attention = Attention::bshd(2, (4, 2), (64, 64), 64, DType::BF16)
        .with_score_mod(modified.build_score_mod().expect("a score"))
        .with_lengths()
        .with_stats();
    let attention = validate(attention).expect("sound");
    let target = h200(CudnnVersion::v9(27, 0));
    let facts = facts_of(&lower(&attention, &target, &CompileOptions::default()).expect("lowers"), &target);
    let role = attention.tensor_role(library::ALIBI_SLOPES).expect("it has slopes");
    let constants = vec![BoundConstant { role, address: BASE + 0x80_0000, bytes: 4096 }];
    let table = LaunchTable::new(&facts, &facts.scratch());
    Plan { attention, facts, table, constants }
});

/// Arguments as the checks see them.
#[derive(Clone, Debug)]
struct Case {
    operands: Vec<(Seen<'static>, DeviceBuffer)>,
    batch: Vec<(Role, u64, u64)>,
    scalars: Vec<(Which<'static>, Number)>,
    interleaved: Vec<(Role, Role)>,
    workspace: DeviceBuffer,
}

fn address(i: usize) -> u64 {
    BASE + 0x1_0000 * i as u64
}

fn seen(which: Which<'static>) -> Seen<'static> {
    Seen { which, gradient: false, trusted: false, dtype: None, writable: true }
}

impl Plan {
    fn wanted(&self) -> Wanted<'_> {
        let Plan { attention, facts: _, table, constants } = self;
        Wanted { tensors: table.tensors(), scalars: table.scalars(), attention: Some(attention), constants }
    }

    /// Right arguments: lengths by a batch, the tensor and the scalar by name, slopes and scale left out.
    fn right(&self) -> Case {
        let mut case = Case {
            operands: Vec::new(),
            batch: Vec::new(),
            scalars: vec![(Which::Named("cap"), Number::F32(30.0))],
            interleaved: Vec::new(),
            workspace: DeviceBuffer { address: address(40), bytes: SCRATCH },
        };
        let bias = self.attention.tensor_role("bias").expect("it has one");
        for (i, binding) in self.table.tensors().iter().enumerate() {
            let (role, buffer) = (binding.role, DeviceBuffer { address: address(i), bytes: binding.bytes });
            if role.is_followed() {
                case.batch.push((role, buffer.address, buffer.bytes));
            } else if self.constants.iter().all(|constant| constant.role != role) {
                let which = if role == bias { Which::Named("bias") } else { Which::Role(role) };
                let typed = Seen { dtype: Some(binding.dtype), writable: binding.output, ..seen(which) };
                case.operands.push((typed, buffer));
            }
        }
        case
    }

    /// Whether the two quick checks of a launch accept the arguments.
    fn accepts(&self, case: &Case) -> bool {
        let Case { operands, batch, scalars, interleaved, workspace } = case;
        let wanted = self.wanted();
        let mut roles = Short::new();
        let seen = operands.iter().map(|(seen, _)| *seen);
        let Some(scalars) = wanted.accepts(seen, batch, scalars.iter().copied(), &mut roles) else { return false };
        let given: Vec<_> = roles.iter().map(|(at, role)| (*role, operands[*at].1)).collect();
        let tensors: Vec<_> = wanted.tensors.iter().map(|t| wanted.buffer(t.role, &given, batch)).collect();
        let args = RawArgs { tensors: &tensors, scalars: &scalars, workspace: *workspace, interleaved };
        self.table.accepts(&args, SCRATCH)
    }

    /// Everything that the checks that tell find.
    fn errors(&self, case: &Case) -> Vec<BindError> {
        let Case { operands, batch, scalars, interleaved, workspace } = case;
        let operands = operands.iter().copied();
        let (bindings, mut errors) = self.wanted().bindings(operands, batch, scalars.iter().copied(), interleaved);
        let checks = [
            check_bindings(&self.facts, &bindings, GPU, &|_| MemoryKind::Device(GPU)),
            check_workspace(&self.facts, &bindings, SCRATCH, workspace.address, workspace.bytes),
        ];
        for found in checks.into_iter().filter_map(Result::err) {
            errors.extend(found.into_vec());
        }
        errors
    }
}

/// A change of right arguments; most are faults.
#[derive(Clone, Debug)]
enum Change {
    Leave(usize),
    /// Bound once more, or another operand under this one's name.
    Again(usize),
    Which(usize, Which<'static>),
    Gradient(usize),
    DType(usize, Option<DType>),
    Writable(usize, bool),
    Trusted(usize, bool),
    Resize(usize, i64),
    Move(usize, i64),
    Onto(usize, usize, i64),
    Interleaved(usize, usize),
    /// Lengths of the caller's own, checked or not.
    Lengths(bool),
    NoBatch,
    InBatch(Role),
    Scalar(Which<'static>, Number),
    NoScalar,
    Workspace(i64, u64),
    WorkspaceOnto(usize),
}

fn which() -> impl Strategy<Value = Which<'static>> {
    let names = ["bias", "cap", "alibi_slopes", "byas", ""].map(Which::Named);
    let roles = [Role::Q, Role::O, Role::Stats, Role::Scale, Role::DqAccum, Role::DQ, Role::SeqLenQ];
    let roles = roles.map(Which::Role).into_iter().chain((0..3).map(|n| Which::Role(Role::ScoreTensor(n))));
    let scalars = (0..2).map(|n| Which::Role(Role::Scalar(n)));
    proptest::sample::select(names.into_iter().chain(roles).chain(scalars).collect::<Vec<_>>())
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let place = || 0_usize..16;
    let dtype = prop_oneof![Just(None), Just(Some(DType::BF16)), Just(Some(DType::F32)), Just(Some(DType::I32))];
    let number = prop_oneof![Just(Number::F32(1.0)), Just(Number::I32(1))];
    let roles = vec![Role::SeqLenQ, Role::SeqLenKv, Role::Q, Role::DQ, Role::ScoreTensor(0), Role::ScoreTensor(1)];
    let near = || prop_oneof![Just(0_i64), -4200..4200_i64, (-40..40_i64).prop_map(|n| n * 16)];
    let change = prop_oneof![
        place().prop_map(Change::Leave),
        place().prop_map(Change::Again),
        (place(), which()).prop_map(|(i, which)| Change::Which(i, which)),
        place().prop_map(Change::Gradient),
        (place(), dtype).prop_map(|(i, dtype)| Change::DType(i, dtype)),
        (place(), any::<bool>()).prop_map(|(i, writable)| Change::Writable(i, writable)),
        (place(), any::<bool>()).prop_map(|(i, trusted)| Change::Trusted(i, trusted)),
        (place(), -2..4096_i64).prop_map(|(i, by)| Change::Resize(i, by)),
        (place(), near()).prop_map(|(i, by)| Change::Move(i, by)),
        (place(), place(), near()).prop_map(|(i, j, by)| Change::Onto(i, j, by)),
        (place(), place()).prop_map(|(i, j)| Change::Interleaved(i, j)),
        any::<bool>().prop_map(Change::Lengths),
        Just(Change::NoBatch),
        proptest::sample::select(roles).prop_map(Change::InBatch),
        (which(), number).prop_map(|(which, value)| Change::Scalar(which, value)),
        Just(Change::NoScalar),
        (near(), 0..2048_u64).prop_map(|(by, bytes)| Change::Workspace(by, bytes)),
        place().prop_map(Change::WorkspaceOnto),
    ];
    proptest::collection::vec(change, 0..4)
}

fn apply(case: &mut Case, change: &Change) {
    let count = case.operands.len();
    let at = |i: usize| i % count.max(1);
    if count == 0 {
        return;
    }
    let role = |i: usize| match case.operands[at(i)].0.which {
        Which::Role(role) => role,
        Which::Named(_) => Role::ScoreTensor(0),
    };
    match *change {
        Change::Leave(i) => drop(case.operands.remove(at(i))),
        Change::Again(i) => case.operands.push(case.operands[at(i)]),
        Change::Which(i, which) => case.operands[at(i)].0.which = which,
        Change::Gradient(i) => case.operands[at(i)].0.gradient = true,
        Change::DType(i, dtype) => case.operands[at(i)].0.dtype = dtype,
        Change::Writable(i, writable) => case.operands[at(i)].0.writable = writable,
        Change::Trusted(i, trusted) => case.operands[at(i)].0.trusted = trusted,
        Change::Resize(i, by) => {
            let bytes = &mut case.operands[at(i)].1.bytes;
            *bytes = bytes.saturating_add_signed(by);
        }
        Change::Move(i, by) => {
            let address = &mut case.operands[at(i)].1.address;
            *address = address.saturating_add_signed(by);
        }
        Change::Onto(i, j, by) => {
            case.operands[at(i)].1.address = case.operands[at(j)].1.address.saturating_add_signed(by);
        }
        Change::Interleaved(i, j) => {
            let pair = (role(i), role(j));
            case.interleaved.push(pair);
        }
        Change::Lengths(trusted) => {
            let lengths = Seen { trusted, ..seen(Which::Role(Role::SeqLenKv)) };
            case.batch.retain(|(role, ..)| *role != Role::SeqLenKv);
            case.operands.push((lengths, DeviceBuffer { address: address(50), bytes: 4096 }));
        }
        Change::NoBatch => case.batch.clear(),
        // A batch has each role once.
        Change::InBatch(role) if case.batch.iter().all(|(other, ..)| *other != role) => {
            case.batch.push((role, address(60), 4096));
        }
        Change::InBatch(_) => {}
        Change::Scalar(which, value) => case.scalars.push((which, value)),
        Change::NoScalar => case.scalars.clear(),
        Change::Workspace(by, bytes) => {
            case.workspace = DeviceBuffer { address: case.workspace.address.saturating_add_signed(by), bytes };
        }
        Change::WorkspaceOnto(i) => case.workspace.address = case.operands[at(i)].1.address,
    }
}

#[test]
fn names_batches_constants_and_defaults_fill_a_launch() {
    let case = PLAN.right();
    assert_eq!(PLAN.errors(&case), []);
    assert!(PLAN.accepts(&case));
    // Slopes of the caller's own take the place of the plan's.
    let mut own = case.clone();
    let slopes = Seen { dtype: Some(DType::F32), ..seen(Which::Named(library::ALIBI_SLOPES)) };
    own.operands.push((slopes, DeviceBuffer { address: address(45), bytes: 4096 }));
    assert!(PLAN.accepts(&own) && PLAN.errors(&own).is_empty());
    let given = [(PLAN.constants[0].role, own.operands.last().expect("pushed").1)];
    assert_eq!(PLAN.wanted().buffer(given[0].0, &given, &[]).address, address(45));
    assert_eq!(PLAN.wanted().buffer(given[0].0, &[], &[]), PLAN.constants[0].buffer());
}

/// Each fault alone, so that no other one hides it.
#[test]
fn every_fault_is_refused_by_both_checks() {
    let role = |case: &Case, role| case.operands.iter().position(|(seen, _)| seen.which == Which::Role(role));
    let at = |wanted| role(&PLAN.right(), wanted).expect("it is given");
    let named = |name| Which::Named(name);
    let (q, o) = (at(Role::Q), at(Role::O));
    let faults = [
        Change::Leave(q),
        Change::Again(q),
        Change::Which(q, Which::Role(Role::DQ)),
        Change::Which(q, Which::Role(Role::Scale)),
        Change::Which(q, named("alibi")),
        Change::Gradient(at(Role::Stats) + 1),
        Change::DType(q, Some(DType::F32)),
        Change::Writable(o, false),
        Change::Resize(q, -1),
        Change::Move(q, 8),
        Change::Onto(o, q, 0),
        Change::NoBatch,
        Change::InBatch(Role::Q),
        Change::InBatch(Role::DQ),
        Change::Scalar(named("cup"), Number::F32(1.0)),
        Change::Scalar(named("cap"), Number::F32(1.0)),
        Change::Scalar(Which::Role(Role::Scale), Number::I32(1)),
        Change::Scalar(Which::Role(Role::Scalar(7)), Number::F32(1.0)),
        Change::NoScalar,
        Change::Workspace(8, SCRATCH),
        Change::Workspace(0, SCRATCH - 1),
        Change::WorkspaceOnto(q),
    ];
    for fault in faults {
        let mut case = PLAN.right();
        apply(&mut case, &fault);
        assert!(!PLAN.accepts(&case) && !PLAN.errors(&case).is_empty(), "{fault:?}");
    }
    for right in [
        Change::Scalar(Which::Role(Role::Scale), Number::F32(0.5)),
        Change::DType(q, None),
        Change::Trusted(q, true),
        Change::Writable(q, true),
        Change::Resize(q, 4096),
        Change::Workspace(256, SCRATCH + 1),
    ] {
        let mut case = PLAN.right();
        apply(&mut case, &right);
        assert!(PLAN.accepts(&case) && PLAN.errors(&case).is_empty(), "{right:?}");
    }
    // A plan without constants of its own needs the slopes.
    let bare = Wanted { constants: &[], ..PLAN.wanted() };
    let (case, mut roles) = (PLAN.right(), Short::new());
    let seen = case.operands.iter().map(|(seen, _)| *seen);
    assert!(bare.accepts(seen, &case.batch, case.scalars.iter().copied(), &mut roles).is_none());
}

/// Every buffer reaches the tensor of its role, and the scale that is given takes the place of the usual one.
#[test]
fn a_launch_has_each_buffer_and_number_in_its_place() {
    let mut case = PLAN.right();
    let wanted = PLAN.wanted();
    let given: Vec<_> = case.operands.iter().map(|(seen, buffer)| (wanted.roles_of(seen)[0], *buffer)).collect();
    for (i, tensor) in wanted.tensors.iter().enumerate() {
        let own = PLAN.constants.iter().find(|constant| constant.role == tensor.role).map(BoundConstant::buffer);
        let expected = own.unwrap_or(DeviceBuffer { address: address(i), bytes: tensor.bytes });
        assert_eq!(wanted.buffer(tensor.role, &given, &case.batch), expected, "{}", tensor.role);
    }
    let values = |case: &Case| {
        let seen = case.operands.iter().map(|(seen, _)| *seen);
        let accepted = wanted.accepts(seen, &case.batch, case.scalars.iter().copied(), &mut Short::new());
        let values: Vec<_> = wanted.scalars.iter().map(|s| s.role).zip(accepted.expect("right")).collect();
        values
    };
    let (scale, cap) = (Role::Scale, PLAN.attention.scalar_role("cap").expect("it has one"));
    assert_eq!(values(&case), [(scale, Number::F32(0.125)), (cap, Number::F32(30.0))]);
    case.scalars.push((Which::Role(scale), Number::F32(0.5)));
    assert_eq!(values(&case), [(scale, Number::F32(0.5)), (cap, Number::F32(30.0))]);
}

/// A name that score modification and mask both use stands for two operands, of which each must be right.
#[test]
fn a_name_of_two_scalars_is_refused_unless_it_fits_both() {
    let limit = || scalar("limit");
    let later = (qkvault_graph::expr::key().to_float() - limit()).ge(0.0);
    let attention = Attention::bshd(1, (2, 2), (64, 64), 64, DType::BF16)
        .with_score_mod(library::softcap(score(), limit()).build_score_mod().expect("a score"))
        .with_mask_mod(later.build_mask_mod().expect("a mask"));
    let attention = validate(attention).expect("sound");
    let roles: Vec<Role> = attention.scalar_roles("limit").collect();
    assert_eq!(roles.len(), 2);
    let scalar = |role, dtype| crate::common::scalar(role, dtype);
    let both = [scalar(roles[0], DType::F32), scalar(roles[1], DType::F32)];
    let given = [(Which::Named("limit"), Number::F32(3.0))];
    let accepted = |scalars: &[Binding], given: &[(Which<'static>, Number)]| {
        let wanted = Wanted { tensors: &[], scalars, attention: Some(&attention), constants: &[] };
        wanted.accepts(std::iter::empty(), &[], given.iter().copied(), &mut Short::new())
    };
    assert_eq!(accepted(&both, &given).expect("both fit").to_vec(), [Number::F32(3.0); 2]);
    for wrong in [[both[0], scalar(roles[1], DType::I32)], [scalar(roles[0], DType::I32), both[1]]] {
        assert!(accepted(&wrong, &given).is_none());
    }
    let twice = [(Which::Role(roles[1]), Number::F32(1.0)), (Which::Named("limit"), Number::F32(3.0))];
    assert!(accepted(&both, &twice).is_none());
}

/// An unknown gradient is told with the tensors that have one.
#[test]
fn an_unknown_gradient_is_told_with_the_tensors_that_have_one() {
    let with = |name, grad| {
        let mut spec = TensorSpec::new(DType::F32, [1, 2, 64, 64]);
        spec.grad = grad;
        tensor(name, spec)
    };
    let score = score() + with("learned", Grad::Needed) + with("fixed", Grad::None);
    let forward = Attention::bshd(1, (2, 2), (64, 64), 64, DType::BF16).with_stats();
    let forward = forward.with_score_mod(score.build_score_mod().expect("a score"));
    let backward = validate(forward.backward(BackwardOptions::default())).expect("sound");
    let wanted = Wanted { tensors: &[], scalars: &[], attention: Some(&backward), constants: &[] };
    let told = wanted.unknown(Which::Named("lerned"), true, false).to_string();
    assert!(told.contains("no tensor with a gradient 'lerned'") && told.contains("'learned'"), "{told}");
    let BindError::NoSuchName { names, .. } = wanted.unknown(Which::Named("fixed"), true, false) else {
        panic!("another error")
    };
    assert_eq!(names, ["learned"]);
}

#[test]
fn an_unknown_tensor_or_scalar_is_told_with_the_nearest_name() {
    let mut case = PLAN.right();
    case.scalars[0].0 = Which::Named("cup");
    let bias = case.operands.iter_mut().find(|(seen, _)| seen.which == Which::Named("bias")).expect("it is given");
    bias.0.which = Which::Named("byas");
    assert!(!PLAN.accepts(&case));
    let errors = PLAN.errors(&case);
    let [first, second, ..] = &errors[..] else { panic!("{errors:?}") };
    for (error, what, name, nearest) in [(first, "tensor", "byas", "bias"), (second, "scalar", "cup", "cap")] {
        let told = error.to_string();
        assert!(told.contains(&format!("no {what} '{name}'")), "{told}");
        assert!(told.contains(&format!("did you mean '{nearest}'?")), "{told}");
    }
    // And both are missing under their right names.
    let missing = errors.iter().filter(|error| matches!(error, BindError::Missing { .. })).count();
    assert_eq!((missing, errors.len()), (2, 4), "{errors:?}");
    // A plan that was loaded without its description knows no name.
    let bare = Wanted { attention: None, ..PLAN.wanted() };
    let told = bare.unknown(Which::Named("cap"), false, true).to_string();
    assert!(told.contains("without its description"), "{told}");
}

#[test]
fn lengths_that_nothing_checked_are_refused() {
    let mut case = PLAN.right();
    apply(&mut case, &Change::Lengths(false));
    assert!(!PLAN.accepts(&case));
    assert_eq!(PLAN.errors(&case), [BindError::Unchecked { role: Role::SeqLenKv }]);
    case.operands.pop();
    apply(&mut case, &Change::Lengths(true));
    assert!(PLAN.accepts(&case) && PLAN.errors(&case).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_quick_check_accepts_exactly_what_the_other_has_no_errors_for(changes in changes()) {
        let mut case = PLAN.right();
        changes.iter().for_each(|change| apply(&mut case, change));
        let errors = PLAN.errors(&case);
        prop_assert_eq!(PLAN.accepts(&case), errors.is_empty(), "{:?}: {:?}", case, errors);
    }
}

/// The property says something about either answer.
#[test]
fn random_arguments_are_right_and_wrong() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut right = 0;
    for _ in 0..400 {
        let mut case = PLAN.right();
        let changes = changes().new_tree(&mut runner).expect("a case").current();
        changes.iter().for_each(|change| apply(&mut case, change));
        right += usize::from(PLAN.errors(&case).is_empty());
    }
    assert!((60..340).contains(&right), "{right} of 400 are right");
}
