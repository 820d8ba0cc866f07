//! Tests of the `qkvault-lab` command as a program, without a GPU. Those that compile use the real cuDNN.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

mod bench;
mod fuzz_rules;
#[path = "../../../../crates/cli/tests/cli/kit.rs"]
#[allow(dead_code, reason = "the tests of `qkvault` use more of it")]
mod kit;
mod selftest;
mod soak;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_qkvault-lab");
