//! How an attention is shared: the ranks, the scheme, and which tokens each rank has.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// How several ranks share one attention.
///
/// ```
/// use qkvault_parallel::{Scheme, Sharding, TokenOrder};
///
/// // Rank 1 of 4 has the second and the seventh of eight chunks of 16 tokens.
/// let sharding = Sharding::new(4, Scheme::Gather { groups: 1 });
/// assert_eq!(sharding.order, TokenOrder::ZigZag);
/// assert_eq!(sharding.tokens(1, 128), [16..32, 96..112]);
/// assert_eq!(sharding.positions(1, 128)[14..18], [30, 31, 96, 97]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sharding {
    /// Number of ranks: GPUs that work together.
    pub ranks: u32,
    /// What moves between them.
    pub scheme: Scheme,
    /// Which tokens each rank has.
    pub order: TokenOrder,
}

/// What moves between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Scheme {
    /// Each rank gets the keys and values that its queries see, and computes its chunks of queries. Nothing is merged
    /// in the forward. The default.
    Gather {
        /// Groups of heads that move one after another: while one is computed, the next one moves.
        groups: u32,
    },
    /// Each rank gets all tokens of some heads (Ulysses).
    Heads,
    /// Keys and values go around; each rank merges what it computes with each of them.
    ///
    /// Merges weigh by the log-sum-exp in float32. It does not tell how many keys a part has where every score is near
    /// the lowest float: in such a row, of padding alone, each part counts the same.
    Ring,
    /// The keys of a cache stay where they are; each rank computes all queries over its keys, and the results are
    /// merged, as a ring's are. Key `t` is on rank `(t / run) % ranks`.
    Decode {
        /// Neighbouring keys on one rank: the page size, or a multiple of it.
        run: u32,
    },
}

/// Which tokens each rank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenOrder {
    /// Rank `r` of `n` has chunks `r` and `2n - 1 - r` of `2n`: under a causal mask each rank has the same work.
    ZigZag,
    /// Rank `r` of `n` has chunk `r` of `n`.
    Contiguous,
}

impl Sharding {
    /// A sharding in the order that suits the scheme: zig-zag for gather and ring, contiguous otherwise.
    #[must_use]
    pub const fn new(ranks: u32, scheme: Scheme) -> Sharding {
        let order = match scheme {
            Scheme::Gather { .. } | Scheme::Ring => TokenOrder::ZigZag,
            Scheme::Heads | Scheme::Decode { .. } => TokenOrder::Contiguous,
        };
        Sharding { ranks, scheme, order }
    }

    /// The same, with another order of tokens.
    #[must_use]
    pub const fn with_order(self, order: TokenOrder) -> Sharding {
        Sharding { order, ..self }
    }

    /// Number of chunks that a sequence is cut into. A length must be a multiple of it.
    #[must_use]
    pub const fn chunks(&self) -> i64 {
        match self.order {
            TokenOrder::ZigZag => 2 * self.ranks as i64,
            TokenOrder::Contiguous => self.ranks as i64,
        }
    }

    /// The chunks of a rank, in the order in which they lie in its memory.
    #[must_use]
    pub fn chunks_of(&self, rank: u32) -> Vec<i64> {
        match self.order {
            TokenOrder::ZigZag => vec![rank.into(), self.chunks() - 1 - i64::from(rank)],
            TokenOrder::Contiguous => vec![rank.into()],
        }
    }

    /// The rank that has a chunk, and the chunk's place among those of the rank.
    #[must_use]
    pub const fn owner(&self, chunk: i64) -> (u32, i64) {
        let ranks = self.ranks as i64;
        if chunk < ranks { (chunk as u32, 0) } else { ((2 * ranks - 1 - chunk) as u32, 1) }
    }

    /// The tokens of a rank in a sequence of this length, in the order in which they lie in its memory.
    #[must_use]
    pub fn tokens(&self, rank: u32, length: i64) -> Vec<Range<i64>> {
        let size = length / self.chunks();
        self.chunks_of(rank).into_iter().map(|chunk| chunk * size..(chunk + 1) * size).collect()
    }

    /// The position of each token of a rank, for rotary embeddings and loaders of data.
    #[must_use]
    pub fn positions(&self, rank: u32, length: i64) -> Vec<i64> {
        self.tokens(rank, length).into_iter().flatten().collect()
    }

    /// The tokens of a rank.
    #[must_use]
    pub const fn share(&self, length: i64) -> i64 {
        length / self.ranks as i64
    }
}

/// The keys of a sequence of `length` that rank `rank` has in [`Scheme::Decode`].
///
/// ```
/// use qkvault_parallel::dealt;
///
/// // Runs of 4 keys over 3 ranks: 0 to 3, 12 to 15 are on rank 0, and so on; 17 keys are 8, 5 and 4.
/// assert_eq!([0, 1, 2].map(|rank| dealt(rank, 3, 4, 17)), [8, 5, 4]);
/// ```
#[must_use]
pub const fn dealt(rank: u32, ranks: u32, run: u32, length: i64) -> i64 {
    let (run, round) = (run as i64, ranks as i64 * run as i64);
    let rest = length % round - rank as i64 * run;
    let rest = if rest < 0 {
        0
    } else if rest > run {
        run
    } else {
        rest
    };
    length / round * run + rest
}

impl fmt::Display for Sharding {
    /// `gather over 4 ranks, zig-zag, 2 groups of heads`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sharding { ranks, scheme, order } = self;
        let order = match order {
            TokenOrder::ZigZag => "zig-zag",
            TokenOrder::Contiguous => "contiguous",
        };
        match scheme {
            Scheme::Gather { groups: 1 } => write!(f, "gather over {ranks} ranks, {order}"),
            Scheme::Gather { groups } => write!(f, "gather over {ranks} ranks, {order}, {groups} groups of heads"),
            Scheme::Heads => write!(f, "heads over {ranks} ranks, {order}"),
            Scheme::Ring => write!(f, "ring over {ranks} ranks, {order}"),
            Scheme::Decode { run } => write!(f, "decode over {ranks} ranks, keys dealt in runs of {run}"),
        }
    }
}
