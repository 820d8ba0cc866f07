//! Lengths of the sequences of a part, from the lengths of the whole sequences.

use serde::{Deserialize, Serialize};

use crate::dealt;

/// Which part of its sequences a launch computes, for attentions whose lengths a launch gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Slice {
    /// All of each sequence; they may be varlen.
    Whole,
    /// The same rows and keys of each dense sequence.
    Rows {
        /// First query and one past the last.
        queries: (i64, i64),
        /// First key and one past the last.
        keys: (i64, i64),
        /// Whether the band counts from the bottom right: then the keys end at the diagonal of the last query.
        to_diagonal: bool,
    },
    /// A run of tokens of packed sequences.
    Packed {
        /// First token of the queries and one past the last.
        tokens: (i64, i64),
        /// Whether the keys of a sequence end at the last query of the part.
        to_diagonal: bool,
    },
    /// A run of tokens of packed sequences' queries with a run of their keys: the parts of sequences that lie in both.
    Pair {
        /// First token of the queries and one past the last.
        queries: (i64, i64),
        /// First token of the keys and one past the last.
        keys: (i64, i64),
        /// Whether every sequence has as many queries as keys, so that a band moves with the tokens.
        square: bool,
    },
    /// All queries, over the keys of one rank ([`crate::Scheme::Decode`]).
    Dealt {
        /// The rank.
        rank: u32,
        /// Number of ranks.
        ranks: u32,
        /// Neighbouring keys on one rank.
        run: u32,
    },
}

/// The lengths of each sequence of one part, and where its rows begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartLengths {
    /// Queries.
    pub queries: Vec<i64>,
    /// Keys.
    pub keys: Vec<i64>,
    /// Position of the first query among those of its sequence.
    pub first_query: Vec<i64>,
    /// Position of the first key among those of its sequence.
    pub first_key: Vec<i64>,
    /// Varlen: rows of the part's queries before each sequence, and all of them.
    pub query_rows: Vec<i64>,
    /// Varlen: rows of keys before each sequence, and all of them.
    pub key_rows: Vec<i64>,
}

impl Slice {
    /// The lengths of the part, from those of the whole sequences.
    ///
    /// # Errors
    ///
    /// Packed sequences with a band and other numbers of queries than keys: the place of a part's diagonal would differ
    /// between them. The number of the first such sequence.
    pub fn lengths(&self, queries: &[i64], keys: &[i64]) -> Result<PartLengths, usize> {
        let mut part = PartLengths { query_rows: vec![0], key_rows: vec![0], ..PartLengths::default() };
        let (mut q_row, mut kv_row) = (0, 0);
        for (sequence, (&q_len, &kv_len)) in queries.iter().zip(keys).enumerate() {
            let (mut first_key, mut rows) = (0, None);
            let (q, kv, first, kv_start) = match *self {
                Slice::Whole => (q_len, kv_len, 0, kv_row),
                Slice::Rows { queries: (q0, q1), keys: (k0, k1), to_diagonal } => {
                    let q = (q_len - q0).clamp(0, q1 - q0);
                    let end = if to_diagonal { q0 + q + kv_len - q_len } else { kv_len };
                    (q, (end.min(kv_len) - k0).clamp(0, k1 - k0), q0, kv_row)
                }
                Slice::Packed { tokens: (t0, t1), to_diagonal } => {
                    if to_diagonal && q_len != kv_len {
                        return Err(sequence);
                    }
                    let (begin, end) = (q_row.max(t0), (q_row + q_len).min(t1));
                    let q = (end - begin).max(0);
                    let first = (begin - q_row).clamp(0, q_len);
                    let kv = if q == 0 {
                        0
                    } else if to_diagonal {
                        first + q
                    } else {
                        kv_len
                    };
                    (q, kv, first, kv_row)
                }
                Slice::Pair { queries: q_run, keys: kv_run, square } => {
                    if square && q_len != kv_len {
                        return Err(sequence);
                    }
                    let (q, of_queries) = common(q_row, q_len, q_run);
                    let (kv, of_keys) = common(kv_row, kv_len, kv_run);
                    first_key = of_keys.0;
                    rows = Some((of_queries.1, of_keys.1));
                    // What lies in one of the runs alone has nothing to compute.
                    let (q, kv) = if q == 0 || kv == 0 { (0, 0) } else { (q, kv) };
                    (q, kv, of_queries.0, kv_row)
                }
                Slice::Dealt { rank, ranks, run } => (q_len, dealt(rank, ranks, run, kv_len), 0, kv_row),
            };
            q_row += q_len;
            kv_row += kv_len;
            part.queries.push(q);
            part.keys.push(kv);
            part.first_query.push(first);
            part.first_key.push(first_key);
            if let Some((of_queries, of_keys)) = rows {
                part.query_rows.pop();
                part.query_rows.extend(of_queries);
                part.key_rows.pop();
                part.key_rows.extend(of_keys);
                continue;
            }
            let before = part.query_rows.last().copied().unwrap_or(0);
            part.query_rows.push(before + q);
            part.key_rows.pop();
            part.key_rows.extend([kv_start, kv_start + kv_len]);
        }
        Ok(part)
    }
}

/// What a sequence of `len` rows from `row` on has in a run: the number of rows; the first of them, counted in the
/// sequence; and the rows of the run before it and up to its end.
fn common(row: i64, len: i64, (first, end): (i64, i64)) -> (i64, (i64, [i64; 2])) {
    let (begin, stop) = (row.clamp(first, end), (row + len).clamp(first, end));
    (stop - begin, ((begin - row).clamp(0, len), [begin - first, stop - first]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_packed_documents_begin_inside_them() {
        // Documents of 5, 0, 7 and 4 tokens; the part has tokens 4 to 13.
        let lens = [5, 0, 7, 4];
        let part = Slice::Packed { tokens: (4, 13), to_diagonal: true }.lengths(&lens, &lens).expect("square");
        assert_eq!(part.queries, [1, 0, 7, 1]);
        assert_eq!(part.keys, [5, 0, 7, 1]);
        assert_eq!(part.first_query, [4, 0, 0, 0]);
        assert_eq!(part.query_rows, [0, 1, 1, 8, 9]);
        assert_eq!(part.key_rows, [0, 5, 5, 12, 16]);
        let whole = Slice::Packed { tokens: (4, 13), to_diagonal: false }.lengths(&lens, &[6, 1, 0, 2]);
        assert_eq!(whole.expect("no band").keys, [6, 0, 0, 2]);
        assert_eq!(Slice::Packed { tokens: (4, 13), to_diagonal: true }.lengths(&lens, &[5, 0, 7, 5]), Err(3));
    }

    #[test]
    fn pairs_have_the_parts_of_documents_that_lie_in_both() {
        // Documents of 5, 0, 7 and 4 tokens: of the queries 8 to 16 and the keys 4 to 8 the third has 4 and 3.
        let lens = [5, 0, 7, 4];
        let pair = |queries, keys| Slice::Pair { queries, keys, square: true }.lengths(&lens, &lens).expect("square");
        let part = pair((8, 16), (4, 8));
        assert_eq!((part.queries, part.keys), (vec![0, 0, 4, 0], vec![0, 0, 3, 0]));
        assert_eq!((part.first_query[2], part.first_key[2]), (3, 0));
        assert_eq!((part.query_rows, part.key_rows), (vec![0, 0, 0, 4, 8], vec![0, 1, 1, 4, 4]));
        let part = pair((4, 8), (4, 8));
        assert_eq!((part.queries, part.keys), (vec![1, 0, 3, 0], vec![1, 0, 3, 0]));
        assert_eq!((part.first_query, part.first_key), (vec![4, 0, 0, 0], vec![4, 0, 0, 0]));
        let other = |square| Slice::Pair { queries: (0, 8), keys: (0, 4), square }.lengths(&lens, &[2, 3, 0, 4]);
        let part = other(false).expect("no band");
        assert_eq!((part.queries, part.keys), (vec![5, 0, 0, 0], vec![2, 0, 0, 0]));
        assert_eq!(part.key_rows, [0, 2, 4, 4, 4]);
        assert_eq!(other(true), Err(0));
    }

    #[test]
    fn parts_of_padded_sequences_end_with_them() {
        let part = Slice::Rows { queries: (4, 8), keys: (0, 12), to_diagonal: true }.lengths(&[3, 6, 8], &[9, 12, 2]);
        let part = part.expect("no reason");
        // The last query of a sequence sees its last key: of 6 and 12, query 4 and 5 see keys to 10 and 11.
        assert_eq!((part.queries, part.keys), (vec![0, 2, 4], vec![9, 12, 2]));
        let part = Slice::Rows { queries: (4, 8), keys: (4, 8), to_diagonal: false }.lengths(&[3, 6], &[9, 6]);
        let part = part.expect("no reason");
        assert_eq!((part.queries, part.keys), (vec![0, 2], vec![4, 2]));
    }
}
