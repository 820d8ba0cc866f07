//! What a rank does, as data: buffers, pieces of them, and steps on two streams.

use qkvault_graph::{Role, Tensor};
use serde::{Deserialize, Serialize};

use crate::{Counted, Slice};

/// A buffer of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankBuffer {
    /// Its name, for people.
    pub name: String,
    /// The operand that it is, if the caller brings it; else it is scratch memory.
    pub operand: Option<Role>,
    /// Dims, strides and element type. It is dense, also for varlen operands, whose batch here is 1.
    pub tensor: Tensor,
}

/// A part of a buffer: a box of (batch, head, token, element).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferBox {
    /// The number of the buffer.
    pub buffer: u32,
    /// Where it begins along each dim.
    pub start: [i64; 4],
    /// Its extents.
    pub dims: [i64; 4],
}

/// A part of an operand that a rank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldPart {
    /// Where the part begins in the operand of the whole attention.
    pub start: [i64; 4],
    /// Where it lies in the rank's buffer.
    pub piece: BufferBox,
}

/// The stream of a step. Steps of one stream follow each other; those of others are ordered by marks alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    /// Launches of attention, and what they wait for.
    Compute,
    /// Exchanges between ranks, and copies to and from their buffers.
    Exchange,
    /// Launches that may run beside those of `Compute`, and before them: the first blocks of one fill what the last of
    /// the other leave idle. It begins with `Compute` and ends before it.
    Beside,
}

/// One message of an exchange. Its piece is contiguous in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// The other rank.
    pub peer: u32,
    /// Whether this rank sends it.
    pub send: bool,
    /// What is sent, or where it is received.
    pub piece: BufferBox,
}

/// What a launch binds to a role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bind {
    /// Memory of this rank.
    Piece(BufferBox),
    /// The number that the caller gives for this role of the whole attention.
    Given(Role),
    /// An integer.
    Int(i32),
    /// A number for each sequence that follows from the lengths of a step: see [`Slice`].
    Sequences(PerSequence),
}

/// A number for each sequence, or for each row of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PerSequence {
    /// Queries of this part.
    Queries,
    /// Keys of this part.
    Keys,
    /// The position of the part's first query among those of its sequence.
    FirstQuery,
    /// The position of the part's first key among those of its sequence.
    FirstKey,
    /// Queries of the whole sequence.
    AllQueries,
    /// Keys of the whole sequence.
    AllKeys,
    /// Elements before each sequence, of an operand with so many elements to a row of queries; and one past the last.
    QueryOffsets(i64),
    /// Elements before each sequence, of an operand with so many elements to a row of keys; and one past the last.
    KeyOffsets(i64),
    /// Which rows of a partial result count.
    Rows(Counted),
}

/// A launch of one plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanLaunch {
    /// The stream.
    pub on: Stream,
    /// The number of the plan in the schedule.
    pub plan: u32,
    /// What each role is bound to.
    pub binds: Vec<(Role, Bind)>,
    /// How the lengths of the sequences of this part follow from those of the whole, if it has lengths.
    pub slice: Option<Slice>,
}

/// What a rank does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RankStep {
    /// Copies a piece to another of the same extents, whatever their strides.
    Copy {
        /// The stream.
        on: Stream,
        /// What is copied.
        from: BufferBox,
        /// Where to.
        to: BufferBox,
    },
    /// Fills a piece with one number: 0, or minus infinity in the Stats of rows without keys.
    Fill {
        /// The stream.
        on: Stream,
        /// The piece.
        piece: BufferBox,
        /// Whether the number is minus infinity.
        hidden: bool,
    },
    /// Sends and receives, all at once, on the stream of exchanges.
    Exchange {
        /// The messages. Two ranks list those between them in the same order.
        transfers: Vec<Transfer>,
    },
    /// One launch.
    Launch(PlanLaunch),
    /// Merges outputs of the same queries over different keys by their Stats, in f32, on the stream of launches.
    Merge {
        /// O and Stats of each part.
        parts: Vec<(BufferBox, BufferBox)>,
        /// Which rows of each part count, for attentions with lengths; else there are none, and all count.
        rows: Vec<Counted>,
        /// The sink logits of these heads, which join here.
        sink: Option<BufferBox>,
        /// The merged O.
        o: BufferBox,
        /// The merged Stats.
        stats: BufferBox,
    },
    /// Adds up pieces of the same extents in this order, in f32, and rounds once; on the stream of launches.
    Sum {
        /// What is added.
        parts: Vec<BufferBox>,
        /// As in a merge.
        rows: Vec<Counted>,
        /// The sum.
        into: BufferBox,
    },
    /// Draws a part of the dropout mask of the whole attention, on the stream of launches.
    Keep {
        /// The part of the mask.
        into: BufferBox,
        /// The seed.
        seed: BufferBox,
        /// The offset.
        offset: BufferBox,
        /// Its first query head, query and key in the whole attention. It has all of the batch.
        first: [i64; 3],
        /// Query heads of the whole attention.
        heads: u32,
        /// What has a random number below this one is dropped.
        below: u32,
    },
    /// Marks a place of a stream.
    Record {
        /// The stream.
        on: Stream,
        /// The mark, which is recorded once.
        mark: u32,
    },
    /// Makes a stream wait for a mark of another one.
    Wait {
        /// The stream that waits.
        on: Stream,
        /// The mark.
        mark: u32,
    },
}

/// What one rank has and does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankSchedule {
    /// Its buffers: first those that the caller brings.
    pub buffers: Vec<RankBuffer>,
    /// The parts of operands that lie in the caller's buffers.
    pub held: Vec<HeldPart>,
    /// The steps, in the order in which the host queues them.
    pub steps: Vec<RankStep>,
}

impl RankStep {
    /// The stream that the step is queued on.
    #[must_use]
    pub const fn stream(&self) -> Stream {
        match self {
            RankStep::Copy { on, .. }
            | RankStep::Fill { on, .. }
            | RankStep::Record { on, .. }
            | RankStep::Wait { on, .. } => *on,
            RankStep::Exchange { .. } => Stream::Exchange,
            RankStep::Launch(launch) => launch.on,
            RankStep::Merge { .. } | RankStep::Sum { .. } | RankStep::Keep { .. } => Stream::Compute,
        }
    }
}

impl BufferBox {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> i64 {
        self.dims.iter().product()
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.dims.contains(&0)
    }

    /// Elements from the start of the buffer to the piece's first element.
    #[must_use]
    pub fn offset(&self, tensor: &Tensor) -> i64 {
        self.start.iter().zip(tensor.strides).map(|(start, stride)| start * stride).sum()
    }

    /// Whether its elements lie one after another in memory, in any order of dims.
    #[must_use]
    pub fn is_contiguous(&self, tensor: &Tensor) -> bool {
        let last: i64 = self.dims.iter().zip(tensor.strides).map(|(n, stride)| (n - 1) * stride).sum();
        last + 1 == self.len()
    }

    /// Whether it lies inside a buffer of these dims.
    #[must_use]
    pub fn fits(&self, tensor: &Tensor) -> bool {
        (0..4).all(|d| self.start[d] >= 0 && self.dims[d] >= 0 && self.start[d] + self.dims[d] <= tensor.dims[d])
    }

    /// Whether two pieces share an element.
    #[must_use]
    pub fn overlaps(&self, other: &BufferBox) -> bool {
        let apart = |d: usize| {
            self.start[d] + self.dims[d] <= other.start[d] || other.start[d] + other.dims[d] <= self.start[d]
        };
        self.buffer == other.buffer && !self.is_empty() && !other.is_empty() && !(0..4).any(apart)
    }

    /// The piece of other heads, counted in the buffer.
    #[must_use]
    pub const fn heads(mut self, first: i64, count: i64) -> BufferBox {
        self.start[1] = first;
        self.dims[1] = count;
        self
    }

    /// The piece of other tokens, counted in the buffer.
    #[must_use]
    pub const fn tokens(mut self, first: i64, count: i64) -> BufferBox {
        self.start[2] = first;
        self.dims[2] = count;
        self
    }
}
