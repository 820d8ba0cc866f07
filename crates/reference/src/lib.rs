//! Attention on the CPU: the oracle that every kernel is judged by.
//!
//! * [`forward`] and [`backward`] compute attention from its definition in float64, for everything that a description can
//!   say; [`forward_f32`] does so in float32, and [`forward_rows`] computes chosen rows of large ones.
//! * [`Inputs`] are operands by role, as the bytes a device would hold; [`Inputs::random`] makes all that an attention needs.
//! * [`compare`] judges what a device wrote.
//!
//! * [`interpret`] runs an op graph operation by operation, so that lowering can be judged too; [`check_gradients`] measures
//!   slopes of the forward.
//!
//! ```
//! use qkvault_graph::{Attention, BackwardOptions, Band, DType, Role, validate};
//! use qkvault_reference::{Inputs, Tolerance, backward, check_gradients, compare, forward};
//!
//! // Two sequences, 4 query heads over 2 key heads, 5 queries over 7 keys, head dim 16.
//! let attention = validate(Attention::bshd(2, (4, 2), (5, 7), 16, DType::BF16).with_band(Band::CAUSAL).with_stats())?;
//! let inputs = Inputs::random(&attention, 1)?;
//! let outputs = forward(&attention, &inputs)?;
//!
//! // What a device would have written, had it computed exactly and rounded once.
//! let o = outputs.get(Role::O).expect("a forward has O");
//! let found = compare(o, &o.buffer(), Tolerance::of(Role::O, DType::BF16));
//! assert!(found.good, "{found}");
//!
//! let attention = validate(attention.backward(BackwardOptions::default()))?;
//! let inputs = Inputs::random(&attention, 1)?;
//! assert!(backward(&attention, &inputs)?.get(Role::DK).is_some());
//! assert!(check_gradients(&attention, &inputs, 3, 1)?.worst < 1e-6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is rounded, and what is not modelled
//!
//! Inputs are read exactly as stored, nothing is rounded on the way, and outputs are rounded once, when they are asked for as
//! buffers. 8-bit attention is defined by roundings, and those are made: of the probabilities to Q's type, and in the backward
//! of the scores' gradient to dO's type, each under its scale, to nearest even, saturating.
//!
//! Properties of kernels, which no description states, are not modelled: 16-bit rounding of probabilities before the second
//! product, the order and precision of running sums, the lazy rescaling of Blackwell's 8-bit kernels (it rounds probabilities
//! relative to an older maximum), 16-bit rounding of dK and dV before the heads of a group are summed, and that NVIDIA's graph
//! of an 8-bit backward leaves dropout's mask off the gradient of the probabilities. The tolerances of [`Tolerance::of`] have
//! room for them, but for the last.
//!
//! Not computed: Philox masks (which number belongs to which element is not documented; give the mask that the library dumps).
//!
//! Of the roundings that make 8-bit attention, cuDNN documents none but those that its graphs spell out. Not documented, and so
//! not modelled: how a microscaled backward rounds probabilities and the gradients of scores for the products that follow (its
//! graph keeps them in f32), and the lazy rescaling named above. A microscaled forward rounds probabilities to Q's type,
//! because there the graph says so.
#![forbid(unsafe_code)]

mod alibi;
mod backward;
mod buffer;
mod compare;
mod error;
mod float;
mod forward;
mod fp8;
mod gradcheck;
mod inputs;
mod interp;
mod kernel;
mod outputs;
mod random;
mod real;
mod score;
mod scores;
mod setup;
mod view;

pub use alibi::alibi_slopes;
pub use backward::{backward, backward_of_o};
pub use buffer::{Buffer, POISON};
pub use compare::{Comparison, Tolerance, compare, compare_rows};
pub use error::ReferenceError;
pub use float::round;
pub use forward::{Row, forward, forward_f32, forward_rows};
pub use gradcheck::{GradientCheck, check_gradients};
pub use inputs::Inputs;
pub use interp::{Grid, InterpretError, Precision, interpret};
pub use outputs::{Defined, Output, Outputs};
pub use qkvault_graph::{Operand, TILE, buffer_len, operand, operands};
pub use random::{Choice, LengthChoice, Unused};
pub use real::Real;
pub use view::View;
