//! Attention for Rust, compiled ahead of time: cuDNN, FlashAttention-4, own kernels.
//!
//! You describe an attention once, as data ([`graph`]). From this description qkvault checks whether a GPU supports it,
//! with reasons if not ([`probe`]), compiles plans on any machine, even without a GPU ([`compile`]), keeps them in a
//! vault on disk ([`cache`]), and launches them in microseconds (`exec`). The crate `qkvault-reference` computes the
//! same attention on the CPU in float64; the feature `oracle` re-exports it.
//!
//! The [`guide`] has a page for each task. Begin with [`guide::getting_started`].
//!
//! ```
//! use qkvault::cudnn::{CompileOptions, Profile, lower, plan_key};
//! use qkvault::graph::{Attention, CudnnVersion, DType, LibrarySet};
//!
//! // Llama-3.1-8B's attention over a prompt of 4096 tokens, bf16, BSHD.
//! let attention = Attention::bshd(1, (32, 8), (4096, 4096), 128, DType::BF16).causal();
//! let attention = attention.validate()?; // reports all problems at once
//! println!("{attention}: {}", attention.key());
//!
//! // The op graph for cuDNN 9.27 on an H200, which is also data, and the key of its plan.
//! let target = Profile::named("h200")?.target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
//! let graph = lower(&attention, &target, &CompileOptions::default())?;
//! println!("{}", plan_key(&graph, &target, &CompileOptions::default()));
//! # Ok::<(), qkvault::graph::Refusal>(())
//! ```
//!
//! A score modification is data, too: an expression in a closed language, written with Rust's operators or taken from a
//! library of common functions. qkvault derives its derivative, and therefore every gradient.
//!
//! ```
//! use qkvault::graph::expr::{library, score, scalar, vjp};
//! use qkvault::graph::{Attention, BackwardOptions, DType, Role, validate};
//! use qkvault::reference::{Inputs, check_gradients};
//!
//! // Gemma's softcap with ALiBi on top, and several documents in one sequence: 2 sequences, 4 query and 2 key heads.
//! let modified = library::alibi(library::softcap(score(), scalar("softcap")), 4).build_score_mod()?;
//! let documents = library::document_mask("document_of_query", "document_of_key", 2, 12, 12).build_mask_mod()?;
//!
//! // The derivative by the score, as an expression of the recomputed score. ALiBi does not depend on the score.
//! let derived = vjp(&modified).expect("softcap is smooth").d_score;
//! println!("{modified}\n{derived}");
//! assert_eq!(derived.to_string(), "scalar $softcap: float; let t0 = tanh(score / $softcap); -(t0 * t0) + 1.0");
//!
//! let attention = Attention::bshd(2, (4, 2), (12, 12), 16, DType::BF16);
//! let forward = validate(attention.with_score_mod(modified).with_mask_mod(documents).with_stats())?;
//! // The key depends only on the meaning: it is the same in every process and on every machine, for any names and
//! // values of scalars and tensors.
//! println!("{}", forward.key());
//! assert_eq!(forward.key().to_string(), "ce8cfd4c1f161563a5cbcf5faead3301196069e06f93d4d01816ebd6606cd889");
//!
//! // qkvault derives the backward from the forward. The oracle checks its gradients against finite differences.
//! let backward = validate(forward.backward(BackwardOptions::default()))?;
//! let mut inputs = Inputs::random(&backward, 1)?;
//! inputs.set_f32(Role::Scalar(0), 30.0);
//! inputs.add_forward(&backward)?;
//! let found = check_gradients(&backward, &inputs, 16, 1)?;
//! println!("{} elements of dQ, dK and dV, the worst off by {:.1e}", found.elements, found.worst);
//! assert!(found.elements == 48 && found.worst < 1e-6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(feature = "launch"), allow(rustdoc::broken_intra_doc_links))]
// The guide, the README and the examples show what safe code does.
#![doc(test(attr(forbid(unsafe_code))))]

#[cfg(feature = "launch")]
mod check;
#[cfg(feature = "launch")]
mod error;
#[cfg(feature = "launch")]
pub mod guide;
#[cfg(feature = "launch")]
mod offline;
#[cfg(feature = "launch")]
pub mod prelude;
#[cfg(feature = "launch")]
mod raw;
#[cfg(feature = "models")]
mod record;
#[cfg(all(feature = "launch", not(feature = "models")))]
#[path = "record/never.rs"]
mod record;
#[cfg(feature = "launch")]
mod runtime;

#[cfg(feature = "launch")]
pub use check::{Check, Checked};
#[cfg(feature = "launch")]
pub use error::{Error, ErrorKind};
#[cfg(all(feature = "launch", feature = "parallel"))]
pub use raw::RawRankPlans;
#[cfg(feature = "launch")]
pub use raw::{PrepareTimes, RawReady, RawRuntime};
#[cfg(feature = "models")]
pub use record::Recorder;
#[cfg(feature = "launch")]
pub use runtime::{Preload, Runtime, RuntimeOptions, Warmed};

pub use qkvault_cache as cache;
pub use qkvault_compile as compile;
pub use qkvault_compile::codes;
pub use qkvault_cudnn as cudnn;
pub use qkvault_cudnn::{CompileOptions, Profile, Target};
#[cfg(feature = "launch")]
pub use qkvault_exec as exec;
pub use qkvault_graph as graph;
#[cfg(feature = "models")]
pub use qkvault_models as models;
#[cfg(feature = "parallel")]
pub use qkvault_parallel as parallel;
pub use qkvault_probe as probe;
#[cfg(feature = "oracle")]
pub use qkvault_reference as reference;
pub use qkvault_serving as serving;
pub use qkvault_sys as sys;

/// Compiles the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Compiles the example of the package's own README.
#[cfg(all(doctest, feature = "launch"))]
#[doc = include_str!("../README.md")]
struct OwnReadme;
