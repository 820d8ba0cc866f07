//! A bounded set of keys, for work to be done once per key.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::Key;

/// The keys seen so far.
#[derive(Debug, Default)]
pub(crate) struct SeenKeys(Mutex<HashSet<Key>>);

/// Most keys remembered. Beyond it the set is cleared, and some work is done twice.
const MOST: usize = 65_536;

impl SeenKeys {
    /// Whether this is the first call with this key.
    pub(crate) fn first(&self, key: &Key) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= MOST {
            seen.clear();
        }
        seen.insert(*key)
    }
}
