//! Origins: where the positions of queries and keys begin, as numbers that a launch gets.

use serde::{Deserialize, Serialize};

use crate::{Band, Corner};

/// The largest origin that a launch may give, and the most queries or keys of an attention with origins: positions
/// below 2^24 are exact as f32.
pub const MAX_ORIGIN: i32 = 1 << 23;

/// The distance between two positions is smaller than this.
const FAR: i64 = 2 * MAX_ORIGIN as i64;

/// Positions of queries and keys begin at numbers that a launch gets ([`Role::QueryOrigin`](crate::Role::QueryOrigin)
/// and [`Role::KeyOrigin`](crate::Role::KeyOrigin), i32, 0 to [`MAX_ORIGIN`]), so that one plan serves every chunk of a
/// longer sequence.
///
/// Query `i` of each sequence has the position `i + query_origin` and key `j` the position `j + key_origin`. Bands and
/// the indices `query` and `key` of expressions, ALiBi's among them, are positions. Lengths, tensors, masks and blocks
/// are those of this attention: element `[.., i, j]` of a tensor is for query `i` and key `j`. Queries and keys count
/// from one beginning: both corners of a band mean position 0, and [`position`](crate::expr::position) is the query's
/// position. Random dropout depends on rows and columns of the launch, not on positions.
///
/// With origins, bounds of a band may be negative.
///
/// ```
/// use qkvault_graph::{Attention, DType, Origins, Role};
///
/// // A chunk of 512 queries over up to 8192 keys, causal, wherever the chunk begins.
/// let chunk = Attention::bshd(1, (32, 8), (512, 8192), 128, DType::BF16).causal().with_origins(Origins::Any);
/// let roles: Vec<Role> = chunk.validate()?.operand_facts().iter().map(|operand| operand.role).collect();
/// assert!(roles.ends_with(&[Role::QueryOrigin, Role::KeyOrigin]));
/// # Ok::<(), qkvault_graph::Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origins {
    /// Any origins. A query that sees no key has zeros, as everywhere.
    Any,
    /// Origins with which the band lets every query see a key. A launch compares them with the band. Masked backwards
    /// are 5 to 20 per cent faster with it (`docs/results/forms.md`).
    EveryQuerySeesAKey,
}

impl Band {
    /// The canonical band of positions; `None` if it hides nothing whatever the origins are. Both corners are the
    /// beginning of all positions.
    pub(crate) fn canonical_with_origins(self) -> Option<Band> {
        let Band { corner: _, left, right } = self;
        let (left, right) = (left.filter(|&left| left < FAR), right.filter(|&right| right < FAR - 1));
        (right.is_some() || left.is_some()).then_some(Band { corner: Corner::TopLeft, left, right })
    }

    /// Whether the band hides every key from every query, whatever the origins are.
    pub(crate) fn is_empty_with_origins(self) -> bool {
        let Some(Band { corner: _, left, right }) = self.canonical_with_origins() else { return false };
        let crossed = left.zip(right).is_some_and(|(left, right)| left.saturating_add(right) < 1);
        crossed || left.is_some_and(|left| left <= 1 - FAR) || right.is_some_and(|right| right <= -FAR)
    }
}
