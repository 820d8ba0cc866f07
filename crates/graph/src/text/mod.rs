//! The text form of attentions: complete, readable, and parsed to the same value again. Goldens, errors and bug reports
//! use it, and people can write it.
//!
//! It has one field per line, `name: value`, in any order; `#` starts a comment. Only `q` is required. Defaults are
//! those of the constructors: K is like Q, V like K, O like Q with the head dim of V, a gradient like its tensor, a
//! backward has Stats, and everything else is off.
//!
//! | field | value |
//! |---|---|
//! | `pass` | `forward` or `backward` |
//! | `q`, `k`, `v`, `o`, `d_o`, `d_q`, `d_k`, `d_v`, `d_o_half` | element type (default: that of Q; for `d_o_half` that of O), dims, storage, layout: see below |
//! | `d_o_half` | like the tensors above, or `none`; if `fp8` is `block`, the default is a tensor |
//! | `mask` | `none`, `causal`, `causal window 4096`, `band left 128 right 0`; then `top-left` (the default) or `bottom-right` |
//! | `lengths` | `full` or `per-sequence` |
//! | `mask_mod`, `score_mod` | `none`, or an expression in its text form ([`crate::expr::parse_expr`]); in braces, over several lines |
//! | `score_mod_bprop` | the author's derivative of `score_mod` with respect to the score, written like `score_mod` |
//! | `trust_score_mod_bprop` | `yes` or `no`: whether it is used without a check |
//! | `origins` | `none`, `any` or `every-query-sees-a-key`: whether a launch says where positions begin ([`crate::Origins`]) |
//! | `sink`, `block_mask`, `d_sink`, `deterministic` | `yes` or `no` |
//! | `dropout` | `none`, `philox 0.1`, `mask 0.1` or `places 0.1` |
//! | `outputs` | `none`, or some of `stats max sum_exp no_amax` |
//! | `padded_rows` | `undefined` or `zero` |
//! | `fp8` | `none`, `delayed`, `current` or `block` |
//!
//! A tensor is `bf16 [2,32,512,128]`, with dims in logical order, followed by
//! * nothing for dense rows, `varlen tokens 900` or `paged 64 x 16` (pages by rows of a page);
//! * `strides [2097152,128,4096,1]` or the order of the axes in memory, outermost first: `bshd` (the default), `sbhd`,
//!   `bhsd` or a part of a shared buffer such as `bs3hd`, `bsh3d`, `bs2hd`; for varlen rows `thd` (the default),
//!   `t3hd`, `th3d`; for paged ones `nhd` (the default) or `hnd`.
//!
//! ```
//! use qkvault_graph::{Attention, Band, DType, text};
//!
//! let read = text::parse("q: bf16 [1,32,512,128]\nk: [1,8,512,128]   # grouped heads\nmask: causal\noutputs: stats")?;
//! let built = Attention::bshd(1, (32, 8), (512, 512), 128, DType::BF16).with_band(Band::CAUSAL).with_stats();
//! assert_eq!(read, built);
//! assert_eq!(text::parse(&text::print(&built))?, built);
//! # Ok::<(), text::ParseError>(())
//! ```

mod cursor;
mod error;
mod field;
mod layout;
mod parse;
mod print;
mod value;

pub use error::ParseError;
pub use parse::parse;
pub use print::print;
