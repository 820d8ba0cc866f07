//! Names, batches, constants and defaults become bindings by role, without a GPU.

use std::sync::LazyLock;

use qkvault_compile::PlanFacts;
use qkvault_cudnn::{CompileOptions, lower};
use qkvault_graph::expr::{Grad, TensorSpec, library, scalar, score, tensor};
use qkvault_graph::{Attention, BackwardOptions, CudnnVersion, Varlen, validate};

use super::*;
use crate::bind_error::BindError;
use crate::check::{ByRole, Needs, StopAtFirst, check_operands, faults};
use crate::common::{facts_of, h200};
use crate::driver::MemoryKind;
use crate::raw::launch::LaunchTable;

const BASE: u64 = 0x7f00_0000_0000;

/// A plan that was never compiled, of a description with everything that a launch may be given: lengths, a scalar and
/// a tensor with names, and slopes that the plan has itself.
struct Uncompiled {
    attention: Valid,
    facts: PlanFacts,
    table: LaunchTable,
    constants: Vec<BoundConstant>,
}

static PLAN: LazyLock<Uncompiled> = LazyLock::new(|| {
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
    Uncompiled { attention, facts, table, constants }
});

/// Arguments of a launch.
#[derive(Clone, Debug)]
struct GivenCase {
    operands: Vec<(SeenOperand<'static>, DeviceBuffer)>,
    batch: Vec<(Role, u64, u64)>,
    scalars: Vec<(Which<'static>, Number)>,
}

impl GivenCase {
    /// The operand that is given for a role.
    fn operand(&mut self, role: Role) -> &mut SeenOperand<'static> {
        let found = self.operands.iter_mut().find(|(seen, _)| seen.which == Which::Role(role));
        &mut found.expect("it is given").0
    }

    fn give(&mut self, which: Which<'static>, i: usize) {
        self.operands.push((seen(which), DeviceBuffer { address: address(i), bytes: 4096 }));
    }
}

fn address(i: usize) -> u64 {
    BASE + 0x1_0000 * i as u64
}

fn seen(which: Which<'static>) -> SeenOperand<'static> {
    SeenOperand { which, gradient: false, trusted: false, dtype: None, writable: true }
}

impl Uncompiled {
    fn matcher(&self) -> Matcher<'_> {
        let (tensors, scalars) = (self.table.tensors(), self.table.scalars());
        Matcher { tensors, scalars, attention: Some(&self.attention), constants: &self.constants }
    }

    /// Right arguments: lengths by a batch, the tensor and the scalar by name, slopes and scale left out.
    fn right(&self) -> GivenCase {
        let scalars = vec![(Which::Named("cap"), Number::F32(30.0))];
        let mut case = GivenCase { operands: Vec::new(), batch: Vec::new(), scalars };
        let bias = self.attention.tensor_role("bias").expect("it has one");
        for (i, binding) in self.table.tensors().iter().enumerate() {
            let (role, buffer) = (binding.role, DeviceBuffer { address: address(i), bytes: binding.bytes });
            if role.is_followed() {
                case.batch.push((role, buffer.address, buffer.bytes));
            } else if self.constants.iter().all(|constant| constant.role != role) {
                let which = if role == bias { Which::Named("bias") } else { Which::Role(role) };
                let typed = SeenOperand { dtype: Some(binding.dtype), writable: binding.output, ..seen(which) };
                case.operands.push((typed, buffer));
            }
        }
        case
    }

    /// The arguments by role, and all faults.
    fn matched(&self, matcher: Matcher<'_>, case: &GivenCase) -> (RawBindings, Vec<BindError>) {
        let GivenCase { operands, batch, scalars } = case;
        let needs = self.table.needs(&self.facts.bindings, 0);
        let mut matched = Matched::default();
        let (of, numbers) = (|| operands.iter().copied(), || scalars.iter().copied());
        let mut errors = faults(|all| matcher.bind(of(), batch, numbers(), &mut matched, all));
        let given = ByRole::new(&matched.bindings, 0, |_| MemoryKind::Unknown);
        errors.extend(faults(|all| check_operands(needs, &given, all)));
        // What a launch does before it asks for addresses: none of the faults here needs them.
        let (mut quick, stop) = (Matched::default(), &mut StopAtFirst);
        let refused = matcher.bind(of(), batch, numbers(), &mut quick, stop).is_break()
            || check_operands(needs, &ByRole::unplaced(&quick.bindings), stop).is_break();
        assert_eq!(refused, !errors.is_empty(), "{case:?}: {errors:?}");
        (matched.bindings, errors)
    }

    fn errors(&self, case: &GivenCase) -> Vec<BindError> {
        self.matched(self.matcher(), case).1
    }
}

#[test]
fn names_batches_constants_and_defaults_fill_a_launch() {
    let mut case = PLAN.right();
    let (bindings, errors) = PLAN.matched(PLAN.matcher(), &case);
    assert_eq!(errors, []);
    // Every buffer reaches the tensor of its role.
    for (i, tensor) in PLAN.table.tensors().iter().enumerate() {
        let own = PLAN.constants.iter().find(|constant| constant.role == tensor.role);
        let expected = own.map_or((address(i), tensor.bytes), |own| (own.address, own.bytes));
        assert_eq!(bindings.place(tensor.role), Some(expected), "{}", tensor.role);
    }
    let (scale, cap) = (Role::Scale, PLAN.attention.scalar_role("cap").expect("it has one"));
    let values = |bindings: &RawBindings| [scale, cap].map(|role| bindings.number(role));
    assert_eq!(values(&bindings), [Some(Number::F32(0.125)), Some(Number::F32(30.0))]);
    // A scale and slopes of the caller's own take the place of the usual ones.
    case.scalars.push((Which::Role(scale), Number::F32(0.5)));
    case.give(Which::Named(library::ALIBI_SLOPES), 45);
    let (bindings, errors) = PLAN.matched(PLAN.matcher(), &case);
    assert_eq!((values(&bindings), errors), ([Some(Number::F32(0.5)), Some(Number::F32(30.0))], vec![]));
    assert_eq!(bindings.place(PLAN.constants[0].role), Some((address(45), 4096)));
}

/// Each fault alone, so that no other one hides it.
#[test]
fn every_fault_of_a_name_a_source_or_a_number_is_told() {
    use BindError::{Duplicate, Extra, Internal, Missing, NoSuchName, NotATensor, NotWritable, Unchecked, WrongDType};
    type BindFault = (fn(&mut GivenCase), fn(&BindError) -> bool);
    let faults: [BindFault; 22] = [
        (
            |case| case.operands.retain(|(seen, _)| seen.which != Which::Role(Role::Q)),
            |e| matches!(e, Missing { role: Role::Q, scalar: false, .. }),
        ),
        (|case| case.operands.push(case.operands[0]), |e| matches!(e, Duplicate { role: Role::Q, times: 2 })),
        (|case| case.operand(Role::Q).which = Which::Role(Role::DQ), |e| matches!(e, Extra { role: Role::DQ, .. })),
        (|case| case.give(Which::Role(Role::DqAccum), 50), |e| matches!(e, Extra { role: Role::DqAccum, .. })),
        (|case| case.give(Which::Role(Role::Scale), 50), |e| matches!(e, Duplicate { role: Role::Scale, .. })),
        (
            |case| case.operand(Role::Q).which = Which::Named("alibi"),
            |e| matches!(e, NoSuchName { what: "tensor", .. }),
        ),
        (|case| case.operand(Role::Q).which = Which::Named(""), |e| matches!(e, NoSuchName { nearest: None, .. })),
        (
            |case| {
                case.operands
                    .push((SeenOperand { gradient: true, ..seen(Which::Named("bias")) }, DeviceBuffer::default()))
            },
            |e| matches!(e, NoSuchName { what: "tensor with a gradient", .. }),
        ),
        (|case| case.operand(Role::Q).dtype = Some(DType::F32), |e| matches!(e, WrongDType { role: Role::Q, .. })),
        (|case| case.operand(Role::O).writable = false, |e| matches!(e, NotWritable { role: Role::O })),
        (|case| case.batch.clear(), |e| matches!(e, Missing { role: Role::SeqLenQ, .. })),
        (|case| case.batch.push((Role::Q, address(60), 4096)), |e| matches!(e, Duplicate { role: Role::Q, .. })),
        (|case| case.batch.push((Role::DQ, address(60), 4096)), |e| matches!(e, Extra { role: Role::DQ, .. })),
        (|case| case.give(Which::Role(Role::SeqLenKv), 50), |e| matches!(e, Unchecked { role: Role::SeqLenKv })),
        (
            |case| {
                case.batch.retain(|(role, ..)| *role != Role::SeqLenKv);
                case.give(Which::Role(Role::SeqLenKv), 50);
            },
            |e| matches!(e, Unchecked { role: Role::SeqLenKv }),
        ),
        (
            |case| case.scalars.push((Which::Named("cup"), Number::F32(1.0))),
            |e| matches!(e, NoSuchName { what: "scalar", .. }),
        ),
        (
            |case| case.scalars.push((Which::Named("cap"), Number::F32(1.0))),
            |e| matches!(e, Duplicate { role: Role::Scalar(_), times: 2 }),
        ),
        (
            |case| case.scalars.push((Which::Role(Role::Scale), Number::I32(1))),
            |e| matches!(e, WrongDType { role: Role::Scale, needed: DType::F32, given: DType::I32 }),
        ),
        (
            |case| case.scalars.push((Which::Role(Role::Scalar(7)), Number::F32(1.0))),
            |e| matches!(e, Extra { role: Role::Scalar(7), .. }),
        ),
        (|case| case.scalars.clear(), |e| matches!(e, Missing { role: Role::Scalar(_), scalar: true, .. })),
        (
            |case| {
                case.scalars.clear();
                let cap = PLAN.attention.scalar_role("cap").expect("it has one");
                case.give(Which::Role(cap), 50);
            },
            |e| matches!(e, NotATensor { role: Role::Scalar(_), .. }),
        ),
        (
            |case| {
                case.operand(Role::Q).which = Which::Role(Role::DK);
                case.scalars.push((Which::Role(Role::Q), Number::F32(1.0)));
            },
            |e| matches!(e, BindError::NotANumber { role: Role::Q, .. }),
        ),
    ];
    for (at, (change, is_told)) in faults.into_iter().enumerate() {
        let mut case = PLAN.right();
        change(&mut case);
        let errors = PLAN.errors(&case);
        assert!(errors.iter().any(is_told), "fault {at}: {errors:?}");
        assert!(!errors.iter().any(|error| matches!(error, Internal { .. })), "fault {at}: {errors:?}");
    }
    let right: [fn(&mut GivenCase); 5] = [
        |case| case.scalars.push((Which::Role(Role::Scale), Number::F32(0.5))),
        |case| case.operand(Role::Q).dtype = None,
        |case| case.operand(Role::Q).trusted = true,
        |case| case.operand(Role::Q).writable = true,
        // Lengths of the caller's own, who promises that they lead nowhere else.
        |case| {
            case.batch.retain(|(role, ..)| *role != Role::SeqLenKv);
            case.give(Which::Role(Role::SeqLenKv), 50);
            case.operand(Role::SeqLenKv).trusted = true;
        },
    ];
    for (at, change) in right.into_iter().enumerate() {
        let mut case = PLAN.right();
        change(&mut case);
        assert_eq!(PLAN.errors(&case), [], "right {at}");
    }
    // A plan without constants of its own needs the slopes.
    let (_, errors) = PLAN.matched(Matcher { constants: &[], ..PLAN.matcher() }, &PLAN.right());
    let slopes = PLAN.constants[0].role;
    assert!(matches!(errors[..], [Missing { role, .. }] if role == slopes), "{errors:?}");
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
    let matched = |scalars: &[Binding], given: &[(Which<'static>, Number)]| {
        let matcher = Matcher { tensors: &[], scalars, attention: Some(&attention), constants: &[] };
        let needs = Needs { bindings: scalars, count: scalars.len(), origins: None, workspace: 0 };
        let (mut matched, stop) = (Matched::default(), &mut StopAtFirst);
        let named = matcher.bind(std::iter::empty(), &[], given.iter().copied(), &mut matched, stop);
        assert!(named.is_continue(), "the name is known");
        let right = check_operands(needs, &ByRole::unplaced(&matched.bindings), stop).is_continue();
        right.then(|| [roles[0], roles[1]].map(|role| matched.bindings.number(role)))
    };
    assert_eq!(matched(&both, &given), Some([Some(Number::F32(3.0)); 2]));
    for wrong in [[both[0], scalar(roles[1], DType::I32)], [scalar(roles[0], DType::I32), both[1]]] {
        assert!(matched(&wrong, &given).is_none());
    }
    let twice = [(Which::Role(roles[1]), Number::F32(1.0)), (Which::Named("limit"), Number::F32(3.0))];
    assert!(matched(&both, &twice).is_none());
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
    let matcher = Matcher { tensors: &[], scalars: &[], attention: Some(&backward), constants: &[] };
    let told = matcher.unknown(Which::Named("lerned"), true, false).to_string();
    assert!(told.contains("no tensor with a gradient 'lerned'") && told.contains("'learned'"), "{told}");
    let BindError::NoSuchName { names, .. } = matcher.unknown(Which::Named("fixed"), true, false) else {
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
    let bare = Matcher { attention: None, ..PLAN.matcher() };
    let told = bare.unknown(Which::Named("cap"), false, true).to_string();
    assert!(told.contains("without its description"), "{told}");
}

/// An append reads the lengths of the attention's batch, which has offsets too.
#[test]
fn a_plan_of_no_attention_takes_of_a_batch_what_it_reads() {
    let batch: Vec<(Role, u64, u64)> = [Varlen::Q, Varlen::NewK]
        .map(|of| (Role::Offsets(of), BASE, 64))
        .into_iter()
        .chain(PLAN.right().batch)
        .collect();
    let bound = |matcher: Matcher<'_>| {
        let mut matched = Matched::default();
        let faults = faults(|all| matcher.bind(std::iter::empty(), &batch, std::iter::empty(), &mut matched, all));
        assert_eq!(faults, []);
        matched.bindings.operands.iter().map(|operand| operand.role).collect::<Vec<_>>()
    };
    let lengths = [Role::SeqLenQ, Role::SeqLenKv];
    let tensors: Vec<Binding> =
        PLAN.table.tensors().iter().copied().filter(|tensor| lengths.contains(&tensor.role)).collect();
    let append = Matcher { tensors: &tensors, attention: None, constants: &[], ..PLAN.matcher() };
    assert_eq!(bound(append), lengths);
    // An attention is told what it does not read.
    let attention = Matcher { constants: &[], ..PLAN.matcher() };
    let bound = bound(attention);
    assert!(bound.contains(&Role::Offsets(Varlen::Q)) && !bound.contains(&Role::Offsets(Varlen::NewK)));
}
