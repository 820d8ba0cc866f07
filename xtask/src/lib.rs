//! Chores of the workspace, as functions: what `cargo xtask` runs, and what its other commands call.

pub mod bindings;
pub mod fetch;
pub mod ui;
