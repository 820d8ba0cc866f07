//! The `qkvault` command as people and scripts meet it: run as a program, judged by its output, its exit code and the vault it
//! leaves. Nothing here has a GPU; what compiles, compiles with the real cuDNN.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

mod bad_input;
mod cache;
mod compiler;
mod faults;
mod kit;
mod models;
mod others;
mod packs;
mod probe;
mod remotes;
mod serving;
mod train;
mod warm;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_qkvault");
