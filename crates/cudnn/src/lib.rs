//! What cuDNN computes of an attention, as data.
//!
//! * [`Target`] is what a plan is compiled for: the exact cuDNN, its toolchain and the GPU; a [`Profile`] is a captured
//!   GPU.
//! * [`lower`] turns a valid attention into the [`OpGraph`] that cuDNN gets for a target, or says why not.
//! * [`plan_key`] identifies the compiled plan.
//! * [`registry`] has every reason for which cuDNN's engine refuses, with its facts.
//!
//! The crate needs neither CUDA nor cuDNN nor a C++ compiler, and has no unsafe code: `qkvault-sys` calls cuDNN, and
//! `qkvault-compile` compiles with it.
//!
//! ```
//! use qkvault_cudnn::{CompileOptions, Profile, lower, plan_key};
//! use qkvault_graph::{Attention, CudnnVersion, DType, LibrarySet};
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
mod canon;
#[cfg(doctest)]
mod compile_fail;
pub mod compiler_env;
mod device;
mod key;
mod lower;
pub mod op;
pub mod registry;
mod target;
mod toolchain;

// A description's words are this crate's too.
#[allow(clippy::wildcard_imports, reason = "everything here is about descriptions")]
use qkvault_graph::*;

pub use compiler_env::CompilerEnv;
pub use device::DeviceProps;
pub use key::{Choice, plan_key, plan_key_of};
pub use lower::{
    BadVariant, CompileOptions, FUSED_OPS, Form, Gain, Heuristics, LabOptions, VARIANTS, Variant, VariantRow,
    VariantSet, WIDE_OFFSETS, lower, refusals,
};
pub use op::OpGraph;
pub use registry::{BadQuirk, QUIRKS, QuirkSet};
pub use target::{Profile, Target};
pub use toolchain::{BadNvrtc, HostArch, NvrtcVersion, Toolchain};
