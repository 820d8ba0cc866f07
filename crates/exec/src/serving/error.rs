//! What can be wrong with a step; every error names the operand.

use std::fmt;
use std::ops::Deref;

use qkvault_graph::Role;

/// One thing wrong with a step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchInputError {
    /// The plan lacks an operand of a step, or has one that no step gives.
    #[error("the plan has no step of its own: {what}; describe it with lengths, varlen or paged operands")]
    NoStep {
        /// What is missing or odd.
        what: String,
    },
    /// More sequences than the plan takes.
    #[error("{operand} has {given} sequences, and the plan takes {most}; use a plan for a larger batch")]
    Sequences {
        /// The operand.
        operand: Role,
        /// What came.
        given: usize,
        /// What the plan takes.
        most: usize,
    },
    /// Lengths, offsets or a table of another number of sequences than the queries.
    #[error(
        "{operand} has {given} sequences, and the queries have {needed}; give one entry per sequence, not per token or page"
    )]
    OtherBatch {
        /// The operand.
        operand: Role,
        /// Sequences in it.
        given: usize,
        /// Sequences of the queries.
        needed: usize,
    },
    /// Cumulative lengths that are none.
    #[error(
        "{operand}: cumulative lengths begin with 0 and never fall, and entry {entry} is {given} after {before}; give the rows before \
         each sequence"
    )]
    Falls {
        /// The operand.
        operand: Role,
        /// Which entry.
        entry: usize,
        /// What it is.
        given: i64,
        /// The entry before it; 0 before the first.
        before: i64,
    },
    /// A length below zero or over the plan's maximum.
    #[error(
        "{operand}: sequence {sequence} has {given} rows, and the plan takes 0 to {most}; use a plan for longer ones"
    )]
    Length {
        /// The operand.
        operand: Role,
        /// Which sequence.
        sequence: usize,
        /// What came.
        given: i64,
        /// The plan's maximum.
        most: i64,
    },
    /// Queries of a sequence with fewer keys than queries, under a mask that lets the last query see the last key.
    #[error(
        "{operand}: sequence {sequence} has {queries} queries and {keys} keys; a query that sees no key has no defined result: write the \
         keys of new tokens first, and count them"
    )]
    NoKey {
        /// The operand.
        operand: Role,
        /// Which sequence.
        sequence: usize,
        /// Its queries.
        queries: i64,
        /// Its keys.
        keys: i64,
    },
    /// More rows than the buffer has room for.
    #[error(
        "{operand}: the sequences have {given} rows, and the buffer has room for {room}; use a plan for a larger one"
    )]
    Tokens {
        /// The operand.
        operand: Role,
        /// Rows of all sequences.
        given: i64,
        /// Room.
        room: i64,
    },
    /// An offset that 32 bits do not hold.
    #[error(
        "{operand}: sequence {sequence} begins at element {given}, and this cuDNN's offsets are 32 bits wide; use cuDNN 9.6 or newer, or \
         smaller buffers"
    )]
    Overflow {
        /// The operand.
        operand: Role,
        /// Which sequence.
        sequence: usize,
        /// Its first element.
        given: i64,
    },
    /// Too few pages for a length.
    #[error(
        "{operand}: sequence {sequence} has {given} pages, and its {rows} rows need {needed}; give every page in use"
    )]
    Short {
        /// The table.
        operand: Role,
        /// Which sequence.
        sequence: usize,
        /// Pages given.
        given: usize,
        /// Its rows.
        rows: i64,
        /// Pages needed.
        needed: usize,
    },
    /// A page outside the pool.
    #[error(
        "{operand}: entry {entry} of sequence {sequence} is page {page}, and the pool has pages 0 to {last}; a kernel would read memory \
         that is not the pool's"
    )]
    Page {
        /// The table.
        operand: Role,
        /// Which sequence.
        sequence: usize,
        /// Which of its entries.
        entry: usize,
        /// The page.
        page: i32,
        /// The last page of the pool.
        last: i64,
    },
    /// A backward whose dQ has other room between its sequences than Q.
    #[error(
        "{operand}: sequence {sequence} begins at row {given}, and that of Q at row {needed}; cuDNN writes dQ wrongly where its sequences \
         do not lie as Q's do: make both offsets from the same cumulative lengths"
    )]
    Gaps {
        /// The operand.
        operand: Role,
        /// Which sequence.
        sequence: usize,
        /// Its first row.
        given: i64,
        /// The first row of the same sequence in Q.
        needed: i64,
    },
    /// What lies on the device is not what was put there.
    #[error("{operand}: word {word} on the device is {found}, and {expected} was put there; who wrote over it?")]
    Overwritten {
        /// The operand.
        operand: Role,
        /// Which of its 32-bit words.
        word: usize,
        /// What is there.
        found: i32,
        /// What was put there.
        expected: i32,
    },
}

/// Everything wrong with a step; at least one error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchInputErrors(Vec<BatchInputError>);

impl BatchInputErrors {
    /// Nothing if there are no errors, else all of them.
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
