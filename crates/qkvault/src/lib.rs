//! cuDNN attention for Rust.
//!
//! An attention is described once, as data ([`graph`]). From that one value qkvault says whether a GPU can run it and why
//! not, compiles cuDNN's plans for it on any machine ([`probe`]; a GPU is not needed), keeps them in a vault on disk
//! ([`cache`]), and launches them in microseconds (`exec`). [`reference`](mod@reference) computes the same on the CPU in float64.
//!
//! ```
//! use qkvault::graph::{Attention, Band, CudnnVersion, DType, LibrarySet, Policy, Profile, lower, plan_key, validate};
//!
//! // Llama-3.1-8B's attention over a prompt of 4096 tokens, bf16, BSHD.
//! let attention = Attention::bshd(1, (32, 8), (4096, 4096), 128, DType::BF16).with_band(Band::CAUSAL);
//! let attention = validate(attention)?; // every problem at once, or a valid description
//! println!("{attention}: {}", attention.key());
//!
//! // What cuDNN 9.27 would be given for an H200, still data; and the key its plan is known by.
//! let target = Profile::named("h200")?.target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
//! let graph = lower(&attention, &target, &Policy::default())?;
//! println!("{}", plan_key(&graph, &target, &Policy::default()));
//! # Ok::<(), qkvault::graph::Refusal>(())
//! ```

#[cfg(feature = "cli")]
pub mod cli;

pub use qkvault_cache as cache;
#[cfg(feature = "exec")]
pub use qkvault_exec as exec;
pub use qkvault_graph as graph;
pub use qkvault_probe as probe;
pub use qkvault_reference as reference;
pub use qkvault_sys as sys;

/// The README's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
