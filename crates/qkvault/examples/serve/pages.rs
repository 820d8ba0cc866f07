//! The page pool on the host: allocates, shares and releases pages. A free page is full of NaN, to prove that no step
//! reads it.

use half::bf16;

use crate::Failure;
use crate::model::{HEAD_DIM, KEY_HEADS, PAGE, PAGES};

/// Elements of one token in a page.
const ROW: usize = KEY_HEADS * HEAD_DIM;

pub(crate) struct Pool {
    pub(crate) keys: Vec<bf16>,
    pub(crate) values: Vec<bf16>,
    /// The number of sequences that use each page.
    owners: Vec<usize>,
    most: usize,
    shared: usize,
}

impl Pool {
    pub(crate) fn new() -> Pool {
        let poison = vec![bf16::NAN; PAGES * PAGE * ROW];
        Pool { keys: poison.clone(), values: poison, owners: vec![0; PAGES], most: 0, shared: 0 }
    }

    pub(crate) fn free(&self) -> usize {
        self.owners.iter().filter(|&&n| n == 0).count()
    }

    /// Allocates a page and fills it with zeros: rows that are not yet written must be finite.
    pub(crate) fn take(&mut self) -> Option<i32> {
        // Takes the last free page, so that the pages of a sequence are not in order.
        let page = self.owners.iter().rposition(|&n| n == 0)?;
        self.fill(page, bf16::ZERO);
        self.owners[page] = 1;
        self.most = self.most.max(PAGES - self.free());
        Some(page as i32)
    }

    /// Shares a page with one more sequence.
    pub(crate) fn share(&mut self, page: i32) {
        self.owners[page as usize] += 1;
        self.shared += 1;
    }

    /// Releases a page from one of its sequences.
    pub(crate) fn release(&mut self, page: i32) {
        let page = page as usize;
        self.owners[page] -= 1;
        if self.owners[page] == 0 {
            self.fill(page, bf16::NAN);
        }
    }

    fn fill(&mut self, page: usize, with: bf16) {
        let numbers = page * PAGE * ROW..(page + 1) * PAGE * ROW;
        self.keys[numbers.clone()].fill(with);
        self.values[numbers].fill(with);
    }

    /// Writes the key and the value of one position of a sequence.
    pub(crate) fn write(&mut self, table: &[i32], position: usize, key: &[bf16], value: &[bf16]) {
        let start = (table[position / PAGE] as usize * PAGE + position % PAGE) * ROW;
        self.keys[start..start + ROW].copy_from_slice(key);
        self.values[start..start + ROW].copy_from_slice(value);
    }

    pub(crate) const fn most_used(&self) -> usize {
        self.most
    }

    pub(crate) const fn shared(&self) -> usize {
        self.shared
    }

    /// Checks that every page was released.
    pub(crate) fn check_all_free(&self) -> Result<(), Failure> {
        match PAGES - self.free() {
            0 => Ok(()),
            kept => Err(format!("{kept} pages were not released").into()),
        }
    }
}
