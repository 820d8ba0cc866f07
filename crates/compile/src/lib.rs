//! Compiles plans of attentions with cuDNN, with or without a GPU, and keeps them in a vault.
//!
//! * [`Compiler`] puts an op graph to the library: the answer is a plan, or a refusal in the library's own words. It needs
//!   no GPU and no driver: the target's device properties are data, and a stand-in is loaded where there is no
//!   `libcuda.so.1`. One compilation takes 0.3 to 1 s of one core.
//! * [`Planner`] joins a compiler and a vault: what was compiled or refused once is looked up from then on. It asks the rules of
//!   `qkvault-probe` before the library.
//! * [`Plan`] is what is kept: cuDNN's bytes, and everything a launch needs to know beside them.
//!
//! Launching does none of this: see `qkvault-exec`.

mod attempt;
mod compile;
mod confirm;
mod convert;
mod deep;
mod engine;
mod failure;
mod fetch;
mod job;
mod limit;
mod passed;
mod plan;
mod planner;
mod pressure;
mod status;
mod toolchain;
mod uncompiled;
mod words;
mod write;

pub use compile::{Compiled, Compiler};
pub use confirm::Confirmation;
pub use convert::library_toolchain;
pub use deep::{Difference, RebuildCheck};
pub use failure::{Failure, Here};
pub use passed::PassedOver;
pub use plan::{BadPlan, Plan, PlanFacts};
pub use planner::{OnMiss, PlanError, Planner, Resolution};

pub use qkvault_cache as cache;
pub use qkvault_graph as graph;
pub use qkvault_sys as sys;
