//! Errors for invalid operands, and for attentions that the oracle does not compute.

use qkvault_graph::{DType, Refusal, Role};

/// Why the oracle could not compute an attention.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// An operand of the attention is not bound.
    #[error("{role} is not there; this attention reads it: add a buffer for it")]
    Missing {
        /// The operand.
        role: Role,
    },
    /// The bytes are not a whole number of elements.
    #[error("{bytes} bytes are not a whole number of {dtype} elements of {} bytes", dtype.size())]
    Torn {
        /// Element type.
        dtype: DType,
        /// Number of bytes given.
        bytes: usize,
    },
    /// A buffer's element type differs from the operand's.
    #[error("{role} is {needed}, but its buffer holds {given}")]
    WrongType {
        /// The operand.
        role: Role,
        /// Element type of the buffer.
        given: DType,
        /// Element type of the operand.
        needed: DType,
    },
    /// A buffer is too small.
    #[error("{role} needs a buffer of {needed} elements, but {given} came")]
    TooShort {
        /// The operand.
        role: Role,
        /// Number of elements given.
        given: usize,
        /// Number of elements needed.
        needed: usize,
    },
    /// A length is negative or larger than the dim.
    #[error("{role} of sequence {sequence} is {given}; it must be within 0..={most}")]
    Length {
        /// The role of the lengths.
        role: Role,
        /// Index of the sequence.
        sequence: usize,
        /// The length.
        given: i64,
        /// The largest valid length.
        most: usize,
    },
    /// An origin is negative or too large.
    #[error("{role} is {given}; it must be within 0..={most}")]
    Origin {
        /// The role of the origin.
        role: Role,
        /// The origin.
        given: i64,
        /// The largest valid origin.
        most: usize,
    },
    /// A scale of an 8-bit operand is zero, negative, infinite or no number.
    #[error("{role} is {given}; a scale is a positive finite number, and 1 for a tensor of zeros")]
    Scale {
        /// The role of the scale.
        role: Role,
        /// The scale.
        given: f64,
    },
    /// Offsets decrease, or a sequence extends past its buffer.
    #[error(
        "{role}: sequence {sequence} begins at element {given}, and its rows end at {end} of {room}; offsets count elements \
         (not tokens), must not fall, and every row must lie inside the buffer"
    )]
    Offset {
        /// The role of the offsets.
        role: Role,
        /// Index of the sequence.
        sequence: usize,
        /// The first element of the sequence.
        given: i64,
        /// One past its last element.
        end: i64,
        /// Number of elements of the buffer.
        room: i64,
    },
    /// A page table contains a page number that the pool does not have.
    #[error("{role}: page {entry} of sequence {sequence} is number {given}, but the pool has {pages} pages")]
    Page {
        /// The role of the table.
        role: Role,
        /// Index of the sequence.
        sequence: usize,
        /// Index of the entry in the sequence's row.
        entry: usize,
        /// The page number.
        given: i64,
        /// Number of pages in the pool.
        pages: i64,
    },
    /// Dropout by Philox needs its mask, which is not bound.
    #[error(
        "dropout by Philox needs the mask that the library drew: which Philox number belongs to which element is not documented, \
         so let the library dump its mask and give it as the dropout mask"
    )]
    DropoutMask,
    /// The description is valid, but the oracle does not compute this feature.
    #[error("the CPU reference does not compute {what}: {why}")]
    NotModelled {
        /// The feature.
        what: &'static str,
        /// Why the oracle does not compute it.
        why: &'static str,
    },
    /// `backward` was called with a forward.
    #[error("this is a forward: derive its backward with `Attention::backward` and validate that")]
    NotABackward,
    /// The attention does not have this row.
    #[error("there is no row (batch {}, head {}, query {}); this attention has {batch} sequences of {heads} query heads, and that sequence {queries} queries", row.0, row.1, row.2)]
    Row {
        /// Batch, query head, query.
        row: (usize, usize, usize),
        /// Number of sequences.
        batch: usize,
        /// Number of query heads.
        heads: usize,
        /// Number of queries of that sequence.
        queries: usize,
    },
    /// The forward of a backward is not valid by itself.
    #[error("the forward of this backward is not valid: {0}")]
    Forward(Refusal),
    /// There is no room for the numbers. Nothing was taken for them.
    #[error(
        "{what} of this attention take {needed} bytes of memory, and this process gets at most {most}; describe a \
         smaller attention, or give the process more memory"
    )]
    Memory {
        /// The numbers.
        what: &'static str,
        /// Bytes that they take.
        needed: u64,
        /// The most that the process gets now.
        most: u64,
    },
    /// The product of the dims overflows or exceeds the address space.
    #[error("{role} spans more elements than this machine can address")]
    TooLarge {
        /// The operand.
        role: Role,
    },
}
