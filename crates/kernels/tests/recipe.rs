//! Recipes from an untrusted disk: random bytes and random changes of a valid recipe never panic, and what the check
//! accepts refers to nothing outside. The expectation is written again here, from the definition.

use proptest::prelude::*;
use qkvault_graph::codec;
use qkvault_kernels::recipe::testing::{CODE, inside, operands, sample};
use qkvault_kernels::recipe::{LaunchRecipe, LaunchValue, RecipeStep};

/// Reads and checks bytes; whether what is accepted is inside.
fn sound(bytes: &[u8]) -> bool {
    let operands = operands();
    match codec::decode::<LaunchRecipe>(bytes) {
        Ok(recipe) => recipe.check(&operands, CODE).is_ok_and(|checked| inside(&checked, &operands)) || rejected(bytes),
        Err(_) => true,
    }
}

/// Whether the check refuses these bytes.
fn rejected(bytes: &[u8]) -> bool {
    codec::decode::<LaunchRecipe>(bytes).is_ok_and(|recipe| recipe.check(&operands(), CODE).is_err())
}

#[test]
fn the_sample_is_accepted_and_inside() {
    let bytes = codec::encode(&sample());
    assert!(!rejected(&bytes) && sound(&bytes));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(sound(&bytes));
    }

    /// One to three bytes of a valid recipe changed, and perhaps its end lost.
    #[test]
    fn changed_bytes_never_refer_outside(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        lost in 0_usize..3,
    ) {
        let mut bytes = codec::encode(&sample());
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(bytes.len() - lost);
        prop_assert!(sound(&bytes));
    }

    /// A recipe whose numbers are drawn near their bounds.
    #[test]
    fn changed_numbers_never_refer_outside(
        (scratch, clear) in (number(512), (number(0), number(512))),
        (grid, cluster) in (near(2), prop::option::of(near(2))),
        (block, shared) in (near(512), near(232_448)),
        (module, at, offset) in (near(1), near(128), number(512)),
        (dims, stride, tile) in ((number(64), number(64)), number(128), near(64)),
        modules in number(200),
    ) {
        let mut recipe = sample();
        (recipe.scratch, recipe.modules[1]) = (scratch, modules);
        recipe.steps[0] = RecipeStep::Clear { at: clear.0, bytes: clear.1, value: 0 };
        if let RecipeStep::Launch(launch) = &mut recipe.steps[1] {
            (launch.module, launch.shared) = (module, shared);
            (launch.grid[0], launch.block[0], launch.cluster) = (grid, block, cluster.map(|n| [n, 1, 1]));
            let patches = &mut launch.params[0].patches;
            patches[1].at = at;
            patches[3].value = LaunchValue::Scratch(offset);
            if let LaunchValue::Map(map) = &mut patches[0].value {
                (map.dims, map.strides[0], map.tile[0]) = (vec![dims.0, dims.1], stride, tile);
            }
        }
        prop_assert!(sound(&codec::encode(&recipe)));
    }
}

/// The right value most of the time, else one beside it, or an extreme one.
fn number(right: u64) -> impl Strategy<Value = u64> {
    prop_oneof![6 => Just(right), 1 => Just(right + 1), 1 => Just(right.saturating_sub(1)), 1 => Just(u64::MAX), 1 => Just(0)]
}

fn near(right: u32) -> impl Strategy<Value = u32> {
    number(u64::from(right)).prop_map(|n| u32::try_from(n).unwrap_or(u32::MAX))
}
