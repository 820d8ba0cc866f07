//! The locks and thread ids of single flight, from one place: `tests/tests/single_flight.rs` compiles `flight.rs` with
//! those of a model checker instead.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use std::thread::{self, ThreadId};
