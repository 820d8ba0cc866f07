//! The second engine: attention kernels of qkvault's own.
//!
//! * A [`Recipe`](recipe::Recipe) says what a launch asks of the driver, as data: grids, parameters, addresses.
//!
//! This crate writes text and data. It loads no library and knows no GPU: compiling is in `qkvault-compile`, launching
//! in `qkvault-exec`.
#![forbid(unsafe_code)]

pub mod recipe;

pub use qkvault_graph as graph;
