//! The codes of every engine's reasons, and those of descriptions.

#![allow(ambiguous_glob_reexports, reason = "each has a list of its own, which nobody takes from here")]

pub use qkvault_cudnn::registry::codes::*;
pub use qkvault_fa4::codes::*;
pub use qkvault_kernels::codes::*;
