//! The page pool: which pages are free. It knows numbers only; the model has the memory.

/// The pages of the pool.
#[derive(Debug)]
pub struct PagePool {
    free: Vec<i32>,
    total: usize,
    most: usize,
}

impl PagePool {
    /// A pool of so many pages, all of them free.
    #[must_use]
    pub fn new(total: usize) -> PagePool {
        PagePool { free: (0..total as i32).rev().collect(), total, most: 0 }
    }

    /// Adds pages to a table until it has `needed`; all or none.
    #[must_use]
    pub fn grow(&mut self, table: &mut Vec<i32>, needed: usize) -> bool {
        let more = needed.saturating_sub(table.len());
        if more > self.free.len() {
            return false;
        }
        table.extend(self.free.drain(self.free.len() - more..).rev());
        self.most = self.most.max(self.used());
        true
    }

    /// Takes back the pages of a table.
    ///
    /// # Panics
    ///
    /// If more pages come back than were given: a table was released twice.
    pub fn release(&mut self, table: &mut Vec<i32>) {
        self.free.append(table);
        assert!(self.free.len() <= self.total, "pages were released twice");
    }

    /// Pages that are free.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Pages that sequences have.
    #[must_use]
    pub fn used(&self) -> usize {
        self.total - self.free.len()
    }

    /// The most pages that were in use at once.
    #[must_use]
    pub const fn most(&self) -> usize {
        self.most
    }

    /// All pages.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_gets_all_pages_that_it_needs_or_none_and_every_page_has_one_owner() {
        let mut pages = PagePool::new(5);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        assert!(pages.grow(&mut a, 2) && pages.grow(&mut b, 2) && pages.grow(&mut a, 3));
        assert!(!pages.grow(&mut b, 3), "no page is left");
        assert_eq!((b.len(), pages.free(), pages.used(), pages.most()), (2, 0, 5, 5));
        let mut all: Vec<i32> = a.iter().chain(&b).copied().collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
        pages.release(&mut a);
        assert!(pages.grow(&mut b, 3) && a.is_empty());
    }
}
