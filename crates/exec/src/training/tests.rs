//! Training without a GPU: errors in pairs of plans are found before a launch.

use crate::codes::TRAINING_BACKWARD;
use qkvault_compile::PlanFacts;
use qkvault_cudnn::registry::codes;
use qkvault_graph::expr::{TensorSpec, constant, library, score, tensor};
use qkvault_graph::{Attention, BackwardOptions, Band, CudnnVersion, DType, Refusal, Role, validate};

use super::*;
use crate::bind_error::BindError;
use crate::bindings::{RawBindings, RoleNumbers};
use crate::check::tests::check_bindings;
use crate::common::{forward, h200, operand, scalar};
use crate::driver::MemoryKind;

fn attention() -> Attention {
    Attention::bshd(2, (8, 2), (256, 256), 64, DType::BF16).with_band(Band::CAUSAL)
}

fn refused(attention: &Attention) -> Refusal {
    Training::for_attention(attention, BackwardOptions::default()).expect_err("it cannot be trained")
}

/// A made-up forward with dropout's two numbers on the GPU.
fn facts() -> PlanFacts {
    let mut facts = forward(&h200(CudnnVersion::v9(19, 0)));
    facts.bindings.extend([Role::DropoutSeed, Role::DropoutOffset].map(|role| operand(role, DType::I64, false, 8)));
    facts
}

/// Its backward.
fn backward() -> PlanFacts {
    let mut facts = facts();
    facts.bindings.iter_mut().for_each(|b| b.output = false);
    let gradients = [Role::DQ, Role::DK, Role::DV].map(|role| operand(role, DType::BF16, true, 4096));
    facts.bindings.push(operand(Role::DO, DType::BF16, false, 4096));
    facts.bindings.extend(gradients);
    facts.bindings.push(operand(Role::DqAccum, DType::F32, true, 8192));
    facts
}

fn numbers() -> RawBindings {
    let scalars = RawBindings::new().scalar(Role::Scale, 0.125_f32).scalar(Role::Scalar(0), 50);
    scalars.scalar(Role::DropoutSeed, 42_i64).scalar(Role::DropoutOffset, 7_i64)
}

fn forward_of(facts: &PlanFacts, given: &mut RawBindings) -> Result<ForwardRun, TrainingError> {
    let mut numbers: RoleNumbers = given.scalars.iter().copied().collect();
    let run = forward_run(facts, given.operands.iter().map(|o| o.role), &mut numbers);
    given.scalars = numbers;
    run
}

fn completed(run: &ForwardRun, facts: &PlanFacts, given: &mut RawBindings) -> Result<(), TrainingError> {
    let mut numbers: RoleNumbers = given.scalars.iter().copied().collect();
    let done = run.complete(facts, given.operands.iter().map(|o| o.role), &mut numbers);
    given.scalars = numbers;
    done
}

#[test]
fn both_passes_follow_from_one_description() {
    let training = Training::for_attention(&attention(), BackwardOptions::default()).expect("both are sound");
    assert_eq!(training.forward().get(), &attention().with_stats());
    assert_eq!(training.backward().get(), &attention().with_stats().backward(BackwardOptions::default()));
}

#[test]
fn what_cannot_be_trained_is_refused_when_it_is_described() {
    let backward = attention().with_stats().backward(BackwardOptions::default());
    assert!(refused(&backward).has(&TRAINING_BACKWARD));
    let heads = Attention::bshd(2, (8, 3), (256, 256), 64, DType::BF16);
    assert!(refused(&heads).to_string().contains("heads"), "{}", refused(&heads));
    // A score without a derivative, and a bias that is only compared with.
    let nothing = attention().with_score_mod((score() * 0.0 + constant(1.0)).build_score_mod().expect("a score"));
    assert!(refused(&nothing).to_string().contains("score"), "{}", refused(&nothing));
    let bias = tensor("bias", TensorSpec::new(DType::F32, [1, 8, 1, 1]).with_grad());
    let compared =
        qkvault_graph::expr::select(&bias.gt(0.0), score(), score() * 2.0).build_score_mod().expect("a score");
    let refusal = refused(&attention().with_score_mod(compared));
    assert!(refusal.has(&codes::SCORE_MOD_DERIVATIVE) && refusal.to_string().contains("bias"), "{refusal}");
    // A bias with a gradient and a shape that does not broadcast.
    let odd = TensorSpec::new(DType::BF16, [1, 3, 256, 256]).with_grad();
    let odd = library::bias(score(), "bias", odd).build_score_mod().expect("a score");
    assert!(refused(&attention().with_score_mod(odd)).has(&codes::SCORE_MOD_BROADCAST));
    // A sink's gradient without a sink.
    let options = BackwardOptions { d_sink: true, ..BackwardOptions::default() };
    assert!(Training::for_attention(&attention(), options).expect_err("no sink").has(&codes::BACKWARD_SINK));
}

#[test]
fn a_backward_of_a_forward_without_stats_is_refused() {
    let bare = validate(attention().backward(BackwardOptions::default())).expect_err("no Stats");
    assert!(bare.has(&codes::BACKWARD_STATS));
    // Binding reports Stats as missing.
    let errors =
        check_bindings(&backward(), &RawBindings::new(), 0, &|_| MemoryKind::Device(0)).expect_err("nothing is bound");
    assert!(errors.iter().any(|e| matches!(e, BindError::Missing { role: Role::Stats, .. })), "{errors}");
}

#[test]
fn the_backward_takes_its_numbers_from_the_forward() {
    let mut given = numbers();
    let run = forward_of(&facts(), &mut given).expect("all numbers are there");
    assert_eq!(run.dropout(), Some((42, 7)));
    // Operands that the plan reads on the GPU are no scalars of the plan.
    assert_eq!(given, RawBindings::new().scalar(Role::Scale, 0.125_f32).scalar(Role::Scalar(0), 50));

    let mut nothing = RawBindings::new();
    completed(&run, &backward(), &mut nothing).expect("all is known");
    assert_eq!(nothing, given);
    let mut same = numbers();
    completed(&run, &backward(), &mut same).expect("the same numbers are no contradiction");
    assert_eq!(same, given);
}

#[test]
fn other_numbers_than_the_forwards_are_refused_and_named() {
    let run = forward_of(&facts(), &mut numbers()).expect("all numbers are there");
    let other = |mut given: RawBindings| completed(&run, &backward(), &mut given).expect_err("another number");
    let seed = other(RawBindings::new().scalar(Role::DropoutSeed, 43_i64));
    assert!(matches!(seed, TrainingError::OtherNumber { role: Role::DropoutSeed, .. }));
    assert!(seed.to_string().contains("43") && seed.to_string().contains("42") && seed.to_string().contains("mask"));
    let scale = other(RawBindings::new().scalar(Role::Scale, 0.25_f32));
    assert!(
        matches!(scale, TrainingError::OtherNumber { role: Role::Scale, .. }) && !scale.to_string().contains("mask")
    );
    // A scalar that the plan does not have stays, so that binding reports it.
    let mut unknown = RawBindings::new().scalar(Role::Scalar(9), 1.0_f32);
    completed(&run, &backward(), &mut unknown).expect("binding names it");
    let errors = check_bindings(&backward(), &unknown, 0, &|_| MemoryKind::Device(0)).expect_err("no such scalar");
    assert!(errors.iter().any(|e| matches!(e, BindError::Extra { role: Role::Scalar(9), .. })), "{errors}");
}

#[test]
fn a_backward_takes_the_origins_of_its_forward_and_refuses_others() {
    let scalars = [Role::QueryOrigin, Role::KeyOrigin].map(|role| scalar(role, DType::I32));
    let with = |mut facts: PlanFacts| {
        facts.bindings.extend(scalars);
        facts
    };
    let (forward, backward) = (with(facts()), with(backward()));
    let mut given = numbers().scalar(Role::QueryOrigin, 4096).scalar(Role::KeyOrigin, 0);
    let run = forward_of(&forward, &mut given).expect("all numbers are there");
    let mut nothing = RawBindings::new();
    completed(&run, &backward, &mut nothing).expect("all is known");
    assert_eq!(nothing, given);
    let mut other = RawBindings::new().scalar(Role::QueryOrigin, 0);
    let error = completed(&run, &backward, &mut other).expect_err("another chunk");
    assert!(matches!(error, TrainingError::OtherNumber { role: Role::QueryOrigin, .. }), "{error}");
}

#[test]
fn dropout_without_its_numbers_and_operands_that_the_pair_keeps_are_refused() {
    let run = |mut given: RawBindings| forward_of(&facts(), &mut given).expect_err("something is wrong");
    assert_eq!(run(RawBindings::new()), TrainingError::MissingNumber { role: Role::DropoutSeed });
    let no_offset = RawBindings::new().scalar(Role::DropoutSeed, 1_i64);
    assert_eq!(run(no_offset), TrainingError::MissingNumber { role: Role::DropoutOffset });
    let float = run(RawBindings::new().scalar(Role::DropoutSeed, 1.5_f32));
    assert!(matches!(float, TrainingError::NotAnInteger { role: Role::DropoutSeed, .. }), "{float}");
    for role in [Role::Stats, Role::DropoutSeed] {
        assert_eq!(run(numbers().tensor(role, 0x1000, 256)), TrainingError::SavedRole { role });
    }
    // A forward without dropout leaves seed and offset in the bindings, so that binding reports them.
    let plain = forward(&h200(CudnnVersion::v9(19, 0)));
    let mut given = numbers();
    assert_eq!(forward_of(&plain, &mut given).expect("no dropout").dropout(), None);
    assert_eq!(given, numbers());
    assert_eq!(scalar(Role::Scale, DType::F32).bytes, 4);
}

#[test]
fn operands_that_changed_are_named() {
    let fingerprint = |o: &[u8]| {
        let mut fingerprints = Fingerprints::new();
        fingerprints.add(Role::Q, b"queries");
        fingerprints.add(Role::O, o);
        fingerprints
    };
    let run = forward_of(&facts(), &mut numbers()).expect("all numbers are there");
    assert_eq!(run.check(&fingerprint(b"other")), Ok(()), "without fingerprints nothing is known");
    let run = run.with_fingerprints(fingerprint(b"output"));
    assert_eq!(run.check(&fingerprint(b"output")), Ok(()));
    assert_eq!(run.check(&fingerprint(b"other")), Err(TrainingError::Changed { roles: vec![Role::O] }));
    // An operand that only the backward has did not change.
    let mut more = fingerprint(b"output");
    more.add(Role::DO, b"gradient");
    assert_eq!(run.check(&more), Ok(()));
}
