//! Tests of the `qkvault` command as a program: its output, its exit code and the vault that it leaves. They need no
//! GPU; those that compile use the real cuDNN.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

mod bad_input;
mod cache;
mod compiler;
mod families;
mod faults;
mod hostile;
mod kit;
mod manifest;
mod model;
mod models;
mod newcomer;
mod others;
mod packs;
mod probe;
mod ranks;
mod remotes;
mod scale;
mod serving;
mod train;
mod warm;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_qkvault");
