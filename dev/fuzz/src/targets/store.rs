//! Messages of the ranks' store.

use qkvault_parallel::testing::store_message;

use super::{FuzzOutcome, FuzzTarget};

/// A message of a rank or of the store.
pub(super) const FRAME: FuzzTarget = FuzzTarget {
    name: "store_message",
    about: "a message between a rank and the store",
    seeds: qkvault_parallel::testing::store_messages,
    words: &["\"put\"", "\"take\"", "\"fault\"", "\"join\"", "\"key\"", "\"rank\"", "{", "}", "null"],
    check: |bytes| {
        store_message(bytes).map_or_else(|error| FuzzOutcome::refused(&error), |kind| FuzzOutcome::taken(&kind))
    },
};
