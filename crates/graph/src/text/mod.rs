//! The text form of attentions: complete, readable, and read back to the same value. Goldens, errors and bug reports are
//! written in it, and a case can be written by hand.
//!
//! One field a line, `name: value`, in any order; `#` starts a comment. Only `q` must be there: what is left out is as the
//! constructors have it, so K is like Q, V like K, O like Q with the head dim of V, a gradient like its tensor, a backward
//! has Stats, and everything else is off.
//!
//! | field | value |
//! |---|---|
//! | `pass` | `forward` or `backward` |
//! | `q`, `k`, `v`, `o`, `d_o`, `d_q`, `d_k`, `d_v`, `d_o_half` | element type (that of Q when left out; `d_o_half`: that of O), dims, storage, layout: see below |
//! | `d_o_half` | as the tensors above, or `none`; there when `fp8` is `block` unless it says `none` |
//! | `mask` | `none`, `causal`, `causal window 4096`, `band left 128 right 0`; then `top-left` (the default) or `bottom-right` |
//! | `lengths` | `full` or `per-sequence` |
//! | `mask_mod`, `score_mod` | `none`, or an expression in its own text form ([`crate::expr::parse_expr`]); in braces, over several lines |
//! | `score_mod_bprop` | the derivative of `score_mod` by the score, where its author writes it; as `score_mod` |
//! | `trust_score_mod_bprop` | `yes` or `no`: whether it is taken without a comparison |
//! | `sink`, `block_mask`, `d_sink`, `deterministic` | `yes` or `no` |
//! | `dropout` | `none`, `philox 0.1` or `mask 0.1` |
//! | `outputs` | `none`, or some of `stats max sum_exp` |
//! | `padded_rows` | `undefined` or `zero` |
//! | `fp8` | `none`, `delayed`, `current` or `block` |
//!
//! A tensor is `bf16 [2,32,512,128]`, dims in logical order, then
//! * nothing for dense rows, `varlen tokens 900` or `paged 64 x 16` (pages by rows of a page);
//! * `strides [2097152,128,4096,1]` or the order of the axes in memory, outermost first: `bshd` (the default), `sbhd`, `bhsd` or
//!   a part of a shared buffer such as `bs3hd`, `bsh3d`, `bs2hd`; for varlen rows `thd` (the default), `t3hd`, `th3d`; for paged
//!   ones `nhd` (the default) or `hnd`.
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
