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

mod blob;
mod choice;
pub mod codes;
mod computation;
mod confirm;
mod cudnn;
mod difference;
mod engine;
mod engines;
mod fa4;
mod facts;
mod fit;
pub mod host;
mod kernels;
mod limit;
mod look;
mod machine;
mod obtain;
mod origin;
mod plan;
mod plan_error;
mod planner;
mod rebuild;
mod same_code;
mod tensors;
pub mod times;

pub use blob::Blob;
pub use choice::{Because, Candidates, EngineChoice, Passed, Why, beside};
pub use computation::{Computation, Description};
pub use confirm::Confirmation;
pub use cudnn::CUDNN;
pub use cudnn::compiler::{Compiled, Compiler};
pub use cudnn::convert::library_toolchain;
pub use cudnn::failure::{Failure, Here};
pub use difference::Difference;
pub use engine::{Engine, EngineId, Gap, Gpu, Unbuilt, Work};
pub use engines::Engines;
pub use fa4::{FA4, Fa4Failure, Fa4Plan};
pub use facts::{Altered, CudnnFacts, KernelCompiler, KernelFacts, OwnFacts, PassedOver, PlanFacts};
pub use fit::{Mismatch, OtherMachine, check_fit, check_fit_of_kernels};
pub use kernels::nvrtc::{NVRTC, NVRTC_DRIVER, Nvrtc, NvrtcError, NvrtcTried};
pub use kernels::{KERNELS, KernelPlan};
pub use look::BadEntry;
pub use machine::Machine;
pub use plan::{BadPlan, Plan};
pub use planner::{OnMiss, PlanError, Planner, Resolution};
pub use rebuild::RebuildCheck;

pub use qkvault_cache as cache;
pub use qkvault_graph as graph;
pub use qkvault_sys as sys;
