//! Can this GPU and this cuDNN run this attention, and if not why? Compiles plans, with or without a GPU.
//!
//! * [`rules`] answer in microseconds, with no library: everything that is known to speak against a description on a target.
//! * [`Compiler`] puts an op graph to the library: the answer is a plan, or a refusal in the library's own words. It needs
//!   no GPU and no driver: the target's device properties are data, and a stand-in is loaded where there is no
//!   `libcuda.so.1`. One compilation takes 0.3 to 1 s of one core.
//! * [`Planner`] joins a compiler and a vault: what was compiled or refused once is looked up from then on.
//! * [`Plan`] is what is kept: cuDNN's bytes, and everything a launch needs to know beside them.
//!
//! Launching does none of this: see `qkvault-exec`.

mod attempt;
mod compile;
#[cfg(doctest)]
mod compile_fail;
mod confirm;
mod convert;
mod deep;
mod engine;
mod failure;
mod fetch;
mod job;
mod kernels;
mod limit;
mod passed;
mod plan;
mod planner;
mod pressure;
pub mod rules;
mod scratch;
mod status;
mod toolchain;
mod uncompiled;
mod words;
mod write;

pub use compile::{Compiled, Compiler};
pub use confirm::Confirmation;
pub use convert::{library_set, library_toolchain, library_version};
pub use deep::{Deep, Difference};
pub use failure::{Failure, Here};
pub use kernels::{DYNAMIC_SHAPES, DynamicShapes, KernelCache};
pub use passed::PassedOver;
pub use plan::{BadPlan, Binding, Fixed, Plan, PlanFacts};
pub use planner::{Answer, BuildPolicy, PlanError, Planner};
pub use scratch::{SCRATCH_ALIGNMENT, Scratch};

pub use qkvault_cache as cache;
pub use qkvault_graph as graph;
pub use qkvault_sys as sys;
