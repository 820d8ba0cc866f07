//! cuDNN attention for Rust.
//!
//! An attention is described once, as data ([`graph`]). From that one value qkvault says whether a GPU can run it and why
//! not ([`probe`]), compiles cuDNN's plans for it on any machine ([`compile`]; a GPU is not needed), keeps them in a vault on disk
//! ([`cache`]), and launches them in microseconds (`exec`). The crate `qkvault-reference` computes the same on the CPU in float64; the
//! feature `oracle` has it here.
//!
//! The [`guide`] has a page for each thing that people come for; begin with [`guide::getting_started`].
//!
//! ```
//! use qkvault::graph::{Attention, Band, CudnnVersion, DType, LibrarySet, CompileOptions, Profile, lower, plan_key, validate};
//!
//! // Llama-3.1-8B's attention over a prompt of 4096 tokens, bf16, BSHD.
//! let attention = Attention::bshd(1, (32, 8), (4096, 4096), 128, DType::BF16).with_band(Band::CAUSAL);
//! let attention = validate(attention)?; // every problem at once, or a valid description
//! println!("{attention}: {}", attention.key());
//!
//! // What cuDNN 9.27 would be given for an H200, still data; and the key its plan is known by.
//! let target = Profile::named("h200")?.target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
//! let graph = lower(&attention, &target, &CompileOptions::default())?;
//! println!("{}", plan_key(&graph, &target, &CompileOptions::default()));
//! # Ok::<(), qkvault::graph::Refusal>(())
//! ```
//!
//! What an attention does to its scores is data as well: an expression in a closed language, written with Rust's operators or
//! taken from a library of common ones. Its derivative follows from it, and so does every gradient.
//!
//! ```
//! use qkvault::graph::expr::{library, score, scalar, vjp};
//! use qkvault::graph::{Attention, BackwardOptions, DType, Role, validate};
//! use qkvault_reference::{Inputs, check_gradients};
//!
//! // Gemma's softcap with ALiBi on top, and several documents in one sequence: 2 sequences, 4 query heads over 2 key heads.
//! let modified = library::alibi(library::softcap(score(), scalar("softcap")), 4).build_score_mod()?;
//! let documents = library::document_mask("document_of_query", "document_of_key", 2, 12, 12).build_mask_mod()?;
//!
//! // The derivative by the score, over the recomputed score. ALiBi does not depend on it.
//! let derived = vjp(&modified).expect("softcap is smooth").d_score;
//! println!("{modified}\n{derived}");
//! assert_eq!(derived.to_string(), "scalar $softcap: float; let t0 = tanh(score / $softcap); -(t0 * t0) + 1.0");
//!
//! let attention = Attention::bshd(2, (4, 2), (12, 12), 16, DType::BF16).with_score_mod(modified).with_mask_mod(documents).with_stats();
//! let forward = validate(attention)?;
//! // Known by its meaning: the same in every process and on every machine, whatever scalars and tensors are called or hold.
//! println!("{}", forward.key());
//! assert_eq!(forward.key().to_string(), "ce8cfd4c1f161563a5cbcf5faead3301196069e06f93d4d01816ebd6606cd889");
//!
//! // The backward is derived from the forward, and its gradients are checked against slopes that are measured.
//! let backward = validate(forward.backward(BackwardOptions::default()))?;
//! let mut inputs = Inputs::random(&backward, 1)?;
//! inputs.set_f32(Role::Scalar(0), 30.0);
//! inputs.add_forward(&backward)?;
//! let found = check_gradients(&backward, &inputs, 16, 1)?;
//! println!("{} elements of dQ, dK and dV, the worst off by {:.1e}", found.elements, found.worst);
//! assert!(found.elements == 48 && found.worst < 1e-6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(feature = "exec"), allow(rustdoc::broken_intra_doc_links))]

#[cfg(feature = "exec")]
pub mod guide;

pub use qkvault_cache as cache;
pub use qkvault_compile as compile;
#[cfg(feature = "exec")]
pub use qkvault_exec as exec;
pub use qkvault_graph as graph;
pub use qkvault_models as models;
pub use qkvault_probe as probe;
#[cfg(feature = "oracle")]
pub use qkvault_reference as reference;
pub use qkvault_serving as serving;
pub use qkvault_sys as sys;

/// The README's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
