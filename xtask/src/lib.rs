//! Chores of the workspace, as functions: what `cargo xtask` runs, and what its other commands call.

pub mod bindings;
pub mod bundle;
pub mod cargo;
pub mod fetch;
pub mod mutants;
pub mod release;
mod rooms;
mod skips;
pub mod test;
pub mod tidy;
pub mod ui;
