//! One changed field at a time: whether it changes the key.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use qkvault_graph::arbitrary::{self, Effect, Space, mutations, renamed};
use qkvault_graph::{Attention, Dropout, Valid, canonical_bytes, validate};

/// The canonical attention with fixed values for what a launch gets: equal for equal meanings, by plain comparison.
fn meaning(valid: &Valid) -> Attention {
    let mut a = valid.get().clone();
    if let Some(Dropout { probability, .. }) = &mut a.dropout {
        *probability = 0.5;
    }
    a
}

#[test]
fn every_field_changes_the_key_and_nothing_else_does() {
    let seen: RefCell<BTreeMap<String, u32>> = RefCell::default();
    let check = |a: Attention| {
        let base = validate(a.clone()).expect("random attentions are sound");
        for mutation in mutations(&a) {
            let Ok(changed) = validate(mutation.attention) else { continue };
            *seen.borrow_mut().entry(mutation.field.clone()).or_default() += 1;
            let same = changed.key() == base.key();
            let field = &mutation.field;
            match mutation.effect {
                Effect::Changes => prop_assert!(!same, "{} does not change the key of {}", field, a),
                Effect::Nothing => prop_assert!(same, "{} changes the key of {}", field, a),
                Effect::Depends => {}
            }
            prop_assert_eq!(same, meaning(&changed) == meaning(&base), "{} of {}", field, a);
            prop_assert_eq!(same, canonical_bytes(&changed) == canonical_bytes(&base));
        }
        Ok(())
    };
    let config = ProptestConfig::with_cases(1_500);
    let spaces = prop_oneof![arbitrary::attention(Space::SMALL), arbitrary::attention(Space::WIDE)];
    TestRunner::new(config).run(&spaces, check).expect("every change has its declared effect");
    // The test needs changes that give valid attentions.
    let seen = seen.into_inner();
    let mut fields: Vec<&str> = seen.iter().filter(|(_, n)| **n >= 5).map(|(field, _)| field.as_str()).collect();
    fields.sort_unstable();
    for needed in [
        "batch",
        "block_mask",
        "d_k.strides[0]",
        "d_o.strides[1]",
        "d_o_half.strides[2]",
        "d_q.strides[2]",
        "d_v.tokens",
        "dropout",
        "dropout of nothing",
        "dropout.probability",
        "dropout.source",
        "dtype of d_o_half",
        "dtype of gradient 0",
        "dtype of o",
        "dtype of q, k and v",
        "every dtype",
        "fp8",
        "head dim of q and k",
        "head dim of v and o",
        "k.page_size",
        "k.pages",
        "k.strides[0]",
        "k.tokens",
        "key heads",
        "keys",
        "mask.band",
        "mask.mask_mod",
        "mask.lengths",
        "o.strides[2]",
        "o.tokens",
        "outputs.max",
        "outputs.stats",
        "outputs.sum_exp",
        "padded_rows",
        "pass",
        "pass.d_sink",
        "pass.deterministic",
        "q.strides[1]",
        "q.tokens",
        "queries",
        "query heads",
        "score_mod",
        "sink",
        "v.page_size",
        "v.pages",
        "v.strides[0]",
        "value heads",
    ] {
        assert!(fields.contains(&needed), "{needed} was hardly ever sound: {seen:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn display_names_do_not_change_the_key(a in arbitrary::attention(Space::SMALL)) {
        let base = validate(a.clone()).expect("sound").key();
        prop_assert_eq!(validate(renamed(&a)).expect("as sound as before").key(), base);
    }

    #[test]
    fn random_pairs_have_equal_keys_exactly_if_their_bytes_and_meanings_are_equal(
        a in arbitrary::attention(Space::SMALL), b in arbitrary::attention(Space::SMALL),
    ) {
        let (a, b) = (validate(a).expect("sound"), validate(b).expect("sound"));
        let same = a.key() == b.key();
        prop_assert_eq!(same, canonical_bytes(&a) == canonical_bytes(&b));
        prop_assert_eq!(same, meaning(&a) == meaning(&b));
    }
}
