//! Attention described as data.
//!
//! * [`Attention`] is the description; [`validate`] reports every problem, or returns a [`Valid`] one in canonical
//!   form.
//! * [`Valid::key`] identifies a description, [`plan_key`] a compiled plan.
//! * [`lower`] turns a valid attention into the [`OpGraph`] that cuDNN gets for a [`Target`].
//! * [`text`] is the text form of an attention: people write it, and it is printed and parsed.
//! * [`operands`] are the buffers that an attention reads and writes, by role.
//! * [`Conversion`] describes how a tensor becomes 8 bits with scales, and back.
//! * [`registry`] has every reason for which an attention is refused, with its facts.
//! * [`expr`] is the closed language of score expressions.
//!
//! The crate needs neither CUDA nor cuDNN nor a C++ compiler, and has no unsafe code.
//!
//! ```
//! use qkvault_graph::{Attention, CompileOptions, CudnnVersion, DType, LibrarySet, Profile, lower, plan_key};
//!
//! let attention = Attention::bshd(1, (32, 8), (4096, 4096), 128, DType::BF16).causal().with_stats().validate()?;
//! let target = Profile::named("h200")?.target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
//! let graph = lower(&attention, &target, &CompileOptions::default())?;
//! println!("{}\n{graph}", plan_key(&graph, &target, &CompileOptions::default()));
//! # Ok::<(), qkvault_graph::Refusal>(())
//! ```
#![forbid(unsafe_code)]

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
pub mod compiler_env;
mod conversion;
mod device;
mod documents;
mod dtype;
pub mod expr;
mod key;
mod lower;
mod lowest_rows;
mod mask;
mod offsets;
pub mod op;
mod operands;
mod origins;
mod policy;
mod reason;
pub mod registry;
mod role;
mod role_name;
mod role_uid;
mod storage;
mod summary;
mod target;
mod tensor;
pub mod text;
mod toolchain;
mod valid;

pub use attention::{
    Attention, BackwardOptions, Dropout, DropoutSource, Fp8, Gradients, Outputs, PaddedRows, Pass, ScoreModBprop,
};
pub use attention_form::ATTENTION_FORMAT;
pub use canon::bytes as canonical_bytes;
pub use combination::{COMBINATION_DTYPES, Combination, CombinationOperand, MOST_PARTS, Partial, ValidCombination};
pub use compiler_env::CompilerEnv;
pub use conversion::{Along, CONVERSION_DTYPES, Conversion, ConversionKind, ValidConversion};
pub use device::DeviceProps;
pub use documents::Documents;
pub use dtype::{DType, UnknownDType};
pub use expr::ScoreExpr;
pub use key::{BadKey, Choice, GraphKey, KEY_FORMAT, PlanKey, plan_key, plan_key_of};
pub use lower::{
    BadVariant, CompileOptions, FUSED_OPS, Form, Gain, Heuristics, LabOptions, VARIANTS, Variant, VariantRow,
    VariantSet, WIDE_OFFSETS, lower, refusals,
};
pub use lowest_rows::row_of_a_constant;
pub use mask::{Band, Corner, Lengths, Mask};
pub use offsets::{Batch, CuSeqlens, PageTable, Pages, RaggedOffsets, Tokens, ragged_offsets};
pub use op::OpGraph;
pub use operands::{
    BLOCK, NamedScalar, NamedTensor, Operand, OperandFact, ReadBy, TILE, buffer_len, nearest_name, operand, operands,
    score_tensor,
};
pub use origins::{MAX_ORIGIN, Origins};
pub use policy::{EngineName, EnginePolicy, NoEngineName};
pub use qkvault_base::{BadVersion, CudnnVersion, LibrarySet};
pub use reason::{NoReason, Origin, Reason, Refusal};
pub use registry::{BadQuirk, Code, QUIRKS, QuirkSet};
pub use role::{Role, Scaled, Varlen};
pub use role_name::UnknownRole;
pub use target::{Profile, Target};
pub use tensor::{Interleave, Order, Part, Storage, Tensor};
pub use toolchain::{BadNvrtc, HostArch, NvrtcVersion, Toolchain};
pub use valid::{Fingerprint, Valid, validate};
