//! Variants of lowering: of equivalent op graphs, the one that cuDNN accepts, computes correctly or runs faster. Each
//! variant has a row and a test, and can be switched off in [`CompileOptions`](super::CompileOptions).
//!
//! Without a variant, lowering writes the form that it replaces, so that both can be timed, and tried on a new library
//! or GPU. Without the variants of [`Gain::Right`], cuDNN computed wrong numbers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Variant {
    /// An operation of an expression has a computed tensor as its first operand.
    ComputedFirst,
    /// An operation over operands only adds a computed zero to the first of them.
    LiftOperands,
    /// Truth values are declared as 32-bit integers.
    TruthAsInt,
    /// A derivative is multiplied into the upstream gradient term by term.
    AppliedDerivative,
    /// An expression and its derivative share common operations.
    ShareSteps,
    /// Masks come after the score expression, each with its indices and comparison next to its selection.
    MasksLast,
    /// A backward masks the scores before the log-sum-exp is subtracted, if every row certainly sees a key.
    MasksBeforeStats,
    /// In a backward, scores in tiles beyond the last row and key are hidden from expressions.
    HideTails,
    /// A tensor that is broadcast over the queries is declared with all queries and a stride of zero.
    WholeQueries,
    /// The dropout factor is at the gradient of the probabilities.
    ScaledDropout,
    /// Engines that compute this graph wrongly are excluded.
    AvoidEngines,
    /// A tensor that is constant along the keys is subtracted with the other sign, not added.
    SubtractNegated,
    /// A pool of pages is declared with the next power of two of pages.
    RoundPool,
    /// A tensor of one f32 is subtracted after a computed zero is added, in a backward.
    LiftSubtracted,
    /// Modified scores of a forward that are as low as the lowest float are compressed.
    CompressLowest,
}

/// The purpose of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gain {
    /// Without it, cuDNN refuses equivalent graphs.
    Accepted,
    /// Without it, cuDNN computes wrong numbers.
    Right,
    /// Without it, the same numbers take longer.
    Faster,
    /// Without it, the same kernels are compiled again for sizes that do not matter.
    Shared,
}

/// The row of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct VariantRow {
    /// The variant.
    #[serde(skip)]
    pub variant: Variant,
    /// Its stable name, which switches it off.
    pub name: &'static str,
    /// Its purpose.
    pub gain: Gain,
    /// What lowering writes, and instead of what.
    pub says: &'static str,
    /// What was observed without it, and where.
    pub seen: &'static str,
}

/// Every variant, in the order of [`Variant`]. Observations are from cuDNN 9.19 on sm_90 (an H200) unless stated
/// otherwise.
pub const VARIANTS: [VariantRow; 15] = [
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
        seen: "refused: in_ports[0].first.isVirtual != true; a backward treats it as a sink: sub_sink needs a pointwise exp",
    },
    VariantRow {
        variant: Variant::TruthAsInt,
        name: "truth-as-int",
        gain: Gain::Accepted,
        says: "within an expression, results of comparisons, `and`, `or` and `not` are i32, not boolean",
        seen: "refused: get_fort_io_type_str(port.first.getKernelType()) != int32_t, 9.14, 9.19 and 9.27",
    },
    VariantRow {
        variant: Variant::AppliedDerivative,
        name: "applied-derivative",
        gain: Gain::Accepted,
        says: "`dS * (1 - t*t)` becomes `dS - dS*(t*t)`, `dS * (x > 0 ? 1 : 0)` becomes `x > 0 ? dS : 0`",
        seen: "derivatives that select between constants, or add only operands, are refused",
    },
    VariantRow {
        variant: Variant::ShareSteps,
        name: "share-steps",
        gain: Gain::Faster,
        says: "the derivative reads the forward's tanh, comparison or index instead of a second one",
        seen: "see docs/results/forms.md",
    },
    VariantRow {
        variant: Variant::MasksLast,
        name: "masks-last",
        gain: Gain::Faster,
        says: "indices and comparison of a mask come after the score expression, next to the selection",
        seen: "with a causal mask before a softcap, cuDNN does not skip hidden blocks: 1.26 ms instead of 0.65 forward, 3.40 instead of 1.75 backward",
    },
    VariantRow {
        variant: Variant::MasksBeforeStats,
        name: "masks-before-stats",
        gain: Gain::Faster,
        says: "select(scores) - stats instead of select(scores - stats), if no row is empty: stats of an empty row are minus infinity",
        seen: "see docs/results/forms.md",
    },
    VariantRow {
        variant: Variant::HideTails,
        name: "hide-tails",
        gain: Gain::Right,
        says: "if lengths are not multiples of a tile, the rows and keys beyond them are hidden from the probabilities and the derivative",
        seen: "expressions get minus infinity, or scores of rows that do not exist: NaN in dQ, dK and dV",
    },
    VariantRow {
        variant: Variant::WholeQueries,
        name: "whole-queries",
        gain: Gain::Right,
        says: "extents [b, 1, 1, k] become [b, 1, q, k] with a stride of 0; lengths that an expression of a forward reads are declared again in this way",
        seen: "relative errors of 0.03 to 3 in backwards, and in forwards of extents [b, h, 1, 1] and i32 [b, 1, 1, 1]; misaligned reads",
    },
    VariantRow {
        variant: Variant::ScaledDropout,
        name: "scaled-dropout",
        gain: Gain::Right,
        says: "with the caller's mask: dS = P * (dP * mask / (1 - p) - D) instead of P * (dP * mask - D * (1 - p)) / (1 - p)",
        seen: "dQ and dK are off by 2 to 20 per cent: the factor of D is not applied",
    },
    VariantRow {
        variant: Variant::AvoidEngines,
        name: "avoid-engines",
        gain: Gain::Right,
        says: "engine 1 is excluded for one query with Philox, or with an expression over the key index or, with grouped heads, the head index",
        seen: "beyond 256 keys O is off by 0.1 to 1.5, and Philox reads an illegal address; grouped heads get the same index; engine 2 is right",
    },
    VariantRow {
        variant: Variant::SubtractNegated,
        name: "subtract-negated",
        gain: Gain::Accepted,
        says: "since 9.26, `x + t` becomes `x - (0 - t)` if t has one query and one number for all its keys",
        seen: "refused by 9.26.0 and 9.27.0, accepted by 9.25.0 and older: bias layout should be row major, stride[3] is wrong",
    },
    VariantRow {
        variant: Variant::RoundPool,
        name: "round-pool",
        gain: Gain::Shared,
        says: "a pool of n pages is declared with the next power of two; no table names the additional pages",
        seen: "plans for pools of 4096, 8192 and 100,000 pages have equal kernels, and differ in one number: the first extent of the pool",
    },
    VariantRow {
        variant: Variant::LiftSubtracted,
        name: "lift-subtracted",
        gain: Gain::Accepted,
        says: "since 9.26, `x - t` becomes `x - (0 + t)` in a score expression of a backward, if t is a tensor of one f32",
        seen: "9.26.0 and 9.27.0 end the process (SIGSEGV); 9.19.0 and 9.22.0 to 9.25.0 compile it",
    },
    VariantRow {
        variant: Variant::CompressLowest,
        name: "compress-lowest",
        gain: Gain::Right,
        says: "`x` becomes `max(x, x / 16 - 2.0625e38)` in a forward whose expression may give scores below -2.36e38",
        seen: "rows whose scores are all the lowest float, as padding masks give them: O is 0 instead of the mean of V (9.19 on an H100)",
    },
];

impl Variant {
    /// The variant's row.
    #[must_use]
    pub const fn row(self) -> &'static VariantRow {
        &VARIANTS[self as usize]
    }
}

/// A set of variants: those that the options switch off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<&'static str>")]
pub struct VariantSet(u16);

/// The error for a name that is not a variant's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not a variant of lowering; the variants are {}", names(&VariantSet(u16::MAX)).join(", "))]
pub struct BadVariant {
    /// The name.
    pub given: String,
}

fn names(set: &VariantSet) -> Vec<&'static str> {
    set.iter().map(|variant| variant.row().name).collect()
}

impl VariantSet {
    /// The empty set.
    pub const NONE: VariantSet = VariantSet(0);

    /// This set and one more variant.
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

    /// Reads names separated by commas. An empty text is the empty set.
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
    fn rows_have_the_order_of_the_enum_and_names_parse() {
        for (at, row) in VARIANTS.iter().enumerate() {
            assert_eq!(row.variant as usize, at, "{}", row.name);
            let set: VariantSet = row.name.parse().expect("a name of a row");
            assert!(set.contains(row.variant) && set.iter().count() == 1 && set.to_string() == row.name);
        }
        let all: VariantSet = VARIANTS.map(|row| row.name).join(",").parse().expect("names of rows");
        assert_eq!(all.iter().count(), VARIANTS.len());
        let error = "masks-first".parse::<VariantSet>().expect_err("no such variant");
        assert!(
            error.to_string().contains("'masks-first' is not a variant of lowering; the variants are computed-first, "),
            "{error}"
        );
    }
}
