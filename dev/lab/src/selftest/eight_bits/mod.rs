//! The self-test of 8-bit attention with one scale per tensor: its random cases, their operands, and the judgement of
//! what a launch wrote.
//!
//! `--about CODES` draws cases that have what these codes of the registry refuse, and allows them: what compiles and
//! nobody tests is judged so.

mod bounds;
mod cases;
mod distance;
mod operands;
mod rows;

pub(super) use bounds::Expected;
pub(super) use cases::{ABOUT, attention};
pub(super) use operands::{cache_scales, operands, philox_scales};
