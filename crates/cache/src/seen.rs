//! A set of keys that something was done for, so that it is done once; bounded.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::Key;

/// Keys seen so far.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<HashSet<Key>>);

/// Most keys remembered. Beyond it the memory starts afresh, and a few things are done twice.
const MOST: usize = 65_536;

impl Seen {
    /// Whether this key is seen for the first time.
    pub(crate) fn first(&self, key: &Key) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= MOST {
            seen.clear();
        }
        seen.insert(*key)
    }
}
