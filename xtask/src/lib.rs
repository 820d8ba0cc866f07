//! The chores of the workspace as functions, for `cargo xtask` and its tests.

pub mod bindings;
pub mod bundle;
pub mod burn;
pub mod candle;
pub mod capi;
pub mod cargo;
pub mod deny;
pub mod dev;
mod doors;
pub mod fa4_tests;
pub mod fetch;
pub mod jax_tests;
pub mod miri;
mod programs;
pub mod record_tests;
pub mod release;
pub mod requirements;
mod rooms;
mod skips;
pub mod test;
pub mod tidy;
pub mod torch_tests;
pub mod ui;
pub mod wheel;
