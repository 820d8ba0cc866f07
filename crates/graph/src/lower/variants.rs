//! The variants by which equivalent op graphs are told apart: which way of writing the same numbers cuDNN accepts, computes rightly, or
//! runs faster. Each variant is a row, can be switched off in a [`CompileOptions`](super::CompileOptions), and has its test.
//!
//! A variant that is off gives the form it replaces, so that both can be timed, and tried on a library or a GPU that was not seen yet.
//! Forms that lose are kept here for that alone: without the variants of [`Gain::Right`] cuDNN was seen to compute wrong numbers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Variant {
    /// An operation of an expression reads a computed tensor first.
    ComputedFirst,
    /// An operation over operands alone reads the first of them with a computed zero added.
    LiftOperands,
    /// Truth values are declared as 32-bit integers.
    TruthAsInt,
    /// A derivative is multiplied into the upstream gradient term by term.
    AppliedDerivative,
    /// An expression and its derivative share what they both compute.
    ShareSteps,
    /// Masks come after the score expression, each with its indices and comparison next to its selection.
    MasksLast,
    /// A backward masks the scores before the log-sum-exp is subtracted, where every row is sure to see a key.
    MasksBeforeStats,
    /// What a tile holds beyond the last row and key is hidden from expressions of a backward.
    HideTails,
    /// A tensor that is broadcast over the queries is declared with all queries and a stride of zero.
    WholeQueries,
    /// The factor of dropout stands at the gradient of the probabilities.
    ScaledDropout,
    /// Engines that compute this graph wrongly are passed over.
    AvoidEngines,
    /// A tensor that stands still along the keys is subtracted negated, not added.
    SubtractNegated,
    /// A pool of pages is declared with as many as the next power of two.
    RoundPool,
    /// A tensor of one f32 is subtracted behind a computed zero, in a backward.
    LiftSubtracted,
}

/// What a variant is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gain {
    /// Without it cuDNN refuses graphs that mean the same.
    Accepted,
    /// Without it cuDNN computes wrong numbers.
    Right,
    /// Without it the same numbers take longer.
    Faster,
    /// Without it the same kernels are compiled again for sizes that they do not depend on.
    Shared,
}

/// A variant's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct VariantRow {
    /// The variant.
    #[serde(skip)]
    pub variant: Variant,
    /// Its stable name, by which it is switched off.
    pub name: &'static str,
    /// What it is for.
    pub gain: Gain,
    /// What is written, and instead of what.
    pub says: &'static str,
    /// What was seen without it, and where.
    pub seen: &'static str,
}

/// Every variant, in the order of [`Variant`]. What was seen is of cuDNN 9.19 on sm_90 (an H200) unless said.
pub const VARIANTS: [VariantRow; 14] = [
    VariantRow {
        variant: Variant::ComputedFirst,
        name: "computed-first",
        gain: Gain::Accepted,
        says: "`c + x` becomes `x + c`, `c - x` becomes `-x + c`, `c < x` becomes `x > c`, `p ? c : x` becomes `!p ? x : c`",
        seen: "refused: in_ports[0].first.isVirtual != true",
    },
    VariantRow {
        variant: Variant::LiftOperands,
        name: "lift-operands",
        gain: Gain::Accepted,
        says: "`a op b` over operands alone becomes `(0 + a) op b`, where 0 is an index less itself",
        seen: "refused: in_ports[0].first.isVirtual != true; in a backward it is taken for a sink: sub_sink needs a pointwise exp",
    },
    VariantRow {
        variant: Variant::TruthAsInt,
        name: "truth-as-int",
        gain: Gain::Accepted,
        says: "results of comparisons, and, or, not within an expression are i32, not boolean",
        seen: "refused: get_fort_io_type_str(port.first.getKernelType()) != int32_t, 9.14, 9.19 and 9.27",
    },
    VariantRow {
        variant: Variant::AppliedDerivative,
        name: "applied-derivative",
        gain: Gain::Accepted,
        says: "`dS * (1 - t*t)` becomes `dS - dS*(t*t)`, `dS * (x > 0 ? 1 : 0)` becomes `x > 0 ? dS : 0`",
        seen: "derivatives that select between constants, or add operands alone, are refused",
    },
    VariantRow {
        variant: Variant::ShareSteps,
        name: "share-steps",
        gain: Gain::Faster,
        says: "the derivative reads the forward's tanh, comparison or index instead of computing it again",
        seen: "see docs/results/forms.md",
    },
    VariantRow {
        variant: Variant::MasksLast,
        name: "masks-last",
        gain: Gain::Faster,
        says: "indices and comparison of a mask are written after the score expression, next to the selection",
        seen: "written before a softcap, a causal mask does not let cuDNN skip hidden blocks: 1.26 ms for 0.65 forward, 3.40 for 1.75 backward",
    },
    VariantRow {
        variant: Variant::MasksBeforeStats,
        name: "masks-before-stats",
        gain: Gain::Faster,
        says: "select(scores) - stats instead of select(scores - stats), where no row is empty: of one that is, stats are minus infinity",
        seen: "see docs/results/forms.md",
    },
    VariantRow {
        variant: Variant::HideTails,
        name: "hide-tails",
        gain: Gain::Right,
        says: "where lengths are no multiples of a tile, rows and keys beyond them are hidden from the probabilities and the derivative",
        seen: "cuDNN gives an expression minus infinity, or scores of rows that are not there: NaN in dQ, dK and dV",
    },
    VariantRow {
        variant: Variant::WholeQueries,
        name: "whole-queries",
        gain: Gain::Right,
        says: "extents [b, 1, 1, k] become [b, 1, q, k] with a stride of 0; lengths that an expression of a forward reads are declared so again",
        seen: "relative errors of 0.03 to 3 in backwards, and in forwards of extents [b, h, 1, 1] and i32 [b, 1, 1, 1]; misaligned reads",
    },
    VariantRow {
        variant: Variant::ScaledDropout,
        name: "scaled-dropout",
        gain: Gain::Right,
        says: "with a mask of the caller's: dS = P * (dP * mask / (1 - p) - D) instead of P * (dP * mask - D * (1 - p)) / (1 - p)",
        seen: "dQ and dK off by 2 to 20 per cent: the factor of D is not applied",
    },
    VariantRow {
        variant: Variant::AvoidEngines,
        name: "avoid-engines",
        gain: Gain::Right,
        says: "engine 1 is passed over for one query with Philox or an expression over the key's index, or, of grouped heads, the head's",
        seen: "beyond 256 keys O is off by 0.1 to 1.5, and Philox ends in an illegal address; grouped heads have one index; engine 2 is right",
    },
    VariantRow {
        variant: Variant::SubtractNegated,
        name: "subtract-negated",
        gain: Gain::Accepted,
        says: "from 9.26 on, `x + t` becomes `x - (0 - t)` where t has one number for all keys of its one query",
        seen: "refused by 9.26.0 and 9.27.0, taken by 9.25.0 and older: bias layout should be row major, stride[3] is wrong",
    },
    VariantRow {
        variant: Variant::RoundPool,
        name: "round-pool",
        gain: Gain::Shared,
        says: "a pool of n pages is declared with the next power of two; pages that are not there are in no table",
        seen: "plans for pools of 4096, 8192 and 100,000 pages have equal kernels, and differ in one number: the first extent of the pool",
    },
    VariantRow {
        variant: Variant::LiftSubtracted,
        name: "lift-subtracted",
        gain: Gain::Accepted,
        says: "from 9.26 on, `x - t` becomes `x - (0 + t)` in a score expression of a backward, where t is a tensor of one f32",
        seen: "9.26.0 and 9.27.0 end the process (SIGSEGV); 9.19.0 and 9.22.0 to 9.25.0 compile it",
    },
];

impl Variant {
    /// The variant's row.
    #[must_use]
    pub const fn row(self) -> &'static VariantRow {
        &VARIANTS[self as usize]
    }
}

/// Variants, as a set: those that a policy switches off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<&'static str>")]
pub struct VariantSet(u16);

/// A name that no variant has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is no variant of lowering; the variants are {}", names(&VariantSet(u16::MAX)).join(", "))]
pub struct BadVariant {
    /// What came.
    pub given: String,
}

fn names(set: &VariantSet) -> Vec<&'static str> {
    set.iter().map(|variant| variant.row().name).collect()
}

impl VariantSet {
    /// No variant.
    pub const NONE: VariantSet = VariantSet(0);

    /// This set with one variant more.
    #[must_use]
    pub const fn with(self, variant: Variant) -> VariantSet {
        VariantSet(self.0 | 1 << variant as u16)
    }

    /// Whether a variant is in the set.
    #[must_use]
    pub const fn contains(self, variant: Variant) -> bool {
        self.0 >> variant as u16 & 1 == 1
    }

    /// The variants in the set, in the order of [`VARIANTS`].
    pub fn iter(self) -> impl Iterator<Item = Variant> {
        VARIANTS.iter().map(|row| row.variant).filter(move |&variant| self.contains(variant))
    }
}

impl fmt::Display for VariantSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&names(self).join(","))
    }
}

impl FromStr for VariantSet {
    type Err = BadVariant;

    /// Names with commas between; an empty text is the empty set.
    fn from_str(text: &str) -> Result<VariantSet, BadVariant> {
        text.split(',').map(str::trim).filter(|name| !name.is_empty()).try_fold(VariantSet::NONE, |set, name| {
            let row =
                VARIANTS.iter().find(|row| row.name == name).ok_or_else(|| BadVariant { given: name.to_owned() })?;
            Ok(set.with(row.variant))
        })
    }
}

impl TryFrom<Vec<String>> for VariantSet {
    type Error = BadVariant;

    fn try_from(names: Vec<String>) -> Result<VariantSet, BadVariant> {
        names.join(",").parse()
    }
}

impl From<VariantSet> for Vec<&'static str> {
    fn from(set: VariantSet) -> Vec<&'static str> {
        names(&set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_the_rules_and_names_are_read_back() {
        for (at, row) in VARIANTS.iter().enumerate() {
            assert_eq!(row.variant as usize, at, "{}", row.name);
            let set: VariantSet = row.name.parse().expect("a name of a row");
            assert!(set.contains(row.variant) && set.iter().count() == 1 && set.to_string() == row.name);
        }
        let all: VariantSet = VARIANTS.map(|row| row.name).join(",").parse().expect("names of rows");
        assert_eq!(all.iter().count(), VARIANTS.len());
        let error = "masks-first".parse::<VariantSet>().expect_err("no such variant");
        assert!(
            error.to_string().contains("'masks-first' is no variant of lowering; the variants are computed-first, "),
            "{error}"
        );
    }
}
