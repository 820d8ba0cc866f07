//! Can this GPU and this cuDNN run this attention, and if not why? Rules as data: what a cuDNN is known not to take, what it takes and
//! computes wrongly, and what qkvault has not built.
//!
//! [`check`] answers in microseconds, with no library and no GPU: every rule that applies is told, not the first. Asking the
//! library itself (`qkvault-compile`) takes 0.3 to 1 s and leaves a plan in the vault; launching does neither.
//!
//! A rule is a row of [`RULES`]: a stable code, a kind, the versions it holds for, a condition over a valid description and a
//! target, what is needed, how to fix it, and where it is known from. Rows are written from what the library answered
//! (`docs/results/probe.md`, `tests/goldens`), from what a card computed, and from NVIDIA's front end where that is named.
//! What lowering refuses by itself is folded in, so that there is one answer.
//!
//! What is computed wrongly (a quirk) is refused until it is allowed by its code ([`CompileOptions::allowed`](qkvault_graph::CompileOptions),
//! [`Request::allowing`], `Planner::allowing`); the plan has a key of its own then.
//!
//! ```
//! use qkvault_graph::{Attention, CudnnVersion, DType, LibrarySet, Profile, validate};
//! use qkvault_probe::{Request, check};
//!
//! let odd = validate(Attention::bshd(1, (8, 8), (512, 512), 100, DType::F16))?;
//! let target = Profile::named("h200")?.target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
//! let refusal = check(&Request::new(&odd, &target)).refusal().expect("100 is no multiple of 8");
//! assert!(refusal.has("head-dim.multiple-of-8"));
//! # Ok::<(), qkvault_graph::Refusal>(())
//! ```

mod budget;
mod codes;
#[cfg(doctest)]
mod compile_fail;
mod facts;
mod memory;
mod nearest;
mod request;
mod rule;
mod table;

pub use budget::{Basis, Budget, on_device};
pub use codes::{CODES, Code, page as codes_page};
pub use facts::Facts;
pub use memory::Footprint;
pub use nearest::{Near, changes, nearest};
pub use request::{Request, Verdict, check, lowered};
pub use rule::{Kind, Rule, Versions};
pub use table::RULES;

pub use qkvault_graph as graph;
