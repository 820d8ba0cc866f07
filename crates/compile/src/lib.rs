//! Compiles plans of attentions with cuDNN, with or without a GPU, and stores them in a vault.
//!
//! * [`Compiler`] gives an op graph to cuDNN and returns a plan, or a refusal with cuDNN's message. It needs neither a
//!   GPU nor a driver: the target's device properties are data, and without `libcuda.so.1` it loads a stand-in. One
//!   compilation takes 0.3 to 1 s of one core.
//! * [`Nvrtc`] compiles kernels of CUDA C to machine code, without a GPU and without cuDNN.
//! * [`Planner`] combines a compiler and a vault: it looks up what was compiled or refused before. It asks the rules of
//!   `qkvault-probe` before cuDNN.
//! * [`Plan`] is stored: cuDNN's bytes, and everything else that a launch needs.
//!
//! Launching is in `qkvault-exec`.

mod attempt;
mod blob;
mod bound;
mod choice;
mod combination;
mod compile;
mod computation;
mod confirm;
mod conversion;
mod convert;
mod deep;
mod difference;
mod engine;
mod fa4;
mod facts;
mod failure;
mod fetch;
mod job;
mod kernels;
mod limit;
mod look;
mod nvrtc;
mod open;
mod origin;
mod passed;
mod plan;
mod plan_error;
mod planner;
mod pressure;
mod same_code;
mod status;
mod toolchain;
mod uncompiled;
mod words;
mod write;

pub use blob::Blob;
pub use choice::{
    Answer, Because, Candidates, EngineChoice, Gap, Passed, Why, ask_engines, beside_cudnns, refuses, unproven,
};
pub use compile::{Compiled, Compiler};
pub use computation::Computation;
pub use confirm::Confirmation;
pub use convert::library_toolchain;
pub use deep::{RebuildCheck, Rebuilder};
pub use difference::Difference;
pub use fa4::{Fa4Failure, Fa4Plan};
pub use facts::{Altered, PlanFacts};
pub use failure::{Failure, Here};
pub use kernels::{KernelCompiler, KernelFacts, KernelPlan, is_of_kernels, kernel_compiler_of};
pub use nvrtc::{NVRTC, NVRTC_DRIVER, Nvrtc, NvrtcError, NvrtcTried};
pub use origin::Description;
pub use passed::PassedOver;
pub use plan::{BadPlan, Plan};
pub use planner::{OnMiss, PlanError, Planner, Resolution};

pub use qkvault_kernels::Engine;

pub use qkvault_cache as cache;
pub use qkvault_graph as graph;
pub use qkvault_sys as sys;
