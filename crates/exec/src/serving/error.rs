//! Errors in a step; every error names the operand.

use std::fmt;
use std::ops::Deref;

use qkvault_graph::Role;

/// One error in the input of a batch's step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchInputError {
    /// The plan lacks lengths, or has an operand that a step cannot fill.
    #[error("the plan cannot run a step: {what}; describe it with lengths, varlen or paged operands")]
    NoStep {
        /// What is missing or wrong.
        what: String,
    },
    /// The step has more sequences than the plan.
    #[error("{operand} has {given} sequences, and the plan has at most {most}; use a plan for a larger batch")]
    Sequences {
        /// The operand.
        operand: Role,
        /// Sequences of the step.
        given: usize,
        /// Most sequences of the plan.
        most: usize,
    },
    /// Lengths, offsets or a table have another number of sequences than the queries.
    #[error(
        "{operand} has {given} sequences, and the queries have {needed}; give one entry per sequence, not per token \
         or page"
    )]
    OtherBatch {
        /// The operand.
        operand: Role,
        /// Sequences in it.
        given: usize,
        /// Sequences of the queries.
        needed: usize,
    },
    /// Cumulative lengths do not begin with 0, or decrease.
    #[error(
        "{operand}: cumulative lengths begin with 0 and never decrease, and entry {entry} is {given} after {before}; \
         give the rows before each sequence"
    )]
    Falls {
        /// The operand.
        operand: Role,
        /// Index of the entry.
        entry: usize,
        /// Its value.
        given: i64,
        /// The entry before it; 0 before the first.
        before: i64,
    },
    /// A length is negative or over the plan's maximum.
    #[error(
        "{operand}: sequence {sequence} has {given} rows, and the plan allows 0 to {most}; use a plan for longer \
         sequences"
    )]
    Length {
        /// The operand.
        operand: Role,
        /// Index of the sequence.
        sequence: usize,
        /// Its rows.
        given: i64,
        /// The plan's maximum.
        most: i64,
    },
    /// A sequence has fewer keys than queries, under a mask that aligns the last query with the last key.
    #[error(
        "{operand}: sequence {sequence} has {queries} queries and {keys} keys; the result of a query without keys is \
         undefined: write the keys of new tokens first, and count them"
    )]
    NoKey {
        /// The operand.
        operand: Role,
        /// Index of the sequence.
        sequence: usize,
        /// Its queries.
        queries: i64,
        /// Its keys.
        keys: i64,
    },
    /// The sequences have more rows than the buffer.
    #[error(
        "{operand}: the sequences have {given} rows, and the buffer has room for {room}; use a plan for a larger one"
    )]
    Tokens {
        /// The operand.
        operand: Role,
        /// Rows of all sequences.
        given: i64,
        /// Rows of the buffer.
        room: i64,
    },
    /// An offset exceeds 32 bits.
    #[error(
        "{operand}: sequence {sequence} begins at element {given}, and this cuDNN's offsets are 32 bits wide; use \
         cuDNN 9.6 or newer, or smaller buffers"
    )]
    Overflow {
        /// The operand.
        operand: Role,
        /// Index of the sequence.
        sequence: usize,
        /// Its first element.
        given: i64,
    },
    /// A sequence has too few pages for its length.
    #[error(
        "{operand}: sequence {sequence} has {given} pages, and its {rows} rows need {needed}; give every page in use"
    )]
    Short {
        /// The table.
        operand: Role,
        /// Index of the sequence.
        sequence: usize,
        /// Pages given.
        given: usize,
        /// Its rows.
        rows: i64,
        /// Pages needed.
        needed: usize,
    },
    /// A page is outside the pool.
    #[error(
        "{operand}: entry {entry} of sequence {sequence} is page {page}, and the pool has pages 0 to {last}; a kernel \
         would read memory outside the pool"
    )]
    Page {
        /// The table.
        operand: Role,
        /// Index of the sequence.
        sequence: usize,
        /// Index of the entry in the sequence.
        entry: usize,
        /// The page.
        page: i32,
        /// The last page of the pool.
        last: i64,
    },
    /// The sequences of a backward's dQ do not lie at the places of those of Q.
    #[error(
        "{operand}: sequence {sequence} begins at row {given}, and that of Q at row {needed}; cuDNN writes a wrong dQ \
         then: make both offsets from the same cumulative lengths"
    )]
    Gaps {
        /// The operand.
        operand: Role,
        /// Index of the sequence.
        sequence: usize,
        /// Its first row.
        given: i64,
        /// The first row of the same sequence in Q.
        needed: i64,
    },
    /// A word on the device differs from the host copy.
    #[error(
        "{operand}: word {word} on the device is {found}, and the update wrote {expected}; another kernel wrote there"
    )]
    Overwritten {
        /// The operand.
        operand: Role,
        /// Index of the 32-bit word in the operand.
        word: usize,
        /// The word on the device.
        found: i32,
        /// The word that the update wrote.
        expected: i32,
    },
}

/// All errors in a step; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchInputErrors(Vec<BatchInputError>);

impl BatchInputErrors {
    /// `Ok` without errors, else all of them.
    pub(crate) fn check(errors: Vec<BatchInputError>) -> Result<(), BatchInputErrors> {
        if errors.is_empty() { Ok(()) } else { Err(BatchInputErrors(errors)) }
    }
}

impl From<BatchInputError> for BatchInputErrors {
    fn from(error: BatchInputError) -> BatchInputErrors {
        BatchInputErrors(vec![error])
    }
}

impl Deref for BatchInputErrors {
    type Target = [BatchInputError];

    fn deref(&self) -> &[BatchInputError] {
        &self.0
    }
}

impl std::error::Error for BatchInputErrors {}

impl fmt::Display for BatchInputErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}
