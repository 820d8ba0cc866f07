//! The second engine: attention kernels of qkvault's own, for what is bound by memory: one to some hundred queries of a
//! sequence over a long cache of keys and values.
//!
//! * [`takes`] says which attentions the kernels take, and why not.
//! * [`generate`] writes CUDA source and a launch recipe for one. Score modifications and masks become straight-line
//!   code.
//! * [`Sequences`] lists where sequences begin, for another engine's kernels.
//! * [`BlockLists`] and [`KnownLists`] list the tiles of scores that a mask does not hide, for another engine's
//!   kernels.
//! * [`generate_conversion`] writes them for a conversion of a tensor to 8 bits with scales, or back.
//! * [`generate_append`] writes them for the append of new keys and values to caches.
//! * [`generate_combination`] writes them for merges, sums, copies and fills of tensors.
//! * [`unproven`] says which of them no GPU has judged since their sources changed ([`Judged`]).
//! * A [`LaunchRecipe`](recipe::LaunchRecipe) says what a launch asks of the driver, as data: grids, parameters,
//!   addresses.
//!
//! This crate writes text and data. It loads no library and knows no GPU: compiling is in `qkvault-compile`, launching
//! in `qkvault-exec`.
#![forbid(unsafe_code)]

mod append;
mod blocks;
mod bounds;
pub mod codes;
mod combine;
mod convert;
mod defines;
mod expression;
mod generate;
mod judged;
mod params;
mod products;
pub mod recipe;
mod scale_update;
mod score;
mod sequences;
mod spans;
mod takes;
pub mod tiling;

pub use append::generate_append;
pub use blocks::{BlockLists, KnownLists, ListsLayout, ScoreTiles};
pub use combine::generate_combination;
pub use convert::{CONVERSION_SM, generate_conversion};
pub use generate::{Generated, generate, generate_with};
pub use judged::{Judged, JudgedSources, unproven, unproven_lists};
pub use scale_update::generate_scale_update;
pub use sequences::{Sequences, sequence_rows};
pub use takes::{HEAD_DIM, SM, VALUE_DIM, takes};

pub use qkvault_graph as graph;
