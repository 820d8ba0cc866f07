//! Random attentions for property tests, here and in other crates: valid ones over the whole space, invalid ones with
//! their faults, and changes of one field at a time. Only with the feature `testing`.
//!
//! ```
//! use proptest::prelude::*;
//! use qkvault_graph::arbitrary::{self, Space};
//!
//! proptest!(|(a in arbitrary::attention(Space::SMALL))| {
//!     prop_assert!(qkvault_graph::validate(a).is_ok());
//! });
//! ```

mod aligned;
mod attention;
mod choices;
pub mod domain;
mod fault;
mod library;
mod mutate;
mod read;
mod tensor;
mod term;
mod write;

use proptest::prelude::*;

use crate::Attention;

pub use aligned::aligned;
pub use fault::{FAULTS, Fault};
pub use library::modified;
pub use mutate::{Effect, Mutation, mutations, renamed};
pub use read::{read_as, read_bytes, read_text};
pub use term::Term;

/// The largest sizes and the features of random attentions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Most sequences.
    pub batch: i64,
    /// Most key or value heads; there are up to four times as many query heads.
    pub heads: i64,
    /// Most queries, and most keys.
    pub seq: i64,
    /// Largest head dim, in steps of 8.
    pub head_dim: i64,
    /// The features besides a band, lengths and Stats.
    pub features: Features,
}

/// The features of random attentions besides a band, lengths and Stats. Only some of them have each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named like the parts of an attention")]
pub struct Features {
    /// Varlen and paged operands.
    pub storage: bool,
    pub score_mod: bool,
    pub mask_mod: bool,
    pub sink: bool,
    pub dropout: bool,
    pub block_mask: bool,
    /// Max and Sum_exp.
    pub outputs: bool,
    pub padded_rows: bool,
    pub invariant: bool,
    pub draft_tree: bool,
    pub fp8: bool,
    pub backward: bool,
    pub origins: bool,
}

impl Features {
    /// Everything.
    pub const ALL: Features = Features {
        storage: true,
        score_mod: true,
        mask_mod: true,
        sink: true,
        dropout: true,
        block_mask: true,
        outputs: true,
        padded_rows: true,
        invariant: true,
        draft_tree: true,
        fp8: true,
        backward: true,
        origins: true,
    };

    /// Dense forwards in 16 bits.
    pub const NONE: Features = Features {
        storage: false,
        score_mod: false,
        mask_mod: false,
        sink: false,
        dropout: false,
        block_mask: false,
        outputs: false,
        padded_rows: false,
        invariant: false,
        draft_tree: false,
        fp8: false,
        backward: false,
        origins: false,
    };
}

impl Space {
    /// Everything, in sizes that a CPU computes in well under a millisecond.
    pub const SMALL: Space = Space { batch: 3, heads: 2, seq: 12, head_dim: 16, features: Features::ALL };

    /// Everything, in sizes of real models.
    pub const WIDE: Space = Space { batch: 64, heads: 16, seq: 16_384, head_dim: 256, features: Features::ALL };

    /// The same sizes with other features.
    #[must_use]
    pub const fn with(self, features: Features) -> Space {
        Space { features, ..self }
    }
}

/// Random valid attentions. They are not in canonical form, which [`crate::validate`] gives.
pub fn attention(space: Space) -> impl Strategy<Value = Attention> + use<> {
    attention::recipe(space).prop_map(move |recipe| recipe.build())
}

/// Random attentions with one or more faults each, and the codes of the reasons that validation must find, in any
/// order. It may find more, which follow from a fault.
pub fn invalid(space: Space) -> impl Strategy<Value = (Attention, Vec<&'static str>)> + use<> {
    (attention::recipe(space), prop::collection::vec(0..FAULTS.len(), 1..6)).prop_map(|(recipe, chosen)| {
        let mut attention = recipe.build();
        let mut codes = Vec::new();
        let mut zones = Vec::new();
        let mut faults: Vec<&Fault> = Vec::new();
        for at in chosen {
            let fault = &FAULTS[at];
            if !zones.iter().any(|zone| fault.zones.contains(zone)) {
                zones.extend(fault.zones);
                faults.push(fault);
            }
        }
        // The preparation for one fault must not undo another.
        for fault in &faults {
            (fault.prepare)(&mut attention);
        }
        for fault in &faults {
            (fault.inject)(&mut attention);
            codes.push(fault.code);
        }
        (attention, codes)
    })
}
