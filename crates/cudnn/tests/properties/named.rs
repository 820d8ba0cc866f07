//! Operands by name, and the operand list without a plan: they equal what an op graph binds.

use std::collections::BTreeSet;

use proptest::prelude::*;
use qkvault_cudnn::{CompileOptions, Form, LabOptions, Profile, Target, WIDE_OFFSETS, lower};
use qkvault_graph::Binding;
use qkvault_graph::arbitrary::{self, Space, renamed};
use qkvault_graph::expr::{Expr, PointContext, TensorSpec, Value, int_scalar, key, query, scalar, score, tensor};
use qkvault_graph::{
    Attention, BackwardOptions, CudnnVersion, DType, LibrarySet, NamedScalar, NamedTensor, ReadBy, Role, Valid, text,
    validate,
};

fn target(cudnn: CudnnVersion) -> Target {
    Profile::named("h200").expect("built in").target(cudnn, LibrarySet::Slim)
}

fn base() -> Attention {
    Attention::bshd(2, (4, 2), (64, 96), 32, DType::BF16)
}

fn with_score(e: Expr) -> Valid {
    validate(base().with_score_mod(e.build_score_mod().expect("a score"))).expect("sound")
}

/// What a plan binds, but for buffers that the launcher provides.
fn bound(valid: &Valid, target: &Target, form: Form) -> Option<Vec<Binding>> {
    let options = CompileOptions { lab: LabOptions::form(form), ..CompileOptions::default() };
    let graph = lower(valid, target, &options).ok()?;
    Some(graph.bindings(Some(valid)).into_iter().filter(|b| !b.role.is_internal()).collect())
}

fn lists_agree(valid: &Valid) -> Result<bool, TestCaseError> {
    let mut lowered = false;
    for cudnn in [CudnnVersion::v9(19, 0), CudnnVersion::v9(27, 0)] {
        for form in [Form::Expanded, Form::Fused] {
            let Some(bound) = bound(valid, &target(cudnn), form) else { continue };
            let facts = valid.operand_facts();
            let listed: Vec<Binding> = facts
                .iter()
                .map(|o| Binding {
                    role: o.role,
                    dtype: o.dtype,
                    scalar: o.scalar,
                    output: o.output,
                    bytes: o.bytes,
                    alignment: o.alignment,
                })
                .collect();
            prop_assert_eq!(&listed, &bound, "{} {:?}", text::print(valid), form);
            lowered = true;
        }
    }
    Ok(lowered)
}

#[test]
fn the_operand_list_without_a_plan_is_what_every_plan_binds() {
    let lowered = std::cell::Cell::new(0_u32);
    let config = ProptestConfig::with_cases(800);
    let spaces = prop_oneof![arbitrary::attention(Space::SMALL), arbitrary::attention(Space::WIDE)];
    proptest::test_runner::TestRunner::new(config)
        .run(&spaces, |a| {
            let valid = validate(a).expect("sound");
            lowered.set(lowered.get() + u32::from(lists_agree(&valid)?));
            Ok(())
        })
        .expect("the lists agree");
    assert!(lowered.get() > 200, "{} of 800 are lowered: the others show nothing", lowered.get());
}

/// Each kind by name, whatever the random ones drew.
#[test]
fn lists_of_serving_and_training_agree_with_their_plans() {
    for given in [
        "q: bf16 [4,8,1,64]\nk: [4,2,4096,64] paged 1024 x 16\nmask: causal\nlengths: per-sequence",
        "q: f16 [4,8,64,64] varlen tokens 99\nk: [4,2,96,64] varlen tokens 120\nlengths: per-sequence\noutputs: stats",
        "pass: backward\nq: f16 [2,4,128,64]\nsink: yes",
        "pass: backward\nq: f16 [2,4,128,64]\nsink: yes\nd_sink: yes",
        "q: f16 [2,4,64,64]\ndropout: philox 0.25",
        "pass: backward\nq: f16 [2,4,64,64]\ndropout: mask 0.25",
        "q: f16 [1,1,64,64]\nk: f16 [1,1,63,64]\nscore_mod: tensor @bias: f16[1,1,1,63]; score + @bias",
    ] {
        let valid = validate(text::parse(given).expect("an attention")).expect("sound");
        assert!(lists_agree(&valid).expect("the lists agree"), "not lowered: {given}");
    }
}

#[test]
fn offsets_alone_differ_by_version() {
    let given = "q: f16 [2,4,64,64] varlen tokens 99\nk: [2,4,64,64] varlen tokens 99\nlengths: per-sequence";
    let valid = validate(text::parse(given).expect("an attention")).expect("sound");
    let old = bound(&valid, &target(CudnnVersion::v9(5, 9)), Form::Auto).expect("lowers");
    let new = bound(&valid, &target(WIDE_OFFSETS), Form::Auto).expect("lowers");
    for (old, new) in old.iter().zip(&new) {
        match new.role {
            Role::Offsets(_) => assert_eq!((2 * old.bytes, old.dtype), (new.bytes, DType::I32)),
            _ => assert_eq!(old, new),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn named_operands_are_those_of_the_plan_in_the_order_of_their_roles(a in arbitrary::attention(Space::SMALL)) {
        let valid = validate(a.clone()).expect("sound");
        let scalars: Vec<NamedScalar<'_>> = valid.scalars().collect();
        let tensors: Vec<NamedTensor<'_>> = valid.score_tensors().collect();
        prop_assert!(scalars.iter().map(|s| s.role).is_sorted() && tensors.iter().map(|t| t.role).is_sorted());
        for cudnn in [CudnnVersion::v9(19, 0), CudnnVersion::v9(27, 0)] {
            let Some(bound) = bound(&valid, &target(cudnn), Form::Auto) else { continue };
            let kind = |of: fn(Role) -> bool| -> Vec<(Role, DType)> {
                bound.iter().filter(|b| of(b.role)).map(|b| (b.role, b.dtype)).collect()
            };
            let listed: Vec<(Role, DType)> = scalars.iter().map(|s| (s.role, s.dtype)).collect();
            prop_assert_eq!(listed, kind(|role| matches!(role, Role::Scalar(_))));
            let listed: Vec<(Role, DType)> = tensors.iter().map(|t| (t.role, t.dtype)).collect();
            prop_assert_eq!(listed, kind(|role| matches!(role, Role::ScoreTensor(_))));
            let gradients: Vec<(Role, DType)> = tensors.iter().filter_map(|t| Some((t.gradient?, t.dtype))).collect();
            prop_assert_eq!(gradients, kind(|role| matches!(role, Role::DScoreTensor(_))));
        }
        for s in &scalars {
            prop_assert!(valid.scalar_roles(s.name).any(|role| role == s.role));
        }
        for t in &tensors {
            prop_assert!(valid.tensor_roles(t.name).any(|role| role == t.role));
            prop_assert_eq!(valid.tensor_role(t.name).is_some(), true);
        }
        // Other names, the same roles.
        let other = validate(renamed(&a)).expect("sound");
        let roles = |valid: &Valid| -> Vec<(Role, DType, ReadBy)> {
            valid.scalars().map(|s| (s.role, s.dtype, s.read_by)).collect()
        };
        prop_assert_eq!(roles(&valid), roles(&other));
    }

    /// Two scalars of one type, bound by number in the order in which they were written, gave wrong numbers without an
    /// error.
    #[test]
    fn p23_two_scalars_given_in_the_wrong_order_are_told_apart_by_name(
        first in -4.0_f32..4.0, second in -4.0_f32..4.0, x in -4.0_f64..4.0, swapped in any::<bool>(),
    ) {
        // "gain" and "shift", first used in either order, with names whose alphabetical order does not help.
        let (gain, shift) = if swapped { ("a", "b") } else { ("b", "a") };
        for e in [
            scalar(shift) + score() * scalar(gain),
            score() * scalar(gain) + scalar(shift),
            (score() * scalar(gain)).tanh() - scalar(shift),
        ] {
            let valid = with_score(e.clone());
            let built = valid.score_mod.clone().expect("it modifies scores");
            let mut values = [Value::Float(f64::NAN); 2];
            for (name, value) in [(gain, first), (shift, second)] {
                let Some(Role::Scalar(n)) = valid.scalar_role(name) else { panic!("{name} has no role") };
                values[usize::from(n)] = Value::Float(f64::from(value));
            }
            let context = PointContext { score: x, scalars: &values, ..PointContext::default() };
            let (gain, shift) = (f64::from(first), f64::from(second));
            let expected = if built.to_string().contains("tanh") { (x * gain).tanh() - shift } else { x * gain + shift };
            let found = built.eval(&context).expect("all is there").float().expect("a float");
            prop_assert!((found - expected).abs() < 1e-9, "{} for {}", found, expected);
        }
    }
}

#[test]
fn a_name_that_modification_and_mask_share_stands_for_both() {
    let modified = base().with_score_mod((score() + scalar("x")).build_score_mod().expect("a score"));
    let masked = key().lt(query() + int_scalar("x")).build_mask_mod().expect("a predicate");
    let valid = validate(modified.with_mask_mod(masked)).expect("sound");
    let all: Vec<_> = valid.scalars().map(|s| (s.role, s.dtype, s.read_by)).collect();
    assert_eq!(all, [(Role::Scalar(0), DType::F32, ReadBy::ScoreMod), (Role::Scalar(1), DType::I32, ReadBy::MaskMod)]);
    assert_eq!(valid.scalar_role("x"), Some(Role::Scalar(0)));
    assert_eq!(valid.scalar_roles("x").collect::<Vec<_>>(), [Role::Scalar(0), Role::Scalar(1)]);
}

#[test]
fn names_are_found_by_kind_and_unknown_ones_get_a_suggestion() {
    let bias = tensor("bias", TensorSpec::new(DType::F32, [1, 4, 64, 96]).with_grad());
    let forward = base().with_stats().with_score_mod((score() * scalar("gain") + bias).build_score_mod().expect("one"));
    let backward = validate(forward.clone().backward(BackwardOptions::default())).expect("sound");
    let forward = validate(forward).expect("sound");
    assert_eq!((forward.tensor_role("bias"), forward.gradient_role("bias")), (Some(Role::ScoreTensor(0)), None));
    assert_eq!(backward.gradient_role("bias"), Some(Role::DScoreTensor(0)));
    assert_eq!((forward.tensor_role("gain"), forward.scalar_role("bias")), (None, None));
    assert_eq!(forward.nearest_name("gian"), Some("gain"));
    assert_eq!(forward.nearest_name("Bais"), Some("bias"));
    assert_eq!(forward.nearest_name("temperature"), None);
    let facts = backward.operand_facts();
    let named: BTreeSet<(Role, &str)> = facts.iter().filter_map(|o| Some((o.role, o.name?))).collect();
    let expected = [(Role::Scalar(0), "gain"), (Role::ScoreTensor(0), "bias"), (Role::DScoreTensor(0), "bias")];
    assert_eq!(named, BTreeSet::from(expected));
}
