//! Roles: which operand of an attention a tensor of a plan is. Their unique ids are in
//! `role_uid.rs`.

use serde::{Deserialize, Serialize};

/// Which operand of an attention a tensor is.
///
/// Operands of score expressions are numbered by first use in the expression's canonical order
/// ([`crate::expr::ScoreExpr`] knows their names).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Role {
    /// Queries.
    Q,
    /// Keys (or the pool of key pages).
    K,
    /// Values (or the pool of value pages).
    V,
    /// Output.
    O,
    /// Log-sum-exp of each row, natural logarithm, f32, (batch, heads, queries, 1).
    Stats,
    /// Largest masked score of each row, f32.
    Max,
    /// Sum of exponentials of each row, relative to its maximum, f32.
    SumExp,
    /// Gradient of the output.
    DO,
    /// Gradient of the queries.
    DQ,
    /// Gradient of the keys.
    DK,
    /// Gradient of the values.
    DV,
    /// Queries a second time, in 8 bits scaled along the sequence, with Q's type and layout.
    QT,
    /// Keys a second time, in 8 bits scaled along the sequence, with K's type and layout.
    KT,
    /// Gradient of the output a second time, in 8 bits scaled along the sequence, with dO's type and layout.
    DOT,
    /// Gradient of the output in 16 bits, besides the 8-bit one.
    DOHalf,
    /// Softmax scale: one f32 on the host, read at launch.
    Scale,
    /// A scalar of the score expression or mask predicate: one number on the host, read at launch.
    Scalar(u16),
    /// The position of the first query: one i32 on the host, read at launch ([`crate::Origins`]).
    QueryOrigin,
    /// The position of the first key: one i32 on the host, read at launch.
    KeyOrigin,
    /// A tensor of the score expression or mask predicate.
    ScoreTensor(u16),
    /// Gradient of a tensor of the score expression.
    DScoreTensor(u16),
    /// Query lengths, i32, one per sequence.
    SeqLenQ,
    /// Key/value lengths, i32, one per sequence.
    SeqLenKv,
    /// Query lengths, declared a second time with an entry for each query: the memory of [`SeqLenQ`](Role::SeqLenQ).
    SeqLenQWhole,
    /// Key/value lengths, declared a second time with an entry for each query: the memory of
    /// [`SeqLenKv`](Role::SeqLenKv).
    SeqLenKvWhole,
    /// Offsets at which the sequences of a varlen operand begin; batch + 1 entries.
    Offsets(Varlen),
    /// Page table of K.
    PageTableK,
    /// Page table of V.
    PageTableV,
    /// Learnable sink logits, f32, one per query head.
    Sink,
    /// Gradient of the sink logits.
    DSink,
    /// Philox seed, i64.
    DropoutSeed,
    /// Philox offset, i64.
    DropoutOffset,
    /// Keep mask of dropout, which the caller gives.
    DropoutMask,
    /// The 128×128 tiles that are computed, one bit each.
    BlockMask,
    /// The keys of drafts that each query sees: a row of 64 bits, as two i32 of which the first has the lower bits, for
    /// each query. Bit `j` is for the key of the sequence's query `j`. Rows lie as those of varlen queries do, or for
    /// dense ones as (batch, queries).
    DraftTree,
    /// FP8: factor that converts stored values to real ones.
    Descale(Scaled),
    /// FP8: factor that is applied before values are stored.
    ScaleOf(Scaled),
    /// FP8: largest magnitude before scaling.
    Amax(Scaled),
    /// Buffer of the backward that the launcher provides: row sums of dO·O.
    SoftmaxSum,
    /// Buffer of the backward that the launcher provides: dQ in f32.
    DqAccum,
    /// Buffer of the backward that the launcher provides: dK before heads are summed.
    DkFullHeads,
    /// Buffer of the backward that the launcher provides: dV before heads are summed.
    DvFullHeads,
    /// Conversion: the tensor in 16 or 32 bits.
    Wide,
    /// Conversion: the tensor in 8 bits.
    Narrow,
    /// Conversion: factor that is applied before numbers are stored in 8 bits, f32.
    NarrowScale,
    /// Conversion: factor that turns numbers in 8 bits into real ones, f32, or a power of two for each block.
    NarrowDescale,
    /// Conversion: largest magnitude of the numbers before scaling, f32.
    NarrowAmax,
    /// Update of scales: the largest magnitudes of the steps before, f32 ([`ScaleUpdate`](crate::ScaleUpdate)).
    AmaxHistory,
    /// Append: the keys of a step ([`CacheAppend`](crate::CacheAppend)).
    NewK,
    /// Append: the values of a step.
    NewV,
    /// Combination: the result of a sum, a copy or a fill.
    Into,
    /// Combination: a part, by its place.
    Part(u16),
    /// Combination: Stats of a part, f32.
    PartStats(u16),
    /// Combination: which rows of a part count, u8, (batch, 1, rows, 1): 0 for a row that is empty whatever its memory
    /// holds.
    PartRows(u16),
}

/// Operands that can be varlen. Each has its own offsets, which count elements of that operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "named like their roles")]
pub enum Varlen {
    Q,
    K,
    V,
    O,
    Stats,
    DO,
    DQ,
    DK,
    DV,
    DOHalf,
    NewK,
    NewV,
}

/// Operands that have FP8 scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(
    missing_docs,
    reason = "named like their roles; S is the probabilities, DP their gradient, QT, KT and DOT the forms scaled along the sequence"
)]
pub enum Scaled {
    Q,
    K,
    V,
    S,
    O,
    DO,
    DP,
    DQ,
    DK,
    DV,
    QT,
    KT,
    DOT,
}

impl Varlen {
    pub(crate) const ALL: [Varlen; 12] = [
        Varlen::Q,
        Varlen::K,
        Varlen::V,
        Varlen::O,
        Varlen::Stats,
        Varlen::DO,
        Varlen::DQ,
        Varlen::DK,
        Varlen::DV,
        Varlen::DOHalf,
        Varlen::NewK,
        Varlen::NewV,
    ];
}

impl Scaled {
    pub(crate) const ALL: [Scaled; 13] = [
        Scaled::Q,
        Scaled::K,
        Scaled::V,
        Scaled::S,
        Scaled::O,
        Scaled::DO,
        Scaled::DP,
        Scaled::DQ,
        Scaled::DK,
        Scaled::DV,
        Scaled::QT,
        Scaled::KT,
        Scaled::DOT,
    ];
}

impl Role {
    /// The role whose memory this one reads: usually its own. A role that a graph declares a second time has the memory
    /// of the first; callers do not bind it, and a launch passes the address of the other.
    #[must_use]
    pub const fn memory(self) -> Role {
        match self {
            Role::SeqLenQWhole => Role::SeqLenQ,
            Role::SeqLenKvWhole => Role::SeqLenKv,
            own => own,
        }
    }

    /// Whether the operand is one number on the host, read at launch.
    #[must_use]
    pub const fn is_scalar(self) -> bool {
        matches!(self, Role::Scale | Role::Scalar(_) | Role::QueryOrigin | Role::KeyOrigin)
    }

    /// Whether a launch writes this operand.
    #[must_use]
    pub const fn is_output(self, backward: bool) -> bool {
        match self {
            Role::O | Role::Stats | Role::Max | Role::SumExp => !backward,
            Role::DQ | Role::DK | Role::DV | Role::DSink | Role::DScoreTensor(_) | Role::Amax(_) => true,
            Role::SoftmaxSum | Role::DqAccum | Role::DkFullHeads | Role::DvFullHeads => true,
            _ => false,
        }
    }

    /// Whether kernels follow the operand's numbers to other memory: lengths, offsets and page tables. Wrong ones make
    /// them read and write outside the operands.
    #[must_use]
    pub const fn is_followed(self) -> bool {
        let length = matches!(self, Role::SeqLenQ | Role::SeqLenKv | Role::SeqLenQWhole | Role::SeqLenKvWhole);
        length || matches!(self, Role::Offsets(_) | Role::PageTableK | Role::PageTableV)
    }

    /// Whether the launcher provides this buffer itself.
    #[must_use]
    pub const fn is_internal(self) -> bool {
        matches!(self, Role::SoftmaxSum | Role::DqAccum | Role::DkFullHeads | Role::DvFullHeads)
    }
}
