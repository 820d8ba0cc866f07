//! Attention on the CPU: the oracle that every kernel is judged by.
//!
//! * [`forward`] and [`backward`] compute attention from its definition in float64, for everything that a description can
//!   say; [`forward_f32`] does so in float32, and [`forward_rows`] computes chosen rows of large ones.
//! * [`Inputs`] are operands by role, as the bytes a device would hold; [`Inputs::random`] makes all that an attention needs.
//! * [`compare`] judges what a device wrote.
//!
//! Inputs are read exactly as stored, nothing is rounded on the way, and outputs are rounded once, when they are asked for as
//! buffers. The exceptions are the roundings that an 8-bit attention is defined by (see `fp8.rs`).
#![forbid(unsafe_code)]

mod backward;
mod buffer;
mod compare;
mod error;
mod float;
mod forward;
mod fp8;
mod inputs;
mod interp;
mod kernel;
mod operands;
mod outputs;
mod random;
mod real;
mod score;
mod scores;
mod setup;
mod view;

pub use backward::backward;
pub use buffer::{Buffer, POISON};
pub use compare::{Comparison, Tolerance, compare, compare_rows};
pub use error::ReferenceError;
pub use float::round;
pub use forward::{Row, forward, forward_f32, forward_rows};
pub use inputs::Inputs;
pub use interp::{Grid, InterpretError, Precision, interpret};
pub use operands::{Operand, TILE, buffer_len, operand, operands};
pub use outputs::{Defined, Output, Outputs};
pub use random::{Choice, LengthChoice, Unused};
pub use real::Real;
pub use view::View;
