//! Binding reports every error, with the name of its role, and all errors at once.

use proptest::prelude::*;
use qkvault_compile::PlanFacts;
use qkvault_cudnn::{CompileOptions, lower};
use qkvault_graph::{Attention, CudnnVersion, DType, Role, Tensor, validate};

use super::*;
use crate::bind_error::BindErrors;
use crate::bindings::{Number, RawBindings};
use crate::common::{facts_of, forward, h200, operand};
use crate::raw::RawArgs;
use crate::raw::launch::LaunchTable;

const GPU: i32 = 0;
/// The address of the first operand; the others follow it.
const BASE: u64 = 0x7f00_0000_0000;

fn facts() -> PlanFacts {
    forward(&h200(CudnnVersion::v9(27, 0)))
}

fn address(i: u64) -> u64 {
    BASE + i * 0x1_0000
}

/// Bindings without errors, except for the missing roles in `but`.
fn good_but(but: &[Role]) -> RawBindings {
    let mut bindings = RawBindings::new();
    for (i, b) in facts().bindings.iter().enumerate().filter(|(_, b)| !but.contains(&b.role)) {
        bindings = match (b.scalar, b.dtype) {
            (false, _) => bindings.tensor(b.role, address(i as u64), b.bytes),
            (true, DType::I32) => bindings.scalar(b.role, -3),
            (true, _) => bindings.scalar(b.role, 0.125_f32),
        };
    }
    bindings
}

fn device(_: u64) -> MemoryKind {
    MemoryKind::Device(GPU)
}

/// What the check finds in bindings to a plan that needs no workspace.
pub(crate) fn check_bindings(
    facts: &PlanFacts,
    bindings: &RawBindings,
    ordinal: i32,
    memory: &dyn Fn(u64) -> MemoryKind,
) -> Result<(), BindErrors> {
    check_launch(facts, &ByRole::new(bindings, ordinal, memory), 0, DeviceBuffer::default())
}

/// What the check finds. A launch refuses exactly what a binding refuses.
fn check_launch(
    facts: &PlanFacts,
    given: &impl Supplied,
    workspace: u64,
    buffer: DeviceBuffer,
) -> Result<(), BindErrors> {
    let table = LaunchTable::new(facts, &facts.scratch());
    let needs = table.needs(&facts.bindings, workspace);
    let errors = faults(|all| check(needs, given, buffer, all));
    assert_eq!(check(needs, given, buffer, &mut StopAtFirst).is_break(), !errors.is_empty(), "{errors:?}");
    BindErrors::check(facts, errors)
}

/// What the check finds in the same operands and numbers in the plan's order, of which every one is given.
fn errors_in_order(bindings: &RawBindings) -> Vec<BindError> {
    let facts = facts();
    let table = LaunchTable::new(&facts, &facts.scratch());
    let tensors: Vec<DeviceBuffer> = table.tensors().iter().map(|tensor| bindings.buffer(tensor.role)).collect();
    let scalars: Vec<Number> = table.scalars().iter().filter_map(|scalar| bindings.number(scalar.role)).collect();
    let interleaved = &bindings.interleaved[..];
    let args = RawArgs { tensors: &tensors, scalars: &scalars, workspace: DeviceBuffer::default(), interleaved };
    let given = ByPlace { tensors: table.tensors(), scalars: table.scalars(), args };
    check_launch(&facts, &given, 0, args.workspace).map_or_else(BindErrors::into_vec, |()| Vec::new())
}

/// What the check finds before addresses are known.
fn errors_without_addresses(bindings: &RawBindings) -> Vec<BindError> {
    let facts = facts();
    let table = LaunchTable::new(&facts, &facts.scratch());
    let needs = table.needs(&facts.bindings, 0);
    faults(|all| check_operands(needs, &ByRole::unplaced(bindings), all))
}

fn errors_on(bindings: &RawBindings, memory: &dyn Fn(u64) -> MemoryKind) -> Vec<BindError> {
    let errors = check_bindings(&facts(), bindings, GPU, memory).map_or_else(|e| e.into_vec(), |()| Vec::new());
    for error in &errors {
        assert!(!error.to_string().is_empty());
    }
    errors
}

fn errors(bindings: &RawBindings) -> Vec<BindError> {
    errors_on(bindings, &device)
}

/// The good bindings with one operand's address, bytes or type changed.
fn with(role: Role, change: impl FnOnce(&mut RawOperand)) -> RawBindings {
    let at = facts().bindings.iter().position(|b| b.role == role).expect("the plan has it") as u64;
    let mut operand = RawOperand { role, address: address(at), bytes: 4096, dtype: None, writable: true };
    change(&mut operand);
    good_but(&[role]).operand(operand)
}

#[test]
fn what_is_right_is_taken() {
    assert_eq!(errors(&good_but(&[])), []);
    // More memory than the plan needs, managed memory, and memory of an unknown kind are no errors.
    assert_eq!(errors(&with(Role::Q, |q| q.bytes = 5000)), []);
    for kind in [MemoryKind::Managed, MemoryKind::Unknown] {
        assert_eq!(errors_on(&good_but(&[]), &|_| kind), []);
    }
}

#[test]
fn missing_extra_and_duplicate_roles_are_named() {
    let missing = errors(&good_but(&[Role::K, Role::Scale]));
    assert_eq!(
        missing,
        [
            BindError::Missing { role: Role::K, scalar: false, dtype: DType::BF16, bytes: 4096 },
            BindError::Missing { role: Role::Scale, scalar: true, dtype: DType::F32, bytes: 4 },
        ]
    );
    assert!(missing[0].to_string().contains("K is missing") && missing[1].to_string().contains("`scalar`"));

    let extra = errors(&good_but(&[]).tensor(Role::DQ, address(20), 64).scalar(Role::Scalar(9), 1.0_f32));
    let [BindError::Extra { role: Role::DQ, plan_has }, BindError::Extra { role: Role::Scalar(9), .. }] = &extra[..]
    else {
        panic!("{extra:?}")
    };
    assert!(plan_has.contains(&Role::Stats) && extra[0].to_string().contains("Stats"));
    // Each extra role is reported once, in the order of roles.
    let more = good_but(&[]).tensor(Role::DV, address(22), 64).tensor(Role::DQ, address(20), 64);
    let extra = errors(&more.tensor(Role::DQ, address(21), 64));
    let roles: Vec<Role> = extra
        .iter()
        .filter_map(|e| match e {
            BindError::Extra { role, .. } => Some(*role),
            _ => None,
        })
        .collect();
    assert_eq!((roles, extra.len()), (vec![Role::DQ, Role::DV], 2));

    let twice = good_but(&[]).tensor(Role::Q, address(21), 4096).scalar(Role::Scale, 2.0_f32);
    assert_eq!(
        errors(&twice),
        [BindError::Duplicate { role: Role::Q, times: 2 }, BindError::Duplicate { role: Role::Scale, times: 2 }]
    );
}

#[test]
fn the_order_of_binding_means_nothing() {
    let mut reversed = RawBindings::new().scalar(Role::Scalar(0), 1).scalar(Role::Scale, 1.0_f32);
    for (i, b) in facts().bindings.iter().enumerate().filter(|(_, b)| !b.scalar).rev() {
        reversed = reversed.tensor(b.role, address(i as u64), b.bytes);
    }
    assert_eq!(errors(&reversed), []);
}

#[test]
fn a_buffer_of_the_workspace_is_not_the_callers_to_bind() {
    let mut facts = facts();
    facts.bindings.push(operand(Role::DqAccum, DType::F32, true, 512));
    let check = |bindings| check_bindings(&facts, &bindings, GPU, &device).map_err(|e| e.into_vec());
    assert_eq!(check(good_but(&[])), Ok(()));
    assert_eq!(
        check(good_but(&[]).tensor(Role::DqAccum, address(20), 512)),
        Err(vec![BindError::Internal { role: Role::DqAccum }])
    );
}

/// One fault of each kind alone. Those of roles, types and who may write are seen without addresses; those of numbers
/// and of places also in arguments in the plan's order.
#[test]
fn each_fault_is_told_in_every_form_that_has_it() {
    let (end, q) = (u64::MAX - 15, (address(0), address(0) + 4096));
    let other = Some(DType::F16);
    let scale = |value: Number| good_but(&[Role::Scale]).scalar(Role::Scale, value);
    let dtype = |role, needed, given| BindError::WrongDType { role, needed, given };
    let missing = BindError::Missing { role: Role::K, scalar: false, dtype: DType::BF16, bytes: 4096 };
    let number = BindError::NotANumber { role: Role::V, dtype: DType::BF16, bytes: 4096 };
    let overlap = BindError::Overlap { role: Role::O, other: Role::Q, at: q, other_at: q };
    let (sees_roles, sees_places, sees_both) = ((true, false), (false, true), (true, true));
    for ((roles, places), bindings, fault) in [
        (sees_roles, good_but(&[Role::K]), missing),
        (sees_roles, good_but(&[Role::V]).scalar(Role::V, 1.0_f32), number),
        (
            sees_roles,
            good_but(&[Role::Scale]).tensor(Role::Scale, address(20), 4),
            BindError::NotATensor { role: Role::Scale, dtype: DType::F32 },
        ),
        (sees_roles, with(Role::Q, |q| q.dtype = other), dtype(Role::Q, DType::BF16, DType::F16)),
        (sees_roles, with(Role::O, |o| o.writable = false), BindError::NotWritable { role: Role::O }),
        (sees_both, scale(Number::I32(1)), dtype(Role::Scale, DType::F32, DType::I32)),
        (sees_both, scale(Number::I64(1)), dtype(Role::Scale, DType::F32, DType::I64)),
        (
            sees_places,
            with(Role::Q, |q| q.bytes = 4095),
            BindError::TooSmall { role: Role::Q, needed: 4096, given: 4095 },
        ),
        (sees_places, with(Role::V, |v| v.address = 0), BindError::Null { role: Role::V }),
        (
            sees_places,
            with(Role::V, |v| v.address = end),
            BindError::OutOfRange { role: Role::V, address: end, bytes: 4096 },
        ),
        (
            sees_places,
            with(Role::K, |k| k.address += 8),
            BindError::Misaligned { role: Role::K, address: address(1) + 8, needed: 16 },
        ),
        (sees_places, with(Role::O, |o| o.address = q.0), overlap),
    ] {
        let seen = |sees: bool| if sees { vec![fault.clone()] } else { Vec::new() };
        assert_eq!(errors(&bindings), seen(true));
        assert_eq!(errors_without_addresses(&bindings), seen(roles));
        if places {
            assert_eq!(errors_in_order(&bindings), seen(places));
        }
    }
    assert_eq!((errors_in_order(&good_but(&[])), errors_without_addresses(&good_but(&[]))), (vec![], vec![]));
}

#[test]
fn each_operand_off_by_two_bytes_is_misaligned() {
    for (i, b) in facts().bindings.iter().enumerate().filter(|(_, b)| !b.scalar) {
        let off = address(i as u64) + 2;
        assert_eq!(
            errors(&with(b.role, |o| o.address = off)),
            [BindError::Misaligned { role: b.role, address: off, needed: 16 }]
        );
    }
}

#[test]
fn memory_that_is_not_this_gpus_is_refused() {
    let k = address(1);
    let at_k = |kind| move |address| if address == k { kind } else { MemoryKind::Device(GPU) };
    for found in [MemoryKind::PinnedHost, MemoryKind::Unregistered] {
        assert_eq!(
            errors_on(&good_but(&[]), &at_k(found)),
            [BindError::NotDevice { role: Role::K, address: k, found }]
        );
    }
    assert_eq!(
        errors_on(&good_but(&[]), &at_k(MemoryKind::Device(3))),
        [BindError::OtherDevice { role: Role::K, found: 3, needed: GPU }]
    );
}

#[test]
fn an_output_needs_memory_of_its_own_that_may_be_written() {
    // An input may be writable or not.
    for writable in [true, false] {
        assert_eq!(errors(&with(Role::K, |k| k.writable = writable)), []);
    }

    // Two outputs overlap in the plan's bytes (256 of Stats), not in the caller's 4096.
    let inside = with(Role::Stats, |s| s.address = address(3) + 4096 - 16);
    assert!(matches!(errors(&inside)[..], [BindError::Overlap { role: Role::O, other: Role::Stats, .. }]));
    assert_eq!(errors(&with(Role::Stats, |s| s.address = address(4) - 256)), []);
    // Inputs may share: K and V of a latent cache do.
    assert_eq!(errors(&with(Role::V, |v| v.address = address(1))), []);
    // An input at the address of an output, bound after it: the error names the output first.
    assert!(matches!(
        errors(&with(Role::Q, |q| q.address = address(3)))[..],
        [BindError::Overlap { role: Role::O, other: Role::Q, .. }]
    ));
    // `interleaved` accepts either order and allows no other pair.
    let again = || with(Role::Stats, |s| s.address = address(3) + 4096 - 16);
    assert_eq!(errors(&inside.interleaved(Role::Stats, Role::O)), []);
    assert_eq!(errors(&again().interleaved(Role::O, Role::Stats)), []);
    assert_eq!(errors(&again().interleaved(Role::O, Role::Q)).len(), 1);
}

/// Overlaps are found in the bytes that the plan needs: 256 bytes of Stats, although the caller's buffer is longer and
/// O lies behind them.
#[test]
fn an_operand_reaches_over_its_own_bytes_of_the_plan() {
    assert_eq!(errors(&with(Role::Stats, |s| s.address = address(3) - 256)), []);
    assert_eq!(errors(&with(Role::Stats, |s| s.address = address(3) - 240)).len(), 1);
    // Address 0 has no range, and an output that is bound twice has an error of its own.
    let nowhere = good_but(&[Role::V, Role::O]).tensor(Role::V, 0, 4096).tensor(Role::O, 0, 4096);
    assert_eq!(errors(&nowhere), [BindError::Null { role: Role::V }, BindError::Null { role: Role::O }]);
    let twice = good_but(&[]).tensor(Role::O, address(3), 4096);
    assert_eq!(errors(&twice), [BindError::Duplicate { role: Role::O, times: 2 }]);
}

/// A plan without an alignment needs none.
#[test]
fn an_operand_without_an_alignment_may_lie_anywhere() {
    let mut facts = facts();
    let q = facts.bindings.iter_mut().find(|b| b.role == Role::Q).expect("the plan has it");
    q.alignment = 0;
    let off = with(Role::Q, |q| q.address += 1);
    assert!(check_bindings(&facts, &off, GPU, &device).is_ok());
}

#[test]
fn what_is_too_small_is_not_also_said_to_overlap_what_lies_behind_it() {
    // V ends where O begins and is 16 bytes short: a launch would write into O.
    let short = with(Role::V, |v| (v.address, v.bytes) = (address(3) - 4080, 4080));
    assert_eq!(errors(&short), [BindError::TooSmall { role: Role::V, needed: 4096, given: 4080 }]);
}

#[test]
fn everything_wrong_is_told_at_once() {
    let bindings = good_but(&[Role::V, Role::O]).tensor(Role::O, address(0) + 1, 10).tensor(Role::DK, 16, 16);
    let errors = check_bindings(&facts(), &bindings, GPU, &device).expect_err("much is wrong");
    assert_eq!(errors.len(), 5, "{errors}");
    let text = errors.to_string();
    for part in ["V is missing", "O has 10 bytes", "multiple of 16", "dK was bound", "overlaps Q", &facts().what] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn the_workspace_is_checked_before_a_launch() {
    let (facts, bindings) = (facts(), good_but(&[]));
    let check_of = |bindings: &RawBindings, needed, address, bytes| {
        let buffer = DeviceBuffer { address, bytes };
        let found = check_launch(&facts, &ByRole::new(bindings, GPU, device), needed, buffer);
        found.map_err(BindErrors::into_vec)
    };
    let check = |needed, address, given| check_of(&bindings, needed, address, given);
    let far = address(30);
    assert_eq!(check(1024, far, 1024), Ok(()));
    assert_eq!(check(0, 0, 0), Ok(()));
    for (address, given) in [(far, 1023), (0, 1024), (far + 16, 1024)] {
        assert_eq!(check(1024, address, given), Err(vec![BindError::Workspace { address, given, needed: 1024 }]));
    }
    let over_v = address(2) + 2048;
    assert!(over_v.is_multiple_of(SCRATCH_ALIGNMENT));
    assert_eq!(check(1024, over_v, 1024), Err(vec![BindError::WorkspaceOverlap { role: Role::V }]));
    // One that begins before V and ends in it.
    assert_eq!(check(1024, address(2) - 512, 1024), Err(vec![BindError::WorkspaceOverlap { role: Role::V }]));
    assert_eq!(check(512, address(2) - 512, 512), Ok(()));
    assert_eq!(check(1, 0, 0).map_err(|e| e.len()), Err(1));
    // One that is not needed may lie anywhere, and while an operand is wrong it is not looked at.
    assert_eq!(check(0, over_v, 256), Ok(()));
    let nowhere = good_but(&[Role::V]).tensor(Role::V, 0, 4096);
    assert_eq!(check_of(&nowhere, 1024, 0, 0), Err(vec![BindError::Null { role: Role::V }]));
}

proptest! {
    /// Operands in any order, with any gaps that keep their alignment, have no errors; any one of them at the address
    /// of an output has one.
    #[test]
    fn ranges_overlap_exactly_when_they_share_an_address(
        order in Just(vec![0_usize, 1, 2, 3, 4]).prop_shuffle(),
        gaps in proptest::collection::vec(0_u64..5, 5),
        moved in 0_usize..5,
        by in 0_u64..64,
    ) {
        let facts = facts();
        let mut at = BASE;
        let mut places = [0_u64; 5];
        for (&i, gap) in order.iter().zip(&gaps) {
            at += gap * 16;
            places[i] = at;
            at += facts.bindings[i].bytes;
        }
        let bind = |places: &[u64; 5]| {
            let scalars = RawBindings::new().scalar(Role::Scale, 1.0_f32).scalar(Role::Scalar(0), 0);
            facts.bindings.iter().zip(places).fold(scalars, |all, (b, &at)| all.tensor(b.role, at, b.bytes))
        };
        prop_assert_eq!(check_bindings(&facts, &bind(&places), GPU, &device), Ok(()));

        let output = if moved == 3 { 4 } else { 3 };
        let bytes = facts.bindings[output].bytes;
        places[moved] = places[output] + by * 16 % bytes;
        let refused = check_bindings(&facts, &bind(&places), GPU, &device);
        let names = |e: &BindError| matches!(e, BindError::Overlap { role, other, .. }
            if [*role, *other].contains(&facts.bindings[moved].role));
        prop_assert!(refused.is_err_and(|errors| errors.iter().any(names)));
    }
}

#[test]
fn a_misaligned_pool_and_one_that_is_too_small_are_named() {
    let q = Tensor::bshd(3, 4, 1, 64, DType::BF16);
    let kv = Tensor::paged_nhd(3, 2, 256, 64, 9, 64, DType::BF16);
    let a = validate(Attention::forward(q, kv, kv, q).with_lengths()).expect("sound");
    let target = h200(CudnnVersion::v9(27, 0));
    let graph = lower(&a, &target, &CompileOptions::default()).expect("lowers");
    let mut facts = facts_of(&graph, &target);
    let pool = kv.bytes().expect("it can be counted").unsigned_abs();
    for binding in facts.bindings.iter_mut().filter(|b| matches!(b.role, Role::K | Role::V)) {
        binding.bytes = pool;
    }
    let mut bindings = RawBindings::new().scalar(Role::Scale, 0.125_f32);
    for (i, binding) in facts.bindings.iter().enumerate().filter(|(_, b)| !b.scalar) {
        let at = 0x7f00_0000_0000 + 0x100_0000 * i as u64;
        bindings = match binding.role {
            Role::K => bindings.tensor(Role::K, at + 2, pool),
            Role::V => bindings.tensor(Role::V, at, pool - 1),
            role => bindings.tensor(role, at, binding.bytes),
        };
    }
    let wrong = check_bindings(&facts, &bindings, 0, &|_| MemoryKind::Device(0)).expect_err("two are wrong");
    assert!(matches!(
        wrong[..],
        [BindError::Misaligned { role: Role::K, needed: 16, .. }, BindError::TooSmall { role: Role::V, .. }]
    ));
}

/// Other buffers may be larger than their operand; of block scales that is another type or layout.
#[test]
fn block_scales_have_exactly_their_bytes() {
    let mut facts = facts();
    let role = Role::Descale(qkvault_graph::Scaled::Q);
    facts.bindings.push(operand(role, DType::E8M0, false, 512));
    let check = |bytes: u64| {
        let bindings = good_but(&[]).tensor(role, address(30), bytes);
        check_bindings(&facts, &bindings, GPU, &device).map_or_else(|e| e.into_vec(), |()| Vec::new())
    };
    assert_eq!(check(512), []);
    let (larger, smaller) = (check(2048), check(400));
    assert_eq!(larger, [BindError::BlockScaleBytes { role, needed: 512, given: 2048 }]);
    assert_eq!(smaller, [BindError::TooSmall { role, needed: 512, given: 400 }]);
    assert!([&larger[0], &smaller[0]].iter().all(|error| error.to_string().contains("F8_128x4")), "{larger:?}");
}
