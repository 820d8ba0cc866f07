//! The raw layer: sessions, plans and launches with addresses as numbers and streams as pointers, for callers who have no cudarc objects.
//!
//! The safe layer is built on it. What is unsafe here is what the caller alone can promise: that a context is current and that addresses are
//! good until a launch is finished.

pub(crate) mod bound;
pub(crate) mod cells;
pub(crate) mod launch_error;
pub(crate) mod load;
pub(crate) mod load_error;
pub(crate) mod pool;
pub(crate) mod session;

pub use crate::bindings::{Bindings, Operand};
pub use bound::Bound;
pub use launch_error::BindFailure;
pub use load::LoadedPlan;
pub use session::Session;
