//! Messages of the ranks' store.

use qkvault_parallel::testing::store_message;

use super::{Answer, Target};

/// A message of a rank or of the store.
pub(super) const FRAME: Target = Target {
    name: "store_message",
    about: "a message between a rank and the store",
    seeds: qkvault_parallel::testing::store_messages,
    words: &["\"put\"", "\"take\"", "\"fault\"", "\"join\"", "\"key\"", "\"rank\"", "{", "}", "null"],
    check: |bytes| store_message(bytes).map_or_else(|error| Answer::refused(&error), |kind| Answer::taken(&kind)),
};
