//! FlashAttention-4 as an engine: its kernels for dense attention on Hopper, forward and backward.
//!
//! * [`takes`] says which attentions the kernels take, and why not.
//! * [`Fa4Program::for_attention`] says which kernels a launch runs, with which arguments, without compiling anything.
//! * [`Installed`] is the fetched toolchain: it compiles kernels in a child process of Python, on any machine.
//! * [`Fa4Program::plan`] makes a launch [`LaunchRecipe`](qkvault_kernels::recipe::LaunchRecipe) of both.
//!
//! The host's side of a launch is written here, for each kernel. What the toolchain has for it, a program and a library
//! of its own, is not used: what a launch needs of the compiler is what it prints, the types of parameters and the
//! boxes of tensor maps, and every parameter is compared with what the machine code tells.
#![forbid(unsafe_code)]

mod args;
mod backward;
mod child;
mod code;
pub mod codes;
mod compiler;
mod divisor;
mod expression;
mod forward;
mod packed;
mod pages;
mod plan;
mod program;
mod proven;
mod python;
mod request;
mod schedule;
mod takes;
mod tiles;
mod told;
mod toolchain;
mod types;
mod views;

pub use args::{Boxes, ParameterMismatch};
pub use code::Function;
pub use compiler::{CompileError, CompiledKernel};
pub use plan::{CubinPlan, CubinPlanError};
pub use program::{Fa4Program, Own};
pub use proven::unproven;
pub use python::{NoPython, PYTHON_VARIABLE, Python};
pub use request::{Kernel, KernelRequest};
pub use takes::{HEAD_DIM, SM, takes};
pub use told::Told;
pub use toolchain::{DRIVER, Fa4Toolchain, Installed, NotInstalled, PYTHONS, TOOLCHAIN, folder};
pub use types::{Leaf, LeafKind, Type, UnknownType};

pub use qkvault_graph as graph;
