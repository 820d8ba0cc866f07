//! Fingerprints are equal exactly if everything that a program can observe of two valid attentions is equal, including
//! names.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use proptest::prelude::*;
use qkvault_graph::arbitrary::{self, Space, mutations, renamed};
use qkvault_graph::expr::{AlibiSlopes, TensorSpec, key, query, scalar, score, tensor};
use qkvault_graph::{
    Attention, BackwardOptions, DType, Dropout, DropoutSource, ScoreExpr, ScoreModBprop, Valid, text, validate,
};

/// Everything that can be observed of an attention: its JSON has every field and every name.
fn seen(valid: &Valid) -> String {
    serde_json::to_string(valid.get()).expect("writes")
}

fn agrees(a: &Valid, b: &Valid) -> Result<(), TestCaseError> {
    let same = a.fingerprint() == b.fingerprint();
    prop_assert_eq!(same, seen(a) == seen(b), "{} and {}", seen(a), seen(b));
    prop_assert_eq!(same, a == b);
    let hasher = RandomState::new();
    prop_assert_eq!(same, hasher.hash_one(a) == hasher.hash_one(b));
    prop_assert!(!same || a.key() == b.key());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn fingerprints_are_equal_exactly_when_descriptions_are(
        a in arbitrary::attention(Space::SMALL), b in arbitrary::attention(Space::SMALL),
    ) {
        let base = validate(a.clone()).expect("sound");
        agrees(&base, &validate(b).expect("sound"))?;
        agrees(&base, &validate(renamed(&a)).expect("sound"))?;
        for mutation in mutations(&a) {
            if let Ok(changed) = validate(mutation.attention) {
                agrees(&base, &changed)?;
            }
        }
    }

    #[test]
    fn a_fingerprint_survives_clones_json_text_and_a_second_validation(a in arbitrary::attention(Space::SMALL)) {
        let base = validate(a.clone()).expect("sound");
        let read: Attention = serde_json::from_str(&serde_json::to_string(&a).expect("writes")).expect("reads");
        prop_assert_eq!(base.clone().fingerprint(), base.fingerprint());
        prop_assert_eq!(validate(read).expect("sound").fingerprint(), base.fingerprint());
        prop_assert_eq!(validate(text::parse(&text::print(&a)).expect("reads")).expect("sound"), base.clone());
        prop_assert_eq!(validate(base.clone().into_inner()).expect("sound"), base.clone());
        // The last clone returns its content without a copy.
        let shared = base.clone();
        prop_assert_eq!(shared.into_inner(), base.into_inner());
    }
}

fn base() -> Attention {
    Attention::bshd(2, (8, 2), (64, 128), 32, DType::BF16)
}

fn valid(a: Attention) -> Valid {
    validate(a).expect("sound")
}

/// The differences between two attentions with the same key for callers that bind by name.
#[test]
fn names_are_in_the_fingerprint_and_not_in_the_key() {
    let capped =
        |name: &str| valid(base().with_score_mod((scalar(name) * score().tanh()).build_score_mod().expect("a score")));
    let masked = |name: &str| {
        let ids = tensor(name, TensorSpec::new(DType::I32, [1, 1, 64, 1]));
        valid(base().with_mask_mod(ids.ge(key()).build_mask_mod().expect("a predicate")))
    };
    let dropped = |p| valid(base().with_dropout(p));
    // The cosine, in another form than the derived one.
    let derivative = || (score() + std::f32::consts::FRAC_PI_2).sin().build_score_mod().expect("a number");
    let own = |bprop: fn(ScoreExpr) -> ScoreModBprop| {
        let forward = base().with_stats().with_score_mod(score().sin().build_score_mod().expect("a score"));
        let mut a = forward.backward(BackwardOptions::default());
        a.score_mod_bprop = Some(bprop(derivative()));
        valid(a)
    };
    for [a, b] in [
        [capped("thirty"), capped("fifty")],
        [masked("ids"), masked("documents")],
        [dropped(0.1), dropped(0.9)],
        [dropped(0.1), dropped(0.1_f32.next_up())],
        [own(ScoreModBprop::checked), own(ScoreModBprop::trusted)],
    ] {
        assert_eq!(a.key(), b.key());
        assert_ne!(a.fingerprint(), b.fingerprint());
        assert_ne!(a, b);
    }
}

#[test]
fn slopes_are_in_the_fingerprint() {
    let with = |slopes| {
        let slopes = tensor("slopes", TensorSpec::of_slopes(8, slopes));
        let distance = (key() - query()).to_float();
        valid(base().with_score_mod((score() + slopes * distance).build_score_mod().expect("a score")))
    };
    let whole = AlibiSlopes::for_heads(32);
    let several = [
        with(AlibiSlopes::for_heads(8)),
        with(whole),
        with(whole.from_head(8)),
        with(whole.with_bias_max(16.0).expect("finite")),
    ];
    let distinct: HashSet<&Valid> = several.iter().collect();
    assert_eq!(distinct.len(), several.len());
}

#[test]
fn both_zeros_of_a_probability_are_the_same_description() {
    let with = |probability| {
        let mut a = base();
        a.dropout = Some(Dropout::new(DropoutSource::Mask, probability));
        valid(a)
    };
    assert_eq!(with(0.0), with(-0.0));
}

#[test]
fn a_valid_attention_works_as_a_key_of_a_map() {
    let mut plans: HashMap<Valid, u32> = HashMap::new();
    for batch in 1..=16 {
        plans.insert(valid(Attention::bshd(batch, (8, 2), (64, 128), 32, DType::BF16)), batch as u32);
    }
    assert_eq!(plans.len(), 16);
    assert_eq!(plans.get(&valid(Attention::bshd(7, (8, 2), (64, 128), 32, DType::BF16))), Some(&7));
    assert_eq!(size_of::<Valid>(), size_of::<usize>());
}
