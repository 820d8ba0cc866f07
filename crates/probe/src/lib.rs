//! Answers whether a GPU and a cuDNN support an attention, and if not, why. The answers come from the registry of
//! `qkvault-graph`: what a cuDNN version does not support, what it accepts and computes wrongly, and what qkvault has
//! not built.
//!
//! [`check`] answers in microseconds, without cuDNN and without a GPU, and reports every reason. To ask cuDNN itself
//! (`qkvault-compile`) takes 0.3 to 1 s and leaves a plan in the vault; launching does neither.
//!
//! A reason is an [entry](qkvault_cudnn::registry::Entry) of the registry whose condition holds. It has a stable code,
//! the affected versions and GPUs, what is needed, the fix, and the source. The sources are answers of cuDNN
//! (`docs/results/probe.md`, `tests/goldens`), results of a GPU, and NVIDIA's front end. The reasons of lowering are
//! included, so one check reports everything.
//!
//! A feature that cuDNN computes wrongly (a quirk) is refused until its code is allowed
//! ([`CompileOptions::allowed`](qkvault_cudnn::CompileOptions), [`Request::allowing`], `Planner::allowing`). The plan
//! then has a separate key.
//!
//! ```
//! use qkvault_cudnn::Profile;
//! use qkvault_graph::{Attention, CudnnVersion, DType, LibrarySet, validate};
//! use qkvault_cudnn::registry::codes;
//! use qkvault_probe::{Request, check};
//!
//! let odd = validate(Attention::bshd(1, (8, 8), (512, 512), 100, DType::F16))?;
//! let target = Profile::named("h200")?.target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
//! let refusal = check(&Request::new(&odd, &target)).refusal().expect("100 is not a multiple of 8");
//! assert!(refusal.has(&codes::HEAD_DIM_MULTIPLE_OF_8));
//! # Ok::<(), qkvault_graph::Refusal>(())
//! ```

mod advice;
mod budget;
#[cfg(doctest)]
mod compile_fail;
mod explain;
mod known;
mod memory;
mod nearest;
pub mod reports;
mod request;

pub use advice::{Advice, advice};
pub use budget::{Basis, Budget, on_device};
pub use explain::{Chosen, Explanation, Memory, NEWEST, NotChosen, Proposal, TRIED};
pub use known::{Guard, Known, KnownRange, Seen, Wrong, known_from, known_wrong, page as known_wrong_page};
pub use memory::Footprint;
pub use nearest::{Near, changes, nearest};
pub use request::{Request, Verdict, check, lowered};

pub use qkvault_graph as graph;
