//! The `qkvault-lab` command run as a program, with no GPU; what compiles, compiles with the real cuDNN.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

mod bench;
mod fuzz_rules;
#[path = "../../../cli/tests/cli/kit.rs"]
#[allow(dead_code, reason = "the tests of `qkvault` use more of it")]
mod kit;
mod selftest;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_qkvault-lab");
