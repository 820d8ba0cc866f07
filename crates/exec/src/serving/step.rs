//! One step of a serving engine: new tokens, keys and pages of each sequence.

/// The number of rows of each sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows<'a> {
    /// One row in each of this many sequences: a decode.
    One(usize),
    /// The rows of each sequence.
    Lengths(&'a [i32]),
    /// The rows before each sequence, and the rows of all sequences (`cu_seqlens`): one entry more than sequences.
    Cumulative(&'a [i64]),
}

impl Rows<'_> {
    /// The number of sequences.
    #[must_use]
    pub const fn sequences(&self) -> usize {
        match self {
            Rows::One(n) => *n,
            Rows::Lengths(list) => list.len(),
            Rows::Cumulative(list) => list.len().saturating_sub(1),
        }
    }

    /// The rows of a sequence. Negative or saturated if the input is invalid.
    #[must_use]
    pub fn length(&self, sequence: usize) -> i64 {
        match self {
            Rows::One(_) => 1,
            Rows::Lengths(list) => i64::from(list[sequence]),
            Rows::Cumulative(list) => list[sequence + 1].saturating_sub(list[sequence]),
        }
    }
}

/// The input of one launch: its sequences in the order of the batch, at most as many as the plan has.
///
/// The other sequences of the plan are idle: their lengths are zero, and their outputs are undefined.
#[derive(Debug)]
pub struct Step<'a, T = Vec<i32>> {
    /// New tokens of each sequence: the queries of this launch.
    pub queries: Rows<'a>,
    /// Keys of each sequence, including those of the new tokens.
    pub keys: Rows<'a>,
    /// Pages of each sequence's keys, in order, as indices into the pool. Empty if keys are not paged. A sequence may
    /// have more pages than its keys fill; the others are not read.
    pub pages: &'a [T],
    /// Pages of each sequence's values, if they differ from those of the keys.
    pub value_pages: Option<&'a [T]>,
}

impl<T> Clone for Step<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Step<'_, T> {}

impl<'a> Step<'a> {
    /// A step over keys that are not paged.
    #[must_use]
    pub const fn unpaged(queries: Rows<'a>, keys: Rows<'a>) -> Step<'a> {
        Step { queries, keys, pages: &[], value_pages: None }
    }
}

impl<'a, T: AsRef<[i32]>> Step<'a, T> {
    /// A step over paged keys and values that have one table.
    #[must_use]
    pub const fn paged(queries: Rows<'a>, keys: Rows<'a>, pages: &'a [T]) -> Step<'a, T> {
        Step { queries, keys, pages, value_pages: None }
    }
}
