//! Attention described as data.
//!
//! * [`Attention`] is the description; [`validate`] reports every problem, or returns a [`Valid`] one in canonical
//!   form.
//! * [`Valid::key`] identifies a description, a [`PlanKey`] a compiled plan.
//! * [`text`] is the text form of an attention: people write it, and it is printed and parsed.
//! * [`operands`] are the buffers that an attention reads and writes, by role.
//! * [`Conversion`] describes how a tensor becomes 8 bits with scales, and back.
//! * [`CacheAppend`] describes how the keys and values of a step come into caches.
//! * [`registry`] says what a reason is, and has those for which a description is refused.
//! * [`expr`] is the closed language of score expressions.
//!
//! What computes an attention is not known here: `qkvault-cudnn`, `qkvault-kernels` and `qkvault-fa4` say that. The
//! crate needs neither CUDA nor a C++ compiler, and has no unsafe code.
//!
//! ```
//! use qkvault_graph::{Attention, DType};
//!
//! let attention = Attention::bshd(1, (32, 8), (4096, 4096), 128, DType::BF16).causal().with_stats().validate()?;
//! println!("{}\n{}", attention.key(), attention.get());
//! # Ok::<(), qkvault_graph::Refusal>(())
//! ```
#![forbid(unsafe_code)]

mod append;
#[cfg(feature = "testing")]
pub mod arbitrary;
mod attention;
mod attention_form;
mod attention_methods;
mod canon;
pub mod codec;
mod combination;
#[cfg(doctest)]
mod compile_fail;
mod conversion;
mod documents;
mod dtype;
pub mod expr;
mod key;
mod lowest_rows;
mod mask;
mod offsets;
mod operands;
mod origins;
mod policy;
mod reason;
pub mod registry;
mod role;
mod role_name;
mod role_uid;
mod scale_update;
mod storage;
mod summary;
mod tensor;
pub mod text;
mod valid;

pub use append::{CacheAppend, ValidCacheAppend};
pub use attention::{
    Attention, BackwardOptions, Dropout, DropoutSource, Fp8, Gradients, MAX_DRAFTS, Outputs, PaddedRows, Pass,
    ScoreModBprop,
};
pub use attention_form::ATTENTION_FORMAT;
pub use canon::bytes as canonical_bytes;
pub use combination::{COMBINATION_DTYPES, Combination, CombinationOperand, MOST_PARTS, Partial, ValidCombination};
pub use conversion::{Along, CONVERSION_DTYPES, Conversion, ConversionKind, ValidConversion};
pub use documents::Documents;
pub use dtype::{DType, UnknownDType};
pub use expr::ScoreExpr;
pub use key::{BadKey, GraphKey, KEY_FORMAT, PlanKey};
pub use lowest_rows::row_of_a_constant;
pub use mask::{Band, Corner, Lengths, Mask};
pub use offsets::{Batch, CuSeqlens, PageTable, Pages, RaggedOffsets, Tokens, ragged_offsets};
pub use operands::{
    ALIGNMENT, BLOCK, Binding, NamedScalar, NamedTensor, Operand, OperandFact, ReadBy, SCRATCH_ALIGNMENT, TILE,
    block_scales, buffer_len, bytes_bound, nearest_name, operand, operands, score_tensor,
};
pub use origins::{MAX_ORIGIN, Origins};
pub use policy::{EngineName, EnginePolicy, NoEngineName};
pub use qkvault_base::{BadVersion, CudnnVersion, LibrarySet};
pub use reason::{NoReason, Origin, Reason, Refusal};
pub use registry::Code;
pub use role::{Role, Scaled, Varlen};
pub use role_name::UnknownRole;
pub use scale_update::{HISTORY_HEAD, MOST_HISTORY, MOST_MARGIN, ScaleUpdate, ScaledTensor, ValidScaleUpdate};
pub use storage::accumulator;
pub use tensor::{Interleave, Order, Part, Storage, Tensor};
pub use valid::{Fingerprint, Valid, validate};
