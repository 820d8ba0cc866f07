//! The raw layer: sessions, plans and launches with addresses as numbers and streams as pointers, for callers who have no cudarc objects.
//!
//! The safe layer is built on it. What is unsafe here is what the caller alone can promise: that a context is current and that addresses are
//! good until a launch is finished.

pub(crate) mod bound;
pub(crate) mod host_scalars;
pub(crate) mod launch_error;
pub(crate) mod load;
pub(crate) mod load_error;
pub(crate) mod pool;
pub(crate) mod session;

pub use crate::bindings::{Operand, RawBindings};
pub use bound::RawBound;
pub use launch_error::RawBindFailure;
pub use load::RawPlan;
pub use session::RawSession;
