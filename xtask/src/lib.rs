//! Chores of the workspace, as functions: what `cargo xtask` runs, and what its other commands call.

pub mod bindings;
pub mod fetch;
#[cfg(feature = "bindings")]
pub mod generate;
pub mod ui;
