//! Numbers for each sequence, and for each row of a partial result, that follow from the lengths of whole sequences.

use qkvault_graph::{Band, Corner};
use serde::{Deserialize, Serialize};

use crate::{PartLengths, PerSequence, Slice};

/// Rows of a partial result, of which some count: those that the part has computed. Attention over a sequence without
/// keys, and beyond the lengths, may leave anything in memory, so merges and sums are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// The part.
    pub slice: Slice,
    /// The band of the part; of a [`Slice::Pair`] counted in tokens from the first query and key of the pair.
    pub band: Option<Band>,
    /// Whether the rows are keys, and not queries.
    pub keys: bool,
    /// The first row, counted from the part's first; rows before that and behind the part do not count.
    pub first: i64,
    /// Number of rows.
    pub rows: i64,
    /// The sequences whose rows these are: the first, and one past the last. Else those of all; so for packed ones.
    pub sequences: Option<(i64, i64)>,
}

impl Counted {
    /// One number for each row, by sequence; packed sequences have one list. 1 for a query that sees a key, and for a
    /// key that a query sees, as lengths and band have it.
    ///
    /// # Errors
    ///
    /// As [`Slice::lengths`].
    pub fn flags(&self, queries: &[i64], keys: &[i64]) -> Result<Vec<i64>, usize> {
        let part = self.slice.lengths(queries, keys)?;
        let packed = matches!(self.slice, Slice::Packed { .. } | Slice::Pair { .. });
        let lists = if packed { 1 } else { part.queries.len() };
        let mut flags = vec![0; lists * self.rows as usize];
        for (sequence, (&q, &kv)) in part.queries.iter().zip(&part.keys).enumerate() {
            let begin = match (packed, self.keys) {
                (false, _) => 0,
                (true, false) => part.query_rows[sequence],
                (true, true) => part.key_rows[sequence],
            };
            let list = if packed { 0 } else { sequence } * self.rows as usize;
            let count = if self.keys { kv } else { q };
            // The key at which the diagonal begins.
            let diagonal = match (self.slice, self.band) {
                (Slice::Pair { .. }, _) => part.query_rows[sequence] - part.key_rows[sequence],
                (_, Some(Band { corner: Corner::BottomRight, .. })) => kv - q,
                _ => 0,
            };
            for row in 0..count {
                let seen = match self.keys {
                    true => self.is_seen(row - diagonal, q),
                    false => self.sees_a_key(row + diagonal, kv),
                };
                let at = begin + row - self.first;
                if seen && (0..self.rows).contains(&at) {
                    flags[list + at as usize] = 1;
                }
            }
        }
        if let Some((first, end)) = self.sequences.filter(|_| !packed) {
            let at = |sequence: i64| (sequence * self.rows) as usize;
            flags = flags.get(at(first)..at(end)).map(<[i64]>::to_vec).unwrap_or_default();
        }
        Ok(flags)
    }

    /// Whether a query on the diagonal at this key sees one of so many keys.
    fn sees_a_key(&self, diagonal: i64, kv: i64) -> bool {
        let Some(Band { corner: _, left, right }) = self.band else { return kv > 0 };
        let first = left.map_or(0, |left| diagonal - left + 1).max(0);
        let last = right.map_or(kv - 1, |right| diagonal + right).min(kv - 1);
        first <= last
    }

    /// Whether a key on the diagonal at this query is seen by one of so many queries.
    fn is_seen(&self, diagonal: i64, q: i64) -> bool {
        let Some(Band { corner: _, left, right }) = self.band else { return q > 0 };
        let first = right.map_or(0, |right| diagonal - right).max(0);
        let last = left.map_or(q - 1, |left| diagonal + left - 1).min(q - 1);
        first <= last
    }
}

impl PerSequence {
    /// The numbers of a launch over a part, from the lengths of the whole sequences.
    ///
    /// # Errors
    ///
    /// As [`Slice::lengths`].
    pub fn numbers(&self, slice: Option<Slice>, queries: &[i64], keys: &[i64]) -> Result<Vec<i64>, usize> {
        let part = match slice {
            None => PartLengths { queries: queries.to_vec(), keys: keys.to_vec(), ..PartLengths::default() },
            Some(slice) => slice.lengths(queries, keys)?,
        };
        let times = |list: &[i64], factor: i64| list.iter().map(|n| n * factor).collect();
        Ok(match *self {
            PerSequence::Queries => part.queries,
            PerSequence::Keys => part.keys,
            PerSequence::FirstQuery => part.first_query,
            PerSequence::FirstKey => part.first_key,
            PerSequence::AllQueries => queries.to_vec(),
            PerSequence::AllKeys => keys.to_vec(),
            PerSequence::QueryOffsets(row) => times(&part.query_rows, row),
            PerSequence::KeyOffsets(row) => times(&part.key_rows, row),
            PerSequence::Rows(counted) => counted.flags(queries, keys)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Counted = Counted {
        slice: Slice::Dealt { rank: 1, ranks: 2, run: 4 },
        band: None,
        keys: false,
        first: 0,
        rows: 3,
        sequences: None,
    };

    #[test]
    fn queries_of_sequences_without_keys_do_not_count() {
        // Of 3, 6 and 0 keys, the second rank has 0, 2 and 0.
        assert_eq!(WHOLE.flags(&[2, 2, 1], &[3, 6, 0]), Ok(vec![0, 0, 0, 1, 1, 0, 0, 0, 0]));
        let some = Counted { sequences: Some((1, 2)), ..WHOLE };
        assert_eq!(some.flags(&[2, 2, 1], &[3, 6, 0]), Ok(vec![1, 1, 0]));
        let keys = Counted { keys: true, rows: 2, ..WHOLE };
        assert_eq!(keys.flags(&[2, 2, 0], &[3, 6, 8]), Ok(vec![0, 0, 1, 1, 0, 0]));
    }

    #[test]
    fn rows_around_a_part_do_not_count_nor_those_that_its_band_hides() {
        let slice = Slice::Rows { queries: (4, 8), keys: (4, 8), to_diagonal: false };
        let part = Counted { slice, first: -1, rows: 6, ..WHOLE };
        assert_eq!(part.flags(&[7], &[9]), Ok(vec![0, 1, 1, 1, 0, 0]));
        // The sequence ends after key 5, so a window of two shows the last queries nothing.
        let band = Some(Band::window(Corner::TopLeft, 2));
        assert_eq!(Counted { band, ..part }.flags(&[8], &[5]), Ok(vec![0, 1, 1, 0, 0, 0]));
        assert_eq!(Counted { band, ..part }.flags(&[8], &[4]), Ok(vec![0; 6]));
    }

    #[test]
    fn queries_and_keys_count_as_the_band_has_them() {
        let slice = Slice::Dealt { rank: 0, ranks: 1, run: 1 };
        for corner in [Corner::TopLeft, Corner::BottomRight] {
            for (left, right) in [(None, Some(0)), (Some(2), Some(0)), (Some(3), Some(1)), (Some(1), None)] {
                for (q, kv) in [(0, 4), (3, 0), (3, 5), (5, 3), (4, 4)] {
                    let band = Band { corner, left, right };
                    let of = |keys| Counted { slice, band: Some(band), keys, first: 0, rows: 6, sequences: None };
                    let seen = |at: &dyn Fn(i64, i64) -> (i64, i64), others: i64, n: i64| {
                        i64::from((0..others).any(|other| {
                            let (row, key) = at(n, other);
                            band.keeps(row, key, q, kv)
                        }))
                    };
                    let flags = |count: i64, others: i64, at: &dyn Fn(i64, i64) -> (i64, i64)| -> Vec<i64> {
                        (0..6).map(|n| if n < count { seen(at, others, n) } else { 0 }).collect()
                    };
                    assert_eq!(of(false).flags(&[q], &[kv]), Ok(flags(q, kv, &|row, key| (row, key))), "{band:?}");
                    assert_eq!(of(true).flags(&[q], &[kv]), Ok(flags(kv, q, &|key, row| (row, key))), "{band:?}");
                }
            }
        }
    }

    #[test]
    fn packed_rows_are_one_list() {
        // Documents of 3, 2 and 4 tokens; the part has tokens 2 to 7, and keys from the first one on.
        let slice = Slice::Packed { tokens: (2, 7), to_diagonal: true };
        let keys = Counted { slice, band: None, keys: true, first: 1, rows: 8, sequences: None };
        assert_eq!(keys.flags(&[3, 2, 4], &[3, 2, 4]), Ok(vec![1, 1, 1, 1, 1, 1, 0, 0]));
        let late = Counted { slice: Slice::Packed { tokens: (6, 9), to_diagonal: true }, first: 0, rows: 9, ..keys };
        assert_eq!(late.flags(&[3, 2, 4], &[3, 2, 4]), Ok(vec![0, 0, 0, 0, 0, 1, 1, 1, 1]));
    }

    #[test]
    fn rows_of_a_pair_count_where_the_band_shows_a_key_of_the_same_document() {
        // Documents of 3, 6 and 3 tokens; queries 8 to 12 with keys 4 to 8 under a window of 3: only queries 8 and 9
        // see keys 6 and 7 of the second document, of which query 9 is not.
        let slice = Slice::Pair { queries: (8, 12), keys: (4, 8), square: true };
        // Query t sees keys from t - 2 on, so row r of the pair those from r + 2 on: in tokens, left is -1 here.
        let band = Some(Band { corner: Corner::TopLeft, left: Some(-1), right: None });
        let rows = Counted { slice, band, keys: false, first: 0, rows: 4, sequences: None };
        assert_eq!(rows.flags(&[3, 6, 3], &[3, 6, 3]), Ok(vec![1, 0, 0, 0]));
        let keys = Counted { keys: true, ..rows };
        assert_eq!(keys.flags(&[3, 6, 3], &[3, 6, 3]), Ok(vec![0, 0, 1, 1]));
        assert_eq!(keys.flags(&[3, 6, 3], &[3, 5, 4]), Err(1));
    }
}
