//! Plans on a device: load, bind by role, launch.
//!
//! * [`Device`] is a GPU. Opening one returns an error value where there is none.
//! * [`Session`] is a GPU with a cuDNN. It loads plans ([`Session::load`]) after a comparison of everything that is
//!   known to matter, or looks them up in a vault and loads them ([`Session::prepare`]).
//! * [`LoadedPlan::launch`] queues a launch with the operands and scalars of [`Args`], by name or by
//!   [`Role`](qkvault_graph::Role). It checks them in nanoseconds, and allocates and looks up nothing.
//! * [`LoadedPlan::bind`] checks arguments once and returns a [`Bound`] plan, to be launched many times, or captured.
//! * [`TrainingPair`] is a forward that keeps what its backward needs, and that backward, from one description
//!   ([`Training`]).
//! * [`raw`] is the layer without cudarc: addresses are numbers and streams are pointers. Without the feature `cudarc`
//!   it is the only layer.
//!
//! ```no_run
//! # #[cfg(feature = "cudarc")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use half::bf16;
//! use qkvault_cache::{Vault, VaultOptions};
//! use qkvault_exec::{Args, Device, Session};
//! use qkvault_cudnn::CompileOptions;
//! use qkvault_graph::{Attention, DType};
//! use qkvault_compile::{OnMiss, Planner};
//! use qkvault_sys::{Library, Search};
//!
//! let device = Device::open(0)?;
//! let session = Session::open(&device, &Library::open(&Search::default())?)?;
//! let planner = Planner::new(Vault::open(VaultOptions::new())?, None);
//!
//! let attention = Attention::bshd(1, (32, 8), (512, 512), 128, DType::BF16).causal().validate()?;
//! let plan = session.prepare(&planner, &attention, &CompileOptions::default(), OnMiss::Load)?.plan;
//!
//! let stream = device.context().new_stream()?;
//! let q = stream.alloc_zeros::<bf16>(32 * 512 * 128)?;
//! let (k, v) = (stream.alloc_zeros::<bf16>(8 * 512 * 128)?, stream.alloc_zeros::<bf16>(8 * 512 * 128)?);
//! let mut o = stream.alloc_zeros::<bf16>(32 * 512 * 128)?;
//! plan.launch(&stream, Args::new().q(&q).k(&k).v(&v).o(&mut o))?;
//! // Another scale, no new plan; then as a CUDA graph that owns its operands.
//! plan.launch(&stream, Args::new().q(&q).k(&k).v(&v).o(&mut o).scale(0.1))?;
//! let mut graph = plan.bind(Args::new().q(q).k(k).v(v).o(o), &stream)?.capture(&stream)?;
//! graph.launch()?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "cudarc"))]
//! # fn main() {}
//! ```
//!
//! # CUDA graphs
//!
//! [`Bound::capture`] records one launch and returns a [`Captured`] launch to replay. The order among streams stays
//! outside the graph. A capture reads addresses and the values of scalars; [`Captured::update`] replaces both.
//!
//! To record launches together with other work, capture with cudarc (`begin_capture`, `end_capture`) and use
//! [`LoadedPlan::launch_captured`] or [`Bound::launch_captured`] between them. They are `unsafe`, because no event
//! orders the replays, and nothing keeps plan, operands and workspace but you. While cudarc tracks events, its own
//! copies and kernels wait for events from outside the capture, which makes it invalid: record those by
//! `cudarc::driver::result`, or turn tracking off. The session needs a handle that is on the stream before the capture
//! begins: launch there once.
//!
//! # Threads
//!
//! Threads may share sessions and loaded plans; a bound plan may move between threads. Each launch leases a handle from
//! the session, so that two launches never share one. The end of a thread destroys nothing.

#![cfg_attr(not(feature = "cudarc"), allow(rustdoc::broken_intra_doc_links))]

mod bind_error;
mod bindings;
mod check;
mod clear;
pub mod codes;
mod combination;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
#[cfg(all(doctest, feature = "cudarc"))]
mod compile_fail;
mod constants;
mod conversion;
mod driver;
mod find;
mod origins;
mod properties;
pub mod raw;
#[cfg(feature = "cudarc")]
mod safe;
#[cfg(feature = "cudarc")]
mod scales;
mod scratch;
pub mod serving;
mod threads;
mod training;

pub use bind_error::{BindError, BindErrors};
pub use bindings::Number;
pub use driver::{MemoryKind, NoDriver};
pub use find::{PrepareError, Prepared, prepare, prepare_on};
pub use properties::PropertiesError;
pub use qkvault_compile::{Machine, Mismatch, OtherMachine};
pub use qkvault_graph::SCRATCH_ALIGNMENT;
pub use raw::launch_error::{LaunchError, ScalarError};
pub use raw::load_error::LoadError;
pub use raw::session::{SessionError, SessionOptions, SessionStats};
pub use training::{ScaleRecipe, Scales, Training, TrainingError};

#[cfg(feature = "cudarc")]
pub use safe::{
    arena::{Arena, ArenaError, Slot},
    args::{Args, Which},
    batch::{BatchError, BatchMetadata, Uploaded},
    bound::{BindFailure, Bound},
    capture::{Captured, UpdateError, Updated},
    device::{Device, DeviceError, DeviceMemory},
    element::Element,
    launches::{LaunchGraph, Launches},
    launches_error::LaunchesError,
    operands::{Input, Output},
    plan::LoadedPlan,
    scaling::Fp8Training,
    serving::{ServePlan, Served},
    session::Session,
    train_error::TrainStepError,
    training::{SavedForBackward, TrainingPair},
    workspace::{Workspace, WorkspaceError},
};

/// Functions for tests that are programs of their own: on a GPU, or with several cuDNN versions. Not part of the
/// interface.
#[doc(hidden)]
pub mod testing {
    pub use crate::driver::{driver, memory_kind};
    pub use crate::properties::present_target;
    pub use crate::raw::load::would_load;
    pub use qkvault_compile::check_fit;
}

/// The crate whose contexts, streams and slices the safe layer uses.
#[cfg(feature = "cudarc")]
pub use cudarc;
