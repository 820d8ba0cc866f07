//! Cumulative lengths, element offsets of varlen operands, and page tables, as types that cannot be confused.
//!
//! A varlen buffer holds [`Tokens`] rows of a [`Batch`] of sequences; a mix-up of the two gives plausible, wrong
//! results. So the offsets that cuDNN reads, batch + 1 of them and in elements of one operand, are made only from
//! cumulative lengths and that operand.
//!
//! ```
//! use qkvault_graph::{Attention, CuSeqlens, DType, Varlen, Tensor, ragged_offsets, validate};
//!
//! let q = Tensor::thd(3, 8, 512, 64, 1024, DType::BF16);
//! let kv = Tensor::thd(3, 2, 512, 64, 1024, DType::BF16);
//! let attention = validate(Attention::forward(q, kv, kv, q).with_lengths())?;
//! let lengths = CuSeqlens::from_lengths(&[100, 0, 512])?;
//! let offsets = ragged_offsets(&attention, &lengths, &lengths)?;
//! assert_eq!(offsets[&Varlen::Q].elements(), [0, 100 * 8 * 64, 100 * 8 * 64, 612 * 8 * 64]);
//! assert_eq!(offsets[&Varlen::K].elements(), [0, 100 * 2 * 64, 100 * 2 * 64, 612 * 2 * 64]);
//! # Ok::<(), qkvault_graph::Refusal>(())
//! ```

mod cumulative;
mod pages;
mod ragged;

pub use cumulative::CuSeqlens;
pub use pages::PageTable;
pub use ragged::{RaggedOffsets, ragged_offsets};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(i64);

        impl $name {
            /// A count of 0 or more; `None` for a negative number.
            #[must_use]
            pub const fn new(count: i64) -> Option<$name> {
                if count < 0 { None } else { Some($name(count)) }
            }

            /// The count as a number.
            #[must_use]
            pub const fn get(self) -> i64 {
                self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

counts! {
    /// A number of rows of all sequences together.
    Tokens;
    /// A number of sequences.
    Batch;
    /// A number of pages of a pool.
    Pages;
}

use crate::{DType, Reason, Refusal, Tensor};

impl Tensor {
    /// [`Tensor::thd`] with counts that cannot be swapped: a batch of sequences of at most `longest` rows, in a buffer
    /// of `room` rows.
    #[must_use]
    pub const fn varlen(batch: Batch, heads: i64, longest: i64, head_dim: i64, room: Tokens, dtype: DType) -> Tensor {
        Tensor::thd(batch.0, heads, longest, head_dim, room.0, dtype)
    }
}

/// The value, if there are no reasons against it.
fn sound<T>(reasons: Vec<Reason>, value: impl FnOnce() -> T) -> Result<T, Refusal> {
    match Refusal::from_reasons(reasons) {
        Some(refusal) => Err(refusal),
        None => Ok(value()),
    }
}
