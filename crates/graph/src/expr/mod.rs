//! Score expressions (being built).
