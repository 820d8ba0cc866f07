//! Fuzzing of everything that reads data from outside: entries and packs of a vault, launch recipes, descriptions,
//! manifests, configs, GGUF files, messages between ranks, and calls of the C interface.
//!
//! * [`targets`] has a target for each: what is true for any bytes, as a function of them, and good inputs to begin
//!   with. `corpus/NAME` has inputs that are kept; a test replays them, and so every change meets them again.
//! * [`mutate`] changes inputs, [`pool`] keeps those that got a new answer, [`drive`] runs a target for some seconds.
//! * [`guard`] bounds what an input may take: time, and memory in proportion to its length ([`alloc`]).
//!
//! The program runs each target in a process of its own, so that it names the input whatever the end of that process
//! is: a panic, a stack overflow, an endless loop, or too much memory. Everything follows from a seed. No instrumented
//! build is needed; `libfuzzer` has the same targets for a nightly compiler with coverage.

pub mod alloc;
pub mod drive;
pub mod guard;
pub mod mutate;
pub mod pool;
pub mod targets;
