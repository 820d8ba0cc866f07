//! Code that the integration tests share: fetched cuDNN libraries, tables of attentions to compile, and goldens to
//! compare the results with.
//!
//! A process can load one cuDNN only, so each version has its own test programs. They call the checks of this crate.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

pub mod altered;
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
pub mod origins;
pub mod positions;
pub mod ragged;
pub mod same;
pub mod serving_case;
mod suite;
pub mod table;
pub mod uncompiled;
