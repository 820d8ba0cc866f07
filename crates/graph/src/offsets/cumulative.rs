//! Cumulative lengths: the number of rows before each sequence of a batch, and of all rows.

use super::{Batch, Pages, Tokens, sound};
use crate::Refusal;
use crate::registry::codes;

/// Cumulative lengths of the sequences of a batch (`cu_seqlens`): batch + 1 entries from 0 to the number of tokens.
///
/// Entries never decrease, and every sequence length fits 32 bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CuSeqlens(Vec<i64>);

impl CuSeqlens {
    /// Checks cumulative lengths.
    ///
    /// # Errors
    ///
    /// Every fault: no sequence, a first entry that is not 0, entries that decrease, sequences that are too long.
    pub fn new(cumulative: Vec<i64>) -> Result<CuSeqlens, Refusal> {
        let mut reasons = Vec::new();
        if cumulative.len() < 2 {
            reasons.push(codes::OFFSETS_ENTRIES.reason(format!("{} entries", cumulative.len())));
        }
        if let Some(first) = cumulative.first().filter(|first| **first != 0) {
            reasons.push(codes::OFFSETS_START.reason(first.to_string()));
        }
        for (i, pair) in cumulative.windows(2).enumerate() {
            let place = || format!("cu_seqlens[{}]", i + 1);
            let given = || format!("{} after {}", pair[1], pair[0]);
            match pair[1].checked_sub(pair[0]) {
                Some(0..=0x7fff_ffff) => {}
                Some(i64::MIN..0) => reasons.push(codes::OFFSETS_FALLS.reason(given()).at(place())),
                Some(_) | None => reasons.push(codes::OFFSETS_LENGTH_LIMIT.reason(given()).at(place())),
            }
        }
        sound(reasons, || CuSeqlens(cumulative))
    }

    /// Sums the lengths of sequences.
    ///
    /// # Errors
    ///
    /// No sequence, negative lengths, more tokens than 63 bits can count.
    pub fn from_lengths(lengths: &[i32]) -> Result<CuSeqlens, Refusal> {
        let negative = lengths
            .iter()
            .enumerate()
            .filter(|(_, n)| **n < 0)
            .map(|(i, n)| codes::LENGTHS_NEGATIVE.reason(n.to_string()).at(format!("lengths[{i}]")));
        sound(negative.collect(), || ())?;
        let mut cumulative = vec![0_i64];
        let mut tokens = 0_i64;
        for &length in lengths {
            // An overflow needs 2^32 lengths of 2^31, which do not fit in memory.
            tokens = tokens.saturating_add(i64::from(length));
            cumulative.push(tokens);
        }
        CuSeqlens::new(cumulative)
    }

    /// Reads the document id of each token, in rows of `row` tokens one after another: a document is a run of one id in
    /// one row. If there are fewer than `most`, empty ones follow.
    ///
    /// # Errors
    ///
    /// Ids that do not fill whole rows, a document in two places of a row, more documents than `most`.
    pub fn from_documents(ids: &[i32], row: usize, most: Batch) -> Result<CuSeqlens, Refusal> {
        let mut reasons = Vec::new();
        if row == 0 || ids.is_empty() || !ids.len().is_multiple_of(row) {
            let given = format!("{} ids in rows of {row}", ids.len());
            reasons.push(codes::DOCUMENTS_IDS.reason(given));
        }
        let mut cumulative = vec![0_i64];
        for (number, tokens) in ids.chunks(row.max(1)).enumerate() {
            let mut seen = std::collections::BTreeSet::new();
            for run in tokens.chunk_by(|a, b| a == b) {
                let at = cumulative[cumulative.len() - 1];
                if !seen.insert(run[0]) {
                    reasons.push(
                        codes::DOCUMENTS_SPLIT
                            .reason(format!("document {} a second time in row {number}", run[0]))
                            .at(format!("ids[{at}]")),
                    );
                }
                cumulative.push(at + run.len() as i64);
            }
        }
        let documents = cumulative.len() as i64 - 1;
        if documents > most.get() {
            let needed = format!("{most} at most");
            reasons.push(codes::DOCUMENTS_COUNT.reason(format!("{documents} documents")).with_needed(needed));
        }
        sound(reasons, || ())?;
        let end = cumulative[cumulative.len() - 1];
        cumulative.extend((documents..most.get()).map(|_| end));
        CuSeqlens::new(cumulative)
    }

    /// Number of sequences.
    #[must_use]
    pub fn batch(&self) -> Batch {
        Batch(self.0.len() as i64 - 1)
    }

    /// Number of rows of all sequences together.
    #[must_use]
    pub fn tokens(&self) -> Tokens {
        Tokens(self.0[self.0.len() - 1])
    }

    /// Length of each sequence.
    pub fn lengths(&self) -> impl Iterator<Item = i32> {
        self.0.windows(2).map(|pair| (pair[1] - pair[0]) as i32)
    }

    /// Length of the longest sequence.
    #[must_use]
    pub fn longest(&self) -> i32 {
        self.lengths().max().unwrap_or(0)
    }

    /// Pages that the sequences fill, if each begins a new page; `None` for pages without rows.
    #[must_use]
    pub fn pages(&self, page_size: i64) -> Option<Pages> {
        let pages = |n: i32| if n == 0 { 0 } else { (i64::from(n) - 1) / page_size + 1 };
        (page_size > 0).then(|| Pages(self.lengths().map(pages).sum()))
    }

    /// The entries: the number of rows before each sequence, then of all rows.
    #[must_use]
    pub fn cumulative(&self) -> &[i64] {
        &self.0
    }
}
