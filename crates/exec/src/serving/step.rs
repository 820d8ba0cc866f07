//! One step, as an engine has it: new tokens, keys and pages of each sequence.

/// Rows of each sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows<'a> {
    /// One row in each of this many sequences: a decode.
    One(usize),
    /// The rows of each sequence.
    Lengths(&'a [i32]),
    /// The rows before each sequence, and those of all sequences last (`cu_seqlens`): one entry more than there are sequences.
    Cumulative(&'a [i64]),
}

impl Rows<'_> {
    /// How many sequences there are.
    #[must_use]
    pub const fn sequences(&self) -> usize {
        match self {
            Rows::One(n) => *n,
            Rows::Lengths(list) => list.len(),
            Rows::Cumulative(list) => list.len().saturating_sub(1),
        }
    }

    /// Rows of a sequence; negative, or saturated, where what was given is no count.
    #[must_use]
    pub fn length(&self, sequence: usize) -> i64 {
        match self {
            Rows::One(_) => 1,
            Rows::Lengths(list) => i64::from(list[sequence]),
            Rows::Cumulative(list) => list[sequence + 1].saturating_sub(list[sequence]),
        }
    }
}

/// What one launch computes: sequences in the order of the batch, fewer than the plan takes or as many.
///
/// Scalars of the batch beyond them are idle: their lengths are zero, and what is computed for them is undefined.
#[derive(Debug)]
pub struct Step<'a, T = Vec<i32>> {
    /// New tokens of each sequence, whose queries are asked in this launch.
    pub queries: Rows<'a>,
    /// Keys of each sequence, those of the new tokens included.
    pub keys: Rows<'a>,
    /// Pages of each sequence's keys, in order; positions in the pool. Empty where keys are not paged. A sequence may have more
    /// pages than its keys fill, as one that is yet to grow: those are not looked at.
    pub pages: &'a [T],
    /// Pages of its values, where they are others.
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
