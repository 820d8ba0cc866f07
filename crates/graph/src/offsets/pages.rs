//! Page tables: the pages of a pool that hold the rows of each sequence.

use super::{CuSeqlens, sound};
use crate::registry::codes;
use crate::{Refusal, Tensor};

/// A page table of a pool. Each sequence has as many entries as the longest can need; unused entries are 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PageTable {
    width: usize,
    entries: Vec<i32>,
}

impl PageTable {
    /// The table of a paged tensor, from the pages of each sequence in order.
    ///
    /// # Errors
    ///
    /// Every fault: a tensor that is not paged, another batch size, fewer pages than a length needs, more than the
    /// tensor declares, pages outside the pool.
    pub fn new(pool: &Tensor, lengths: &CuSeqlens, sequences: &[Vec<i32>]) -> Result<PageTable, Refusal> {
        let (crate::Storage::Paged { pages, page_size }, Some(width)) = (pool.storage, pool.pages_per_sequence())
        else {
            return Err(codes::PAGES_STORAGE.reason(format!("{:?}", pool.storage)).into());
        };
        let mut reasons = Vec::new();
        let batch = pool.dims[0];
        for (what, given) in [("page table", sequences.len() as i64), ("lengths", lengths.batch().get())] {
            if given != batch {
                reasons.push(
                    codes::PAGES_BATCH
                        .reason(format!("{given} sequences"))
                        .at(what)
                        .with_needed(format!("the tensor has {batch}")),
                );
            }
        }
        for (i, (row, length)) in sequences.iter().zip(lengths.lengths()).enumerate() {
            let place = || format!("page table[{i}]");
            let needed = if length == 0 { 0 } else { (i64::from(length) - 1) / page_size + 1 };
            let given = row.len() as i64;
            if given < needed {
                reasons.push(
                    codes::PAGES_SHORT
                        .reason(format!("{given} pages of {page_size} rows"))
                        .at(place())
                        .with_needed(format!("{needed} pages for {length} rows")),
                );
            }
            if given > width {
                reasons.push(
                    codes::PAGES_LONG.reason(format!("{given} pages of {page_size} rows")).at(place()).with_needed(
                        format!("at most {width}, for the {} rows that the tensor declares", pool.dims[2]),
                    ),
                );
            }
            if let Some(page) = row.iter().find(|&&page| page < 0 || i64::from(page) >= pages) {
                reasons.push(
                    codes::PAGES_POOL
                        .reason(format!("page {page}"))
                        .at(place())
                        .with_needed(format!("the pool has pages 0 to {}", pages - 1)),
                );
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

    /// All entries, one sequence after another: (batch, 1, width, 1).
    #[must_use]
    pub fn entries(&self) -> &[i32] {
        &self.entries
    }
}
