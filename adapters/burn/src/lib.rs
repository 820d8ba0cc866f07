//! Attention for burn, compiled ahead of time, with a backward.
#![cfg_attr(feature = "cpu", doc = include_str!("../README.md"))]

mod attention;
mod autodiff;
mod backend;
#[cfg(feature = "cpu")]
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod describe;
mod error;
mod known;
#[cfg(feature = "cuda")]
mod lane;
mod options;
mod run;
mod sequences;
mod tensor;

pub use attention::{attention, attention_varlen, descriptions};
pub use backend::AttentionBackend;
#[cfg(feature = "cpu")]
#[doc(hidden)]
pub use cpu::operands;
#[cfg(feature = "cuda")]
pub use cuda::{Cuda, Ordering, set_ordering};
pub use error::Error;
pub use options::Options;
#[doc(hidden)]
pub use run::Call;
pub use sequences::Sequences;

#[cfg(feature = "cpu")]
pub use burn_flex::Flex;
pub use qkvault;
