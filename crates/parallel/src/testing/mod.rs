//! Random cases of shared attentions, and their judgement on GPUs, for tests and instruments. Not part of the
//! interface.

mod cases;
#[cfg(feature = "exec")]
mod on_gpu;

pub use crate::store::{store_message, store_messages};
pub use cases::{CaseSpace, ShardedCase, case};
#[cfg(feature = "exec")]
pub use on_gpu::{Member, Ran, collected, expected, give, together, wrong};
