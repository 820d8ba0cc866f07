//! The pool of pages, on the host: given, shared, and taken back. A page that nobody has is full of NaN, to prove that nobody reads it.

use half::bf16;

use crate::Failure;
use crate::model::{HEAD_DIM, KEY_HEADS, PAGE, PAGES};

/// Numbers of a page.
const ROW: usize = KEY_HEADS * HEAD_DIM;

pub(crate) struct Pool {
    pub(crate) keys: Vec<bf16>,
    pub(crate) values: Vec<bf16>,
    /// How many sequences have each page.
    owners: Vec<usize>,
    most: usize,
    shared: usize,
}

impl Pool {
    pub(crate) fn new() -> Pool {
        let nothing = vec![bf16::NAN; PAGES * PAGE * ROW];
        Pool { keys: nothing.clone(), values: nothing, owners: vec![0; PAGES], most: 0, shared: 0 }
    }

    pub(crate) fn free(&self) -> usize {
        self.owners.iter().filter(|&&n| n == 0).count()
    }

    /// Gives a page, with zeros in it: rows that are not written yet must be finite.
    pub(crate) fn take(&mut self) -> Option<i32> {
        // The last free page first: pages of a sequence are in no order.
        let page = self.owners.iter().rposition(|&n| n == 0)?;
        self.fill(page, bf16::ZERO);
        self.owners[page] = 1;
        self.most = self.most.max(PAGES - self.free());
        Some(page as i32)
    }

    /// Gives a page to one sequence more.
    pub(crate) fn share(&mut self, page: i32) {
        self.owners[page as usize] += 1;
        self.shared += 1;
    }

    /// Takes a page back from one of its sequences.
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

    /// Whether every page came back.
    pub(crate) fn check_all_free(&self) -> Result<(), Failure> {
        match PAGES - self.free() {
            0 => Ok(()),
            kept => Err(format!("{kept} pages were never given back").into()),
        }
    }
}
