//! Combinations of tensors, as data: what puts an attention together that was computed in parts.

mod check;
mod operands;

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::{Fingerprint, GraphKey, Refusal, Tensor, codec};

pub use check::COMBINATION_DTYPES;
pub use operands::CombinationOperand;

/// Most parts of one combination.
pub const MOST_PARTS: usize = 128;

/// The output of an attention over some of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partial {
    /// O, in f16, bf16 or f32.
    pub o: Tensor,
    /// Stats: the natural log-sum-exp of each row, f32, (batch, heads, queries, 1). Minus infinity is a row without
    /// keys, whose O is not read.
    pub stats: Tensor,
}

/// A combination of tensors: described as data, [validated](Combination::validate), identified by a key.
///
/// Arithmetic is in f32, in the order of the parts, and each number is rounded once: equal inputs give equal bytes.
///
/// ```
/// use qkvault_graph::{Combination, DType, Partial, Role, Tensor};
///
/// // Two ranks have computed 64 queries of 32 heads over their own keys.
/// let part = Partial { o: Tensor::bshd(1, 32, 64, 128, DType::BF16), stats: Tensor::bhsd(1, 32, 64, 1, DType::F32) };
/// let (o, stats) = (part.o, Some(part.stats));
/// let merge = Combination::Merge { parts: vec![part; 2], rows: false, sink: false, o, stats };
/// let merge = merge.validate()?;
/// let roles: Vec<Role> = merge.bindings().iter().map(|b| b.role).collect();
/// assert_eq!(roles[..2], [Role::O, Role::Stats]);
/// assert_eq!(roles[2..], [Role::Part(0), Role::Part(1), Role::PartStats(0), Role::PartStats(1)]);
/// # Ok::<(), qkvault_graph::Refusal>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Combination {
    /// The output of an attention over the keys of all parts: each part weighs its share of the sum of exponentials.
    /// A row without keys in any part has O = 0 and Stats of minus infinity.
    Merge {
        /// The parts, which have no key twice.
        parts: Vec<Partial>,
        /// Whether a launch is told which rows of each part count, by [`Role::PartRows`](crate::Role::PartRows). A row
        /// that does not is one without keys, whatever its memory holds: attention over sequences without keys writes
        /// nothing there.
        rows: bool,
        /// Whether sink logits, one f32 for each head, join the sum.
        sink: bool,
        /// O, in f16, bf16 or f32.
        o: Tensor,
        /// Stats of the whole, if they are written.
        stats: Option<Tensor>,
    },
    /// The sum of tensors: a gradient of its parts.
    Sum {
        /// What is added, in this order: all of one type, f16, bf16 or f32.
        parts: Vec<Tensor>,
        /// Whether a launch is told which rows of each part count, as in a merge. The others add nothing.
        rows: bool,
        /// The sum, in f16, bf16 or f32.
        into: Tensor,
    },
    /// A copy bit by bit, between any strides.
    Copy {
        /// What is copied.
        from: Tensor,
        /// Where to, of the same type.
        to: Tensor,
    },
    /// One number everywhere: 0, or minus infinity for the Stats of rows without keys.
    Fill {
        /// The tensor, of any type for 0 and f32 for minus infinity.
        to: Tensor,
        /// Whether the number is minus infinity.
        hidden: bool,
    },
    /// A part of the keep mask of an attention with [`DropoutSource::Places`](crate::DropoutSource::Places): ones and
    /// zeros for (batch, head, query, key). A launch gets the seed, the offset, and as
    /// [`Role::Scalar`](crate::Role::Scalar) 0 to 2 the first head, query and key of the part in the whole attention.
    Keep {
        /// The part of the mask, in f16, bf16 or f32. It has all of the batch.
        to: Tensor,
        /// Query heads of the whole attention.
        heads: u32,
        /// What has a random number below this one is dropped: [`Dropout::threshold`](crate::Dropout::threshold).
        below: u32,
    },
}

impl Combination {
    /// Checks the description and brings it into canonical form.
    ///
    /// # Errors
    ///
    /// Every problem, each with its place, what was given, what is needed and the fix.
    pub fn validate(self) -> Result<ValidCombination, Refusal> {
        check::validate(self)
    }
}

/// A combination without contradictions, in canonical form. Only [`Combination::validate`] makes one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ValidCombination(Combination);

impl Deref for ValidCombination {
    type Target = Combination;

    fn deref(&self) -> &Combination {
        &self.0
    }
}

/// The tag that separates the keys of combinations from those of attentions and conversions.
const TAG: &str = "qkvault combination, key format 2";

impl ValidCombination {
    /// The key of this combination, which identifies its computation independently of the GPU.
    #[must_use]
    pub fn key(&self) -> GraphKey {
        let of = |t: &Tensor| {
            let Tensor { dims, strides, dtype, storage: _ } = *t;
            (dims, strides, dtype.code())
        };
        let (kind, flag) = match &self.0 {
            Combination::Merge { sink, .. } => (1_u8, *sink),
            Combination::Sum { .. } => (2, false),
            Combination::Copy { .. } => (3, false),
            Combination::Fill { hidden, .. } => (4, *hidden),
            Combination::Keep { .. } => (5, false),
        };
        let tensors: Vec<_> = self.operands().iter().map(|o| (o.role.uid(), of(&o.tensor))).collect();
        let mut hasher = blake3::Hasher::new_derive_key(TAG);
        hasher.update(&codec::encode(&(kind, flag, tensors)));
        if let Combination::Keep { to: _, heads, below } = &self.0 {
            hasher.update(&codec::encode(&(heads, below)));
        }
        GraphKey::from_bytes(*hasher.finalize().as_bytes())
    }

    /// Identifies this combination inside this process, among all that has a key.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of_key(&self.key())
    }
}

impl fmt::Display for ValidCombination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensor = |t: &Tensor| {
            let [b, h, s, d] = t.dims;
            let order = t.order().map_or_else(|| format!("{:?}", t.strides), |order| order.to_string());
            format!("{} {order} [{b},{h},{s},{d}]", t.dtype)
        };
        match &self.0 {
            Combination::Merge { parts, rows, sink, o, stats } => {
                write!(f, "merge of {} parts in {} into {}", parts.len(), parts[0].o.dtype, tensor(o))?;
                f.write_str(if stats.is_some() { " with stats" } else { "" })?;
                f.write_str(if *sink { ", sink" } else { "" })?;
                f.write_str(if *rows { ", counted rows" } else { "" })
            }
            Combination::Sum { parts, rows, into } => {
                write!(f, "sum of {} parts in {} into {}", parts.len(), parts[0].dtype, tensor(into))?;
                f.write_str(if *rows { ", counted rows" } else { "" })
            }
            Combination::Copy { from, to } => write!(f, "copy of {} to {}", tensor(from), tensor(to)),
            Combination::Fill { to, hidden } => {
                write!(f, "{} in {}", if *hidden { "minus infinity" } else { "zeros" }, tensor(to))
            }
            Combination::Keep { to, heads, below } => {
                let dropped = f64::from(*below) / 4_294_967_296.0;
                write!(f, "dropout mask of {dropped:.4} over {heads} heads in {}", tensor(to))
            }
        }
    }
}

#[cfg(test)]
mod tests;
