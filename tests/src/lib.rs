//! What the integration tests share: the real cuDNN as a stated requirement, the table of forwards that is put to it, and
//! the goldens that its answers are compared with.
//!
//! One process holds one cuDNN, so each version has test programs of its own; what they do is here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

pub mod bench;
pub mod case;
pub mod compile;
pub mod cudnn;
pub mod deterministic;
pub mod divisors;
pub mod documents;
pub mod environment;
pub mod generated;
pub mod golden;
pub mod kernel;
pub mod layouts;
pub mod positions;
pub mod ragged;
pub mod same;
pub mod serving_case;
mod suite;
pub mod table;
pub mod uncompiled;
pub mod unified;
