//! Attention for candle, compiled ahead of time, with a backward.
#![doc = include_str!("../README.md")]

mod attention;
mod cache;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod describe;
mod error;
mod flash;
mod grad;
mod known;
mod options;
mod origins;
mod rooms;
mod run;
mod sequences;
mod tensor;

pub use attention::{attention, attention_paged, attention_varlen, attention_with_lse, descriptions};
pub use cache::KvCache;
pub use error::Error;
pub use flash::{
    flash_attn, flash_attn_alibi, flash_attn_alibi_windowed, flash_attn_alibi_windowed_softcap, flash_attn_varlen,
    flash_attn_varlen_alibi, flash_attn_varlen_alibi_windowed, flash_attn_varlen_alibi_windowed_softcap,
    flash_attn_varlen_paged_windowed, flash_attn_varlen_windowed, flash_attn_windowed, set_defaults,
};
pub use options::{Options, Order, spec};
pub use sequences::Sequences;

pub use candle_core;
pub use qkvault;
