//! Attention described as data.
#![forbid(unsafe_code)]

mod dtype;
pub mod expr;

pub use dtype::{DType, UnknownDType};
