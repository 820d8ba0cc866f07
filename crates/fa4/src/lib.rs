//! FlashAttention-4 as an engine: its kernels for dense attention, forward and backward, on Hopper.
#![forbid(unsafe_code)]

mod python;
mod toolchain;

pub use python::{NoPython, PYTHON_VARIABLE, Python};
pub use toolchain::{PYTHONS, TOOLCHAIN, Toolchain, folder};
