//! What can be wrong with the operands of an attention on the CPU, and what the oracle does not model.

use qkvault_graph::{DType, Refusal, Role};

/// Why an attention could not be computed here.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// An operand that the attention has was not given.
    #[error("{role} is not there; this attention reads it: add a buffer for it")]
    Missing {
        /// The operand.
        role: Role,
    },
    /// Bytes that are no whole number of elements.
    #[error("{bytes} bytes are no whole number of {dtype} elements of {} bytes", dtype.size())]
    Torn {
        /// Element type.
        dtype: DType,
        /// How many bytes came.
        bytes: usize,
    },
    /// A buffer of another element type than the operand.
    #[error("{role} is {needed}, but its buffer holds {given}")]
    WrongType {
        /// The operand.
        role: Role,
        /// Element type of the buffer.
        given: DType,
        /// Element type of the operand.
        needed: DType,
    },
    /// A buffer that is too small.
    #[error("{role} needs a buffer of {needed} elements, but {given} came")]
    TooShort {
        /// The operand.
        role: Role,
        /// Elements that came.
        given: usize,
        /// Elements needed.
        needed: usize,
    },
    /// A length below zero or above the dim.
    #[error("{role} of sequence {sequence} is {given}; it must be within 0..={most}")]
    Length {
        /// Which lengths.
        role: Role,
        /// Which sequence.
        sequence: usize,
        /// The length.
        given: i64,
        /// The most that the dims allow.
        most: usize,
    },
    /// Offsets that fall, or a sequence that leaves its buffer.
    #[error(
        "{role}: sequence {sequence} begins at element {given}, and its rows end at {end} of {room}; offsets count elements \
         (not tokens), must not fall, and every row must lie inside the buffer"
    )]
    Offset {
        /// Which offsets.
        role: Role,
        /// Which sequence.
        sequence: usize,
        /// Where it begins, in elements.
        given: i64,
        /// One past its last element.
        end: i64,
        /// Elements there are.
        room: i64,
    },
    /// A page number that the pool does not have.
    #[error("{role}: page {entry} of sequence {sequence} is number {given}, but the pool has {pages} pages")]
    Page {
        /// Which table.
        role: Role,
        /// Which sequence.
        sequence: usize,
        /// Which entry of its row.
        entry: usize,
        /// The page number.
        given: i64,
        /// Pages in the pool.
        pages: i64,
    },
    /// Dropout by Philox, without its mask.
    #[error(
        "dropout by Philox needs the mask that the library drew: which Philox number belongs to which element is not documented, \
         so let the library dump its mask and give it as the dropout mask"
    )]
    DropoutMask,
    /// Something that is described but that the oracle does not compute.
    #[error("the CPU reference does not compute {what}: {why}")]
    NotModelled {
        /// What.
        what: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// A backward was asked of a forward.
    #[error("this is a forward: derive its backward with `Attention::backward` and validate that")]
    NotABackward,
    /// A row that the attention does not have.
    #[error("there is no row (batch {}, head {}, query {}); this attention has {batch} sequences of {heads} query heads, and that sequence {queries} queries", row.0, row.1, row.2)]
    Row {
        /// Batch, query head, query.
        row: (usize, usize, usize),
        /// Sequences there are.
        batch: usize,
        /// Query heads there are.
        heads: usize,
        /// Queries of that sequence.
        queries: usize,
    },
    /// The forward that belongs to a backward is not valid by itself.
    #[error("the forward of this backward is not valid: {0}")]
    Forward(Refusal),
    /// Dims whose product overflows, or that no memory holds.
    #[error("{role} spans more elements than this machine can address")]
    TooLarge {
        /// The operand.
        role: Role,
    },
}
