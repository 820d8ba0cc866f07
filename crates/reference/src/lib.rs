//! Attention on the CPU: the oracle for the results of kernels.
//!
//! * [`forward`] and [`backward`] compute every valid attention from its definition in float64. [`forward_f32`]
//!   computes in float32. [`forward_rows`] computes chosen rows of a large attention.
//! * [`Inputs`] are the operands by role, as the bytes a device would hold. [`Inputs::random`] makes every operand that
//!   an attention needs.
//! * [`compare`] compares the output of a device with exact numbers.
//! * [`combine`] computes merges, sums, copies and fills of tensors.
//! * [`convert`] computes a conversion to or from 8 bits, [`append_to_caches`] an append to caches, bit for bit.
//! * [`interpret`] runs an op graph operation by operation, to check lowering. [`check_gradients`] compares a backward
//!   with slopes of the forward.
//!
//! ```
//! use qkvault_graph::{Attention, BackwardOptions, Band, DType, Role, validate};
//! use qkvault_reference::{Inputs, OutputTolerance, backward, check_gradients, compare, forward};
//!
//! // Two sequences, 4 query heads over 2 key heads, 5 queries over 7 keys, head dim 16.
//! let attention = validate(Attention::bshd(2, (4, 2), (5, 7), 16, DType::BF16).with_band(Band::CAUSAL).with_stats())?;
//! let inputs = Inputs::random(&attention, 1)?;
//! let outputs = forward(&attention, &inputs)?;
//!
//! // The buffer of a device that computes exactly and rounds once.
//! let o = outputs.get(Role::O).expect("a forward has O");
//! let found = compare(o, &o.buffer(), OutputTolerance::for_role(Role::O, DType::BF16));
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
//! The oracle reads inputs exactly as stored, rounds nothing in between, and rounds outputs once, when a caller asks
//! for their buffers. The definition of 8-bit attention contains roundings, and the oracle makes those: of the
//! probabilities to Q's type, and in the backward of the scores' gradient to dO's type, each with its scale, to nearest
//! even, saturating.
//!
//! Properties of kernels, which are not part of a description, are not modelled: 16-bit rounding of probabilities
//! before the second product, the order and precision of running sums, the lazy rescaling of Blackwell's 8-bit kernels
//! (it rounds probabilities relative to an older maximum), 16-bit rounding of dK and dV before the heads of a group are
//! summed, and the dropout mask that NVIDIA's graph of an 8-bit backward does not apply to the gradient of the
//! probabilities. The bounds of [`OutputTolerance::for_role`] allow for all of them except the last.
//!
//! Philox masks are not computed, because the assignment of numbers to elements is not documented; bind the mask that
//! the library dumps.
//!
//! cuDNN documents only those roundings of 8-bit attention that its graphs contain. Undocumented, and therefore not
//! modelled, are the lazy rescaling and the rounding of probabilities and gradients of scores in a microscaled backward
//! (its graph keeps them in f32). The graph of a microscaled forward rounds probabilities to Q's type, and so does the
//! oracle.
#![forbid(unsafe_code)]

mod alibi;
mod append;
mod backward;
mod buffer;
mod combination;
mod compare;
mod concentration;
mod conversion;
mod error;
mod float;
mod forward;
mod fp8;
mod gradcheck;
mod inputs;
mod interp;
mod kernel;
mod launch;
mod memory;
mod outputs;
mod philox;
mod places;
mod random;
mod real;
mod roundings;
mod score;
mod scores;
mod setup;
mod view;

pub use alibi::alibi_slopes;
pub use append::append_to_caches;
pub use backward::{Whole, backward, backward_of_o, backward_part};
pub use buffer::{Buffer, POISON};
pub use combination::combine;
pub use compare::{Comparison, OutputTolerance, compare, compare_rows};
pub use concentration::{Concentration, concentrations};
pub use conversion::convert;
pub use error::ReferenceError;
pub use float::round;
pub use forward::{ForwardRow, forward, forward_f32, forward_rows};
pub use gradcheck::{GradientCheck, check_gradients};
pub use inputs::Inputs;
pub use interp::{Grid, InterpretError, Precision, interpret};
pub use launch::{LaunchJudge, OutputVerdict, cancellation, compare_launch};
pub use outputs::{Defined, ExactOutput, ExactOutputs};
pub use philox::{Places, philox};
pub use qkvault_graph::{Operand, TILE, buffer_len, operand, operands};
pub use random::{Family, LengthChoice, RandomChoice, UnknownFamily, Unused};
pub use real::Real;
pub use roundings::{Judged, Roundings};
pub use view::View;
