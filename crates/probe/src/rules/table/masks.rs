//! Bands, lengths and predicates.

use crate::rules::Rule;

pub(super) const RULES: &[Rule] = &[];
