//! The functions of candle-flash-attn, computed by candle-qkvault.
//!
//! Named in `[patch.crates-io]`, this package takes the place of candle-flash-attn: models of candle-transformers that
//! are built with `use_flash_attn` then call cuDNN, and have a backward.

pub use candle_qkvault::{
    flash_attn, flash_attn_alibi, flash_attn_alibi_windowed, flash_attn_alibi_windowed_softcap, flash_attn_varlen,
    flash_attn_varlen_alibi, flash_attn_varlen_alibi_windowed, flash_attn_varlen_alibi_windowed_softcap,
    flash_attn_varlen_paged_windowed, flash_attn_varlen_windowed, flash_attn_windowed,
};
