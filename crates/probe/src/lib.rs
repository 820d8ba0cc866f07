//! Can this GPU and this cuDNN run this attention, and if not why? Answers from the registry of `qkvault-graph`: what a
//! cuDNN is known not to take, what it takes and computes wrongly, and what qkvault has not built.
//!
//! [`check`] answers in microseconds, with no library and no GPU: every reason is told, not the first. Asking the library
//! itself (`qkvault-compile`) takes 0.3 to 1 s and leaves a plan in the vault; launching does neither.
//!
//! A reason is an [entry](qkvault_graph::registry::Entry) of the registry whose condition holds: a stable code, the
//! versions and GPUs that it is about, what is needed, how to fix it, and where it is known from. Entries are written from
//! what the library answered (`docs/results/probe.md`, `tests/goldens`), from what a GPU computed, and from NVIDIA's front
//! end where that is named. What lowering refuses by itself is among them, so that there is one answer.
//!
//! What is computed wrongly (a quirk) is refused until it is allowed by its code
//! ([`CompileOptions::allowed`](qkvault_graph::CompileOptions), [`Request::allowing`], `Planner::allowing`); the plan has a
//! key of its own then.
//!
//! ```
//! use qkvault_graph::{Attention, CudnnVersion, DType, LibrarySet, Profile, validate};
//! use qkvault_graph::registry::codes;
//! use qkvault_probe::{Request, check};
//!
//! let odd = validate(Attention::bshd(1, (8, 8), (512, 512), 100, DType::F16))?;
//! let target = Profile::named("h200")?.target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
//! let refusal = check(&Request::new(&odd, &target)).refusal().expect("100 is no multiple of 8");
//! assert!(refusal.has(&codes::HEAD_DIM_MULTIPLE_OF_8));
//! # Ok::<(), qkvault_graph::Refusal>(())
//! ```

mod budget;
#[cfg(doctest)]
mod compile_fail;
mod memory;
mod nearest;
mod page;
mod request;

pub use budget::{Basis, Budget, on_device};
pub use memory::Footprint;
pub use nearest::{Near, changes, nearest};
pub use page::page as codes_page;
pub use request::{Request, Verdict, check, lowered};

pub use qkvault_graph as graph;
