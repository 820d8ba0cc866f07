//! Page tables: in which pages of a pool the rows of each sequence lie.

use super::{CuSeqlens, reason, sound};
use crate::{Refusal, Tensor};

/// A page table of a pool: for each sequence, as many entries as its longest takes, 0 where a sequence needs no page.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PageTable {
    width: usize,
    entries: Vec<i32>,
}

impl PageTable {
    /// The table of a paged tensor from the pages of each sequence, in order.
    ///
    /// # Errors
    ///
    /// Every reason why these are no pages of this pool and these lengths: a tensor that is not paged, another batch, too few
    /// pages for a length, more than the tensor declares, pages outside the pool.
    pub fn new(pool: &Tensor, lengths: &CuSeqlens, sequences: &[Vec<i32>]) -> Result<PageTable, Refusal> {
        let (crate::Storage::Paged { pages, page_size }, Some(width)) = (pool.storage, pool.pages_per_sequence())
        else {
            return Err(reason(
                "pages.storage",
                "storage",
                format!("{:?}", pool.storage),
                "only paged tensors have a page table",
                "bind no page table to it",
            )
            .into());
        };
        let mut reasons = Vec::new();
        let batch = pool.dims[0];
        for (what, given) in [("page table", sequences.len() as i64), ("lengths", lengths.batch().get())] {
            if given != batch {
                reasons.push(reason(
                    "pages.batch",
                    what,
                    format!("{given} sequences"),
                    format!("the tensor has {batch}"),
                    "give one row of pages and one length per sequence, not per token or page",
                ));
            }
        }
        for (i, (row, length)) in sequences.iter().zip(lengths.lengths()).enumerate() {
            let place = || format!("page table[{i}]");
            let needed = if length == 0 { 0 } else { (i64::from(length) - 1) / page_size + 1 };
            let given = row.len() as i64;
            if given < needed {
                reasons.push(reason(
                    "pages.short",
                    place(),
                    format!("{given} pages of {page_size} rows"),
                    format!("{needed} pages for {length} rows"),
                    "give every page that holds a row of the sequence",
                ));
            }
            if given > width {
                reasons.push(reason(
                    "pages.long",
                    place(),
                    format!("{given} pages of {page_size} rows"),
                    format!("at most {width}, for the {} rows that the tensor declares", pool.dims[2]),
                    "use a plan for longer sequences, or give only pages that are in use",
                ));
            }
            if let Some(page) = row.iter().find(|&&page| page < 0 || i64::from(page) >= pages) {
                reasons.push(reason(
                    "pages.pool",
                    place(),
                    format!("page {page}"),
                    format!("the pool has pages 0 to {}", pages - 1),
                    "give positions in the pool, and leave out entries that stand for no page",
                ));
            }
        }
        sound(reasons, || {
            let width = width as usize;
            let mut entries = Vec::with_capacity(width * sequences.len());
            for row in sequences {
                entries.extend_from_slice(row);
                entries.extend(std::iter::repeat_n(0, width - row.len()));
            }
            PageTable { width, entries }
        })
    }

    /// Entries of one sequence.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.width
    }

    /// All entries, the sequences one after another: (batch, 1, width, 1).
    #[must_use]
    pub fn entries(&self) -> &[i32] {
        &self.entries
    }
}
