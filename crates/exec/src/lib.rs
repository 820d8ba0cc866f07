//! Plans on a device: load, bind by role, launch.
//!
//! * [`Device`] is a GPU. Opening one returns an error value where there is none.
//! * [`Session`] is a GPU with a cuDNN. It loads plans ([`Session::load`]) after a comparison of everything that is
//!   known to matter, or looks them up in a vault and loads them ([`Session::prepare`], [`Engine`]).
//! * [`LoadedPlan::bind`] takes slices and scalars by [`Role`](qkvault_graph::Role), checks them all, and returns a
//!   [`Bound`] plan.
//! * [`Bound::launch`] queues a launch. It probes, hashes, builds, allocates and looks up nothing.
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
//! use qkvault_exec::{Bindings, Device, Engine, Session};
//! use qkvault_graph::{Attention, Band, DType, CompileOptions, Role, validate};
//! use qkvault_compile::{OnMiss, Planner};
//! use qkvault_sys::{Library, Search};
//!
//! let device = Device::open(0)?;
//! let session = Session::open(&device, &Library::open(&Search::default())?)?;
//! let engine = Engine::new(session, Planner::new(Vault::open(VaultOptions::new())?, None))?;
//!
//! let attention = validate(Attention::bshd(1, (32, 8), (512, 512), 128, DType::BF16).with_band(Band::CAUSAL))?;
//! let plan = engine.prepare(&attention, &CompileOptions::default(), OnMiss::Load)?.plan;
//!
//! let stream = device.context().new_stream()?;
//! let q = stream.alloc_zeros::<bf16>(32 * 512 * 128)?;
//! let (k, v) = (stream.alloc_zeros::<bf16>(8 * 512 * 128)?, stream.alloc_zeros::<bf16>(8 * 512 * 128)?);
//! let mut o = stream.alloc_zeros::<bf16>(32 * 512 * 128)?;
//! let bindings = Bindings::new().slice(Role::Q, &q).slice(Role::K, &k).slice(Role::V, &v).slice_mut(Role::O, &mut o);
//! let mut bound = plan.bind(bindings.scalar(Role::Scale, 0.088_388_35_f32), &stream)?;
//! bound.launch(&stream)?;
//! // Another scale, no new plan; then as a CUDA graph.
//! bound.set_scalar(Role::Scale, 0.1_f32)?;
//! let mut graph = bound.capture(&stream)?;
//! graph.launch()?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "cudarc"))]
//! # fn main() {}
//! ```
//!
//! # CUDA graphs
//!
//! [`Bound::capture`] records one launch and returns a [`Captured`] launch to replay. cudarc's event tracking stays
//! outside the graph.
//!
//! To record launches together with other work, capture with cudarc (`begin_capture`, [`Bound::launch`],
//! `end_capture`). In that case you must do three things:
//!
//! * Turn event tracking off during the capture (`CudaContext::disable_event_tracking`). Its waits on events from
//!   outside would break the capture; [`Bound::launch`] returns an error while it is on.
//! * Give the session as many handles as launches run at one time ([`SessionOptions::handles`]), because no handle can
//!   be created during a capture.
//! * Keep the bound plan alive as long as the graph.
//!
//! A capture reads the values of scalars; [`Bound::set_scalar`] does not change later replays.
//!
//! # Threads
//!
//! Threads may share sessions and loaded plans; a bound plan may move between threads. Each launch leases a handle from
//! the session, so that two launches never share one. The end of a thread destroys nothing.

#![cfg_attr(not(feature = "cudarc"), allow(rustdoc::broken_intra_doc_links))]

mod bind_error;
mod bindings;
mod candidates;
mod check;
mod clear;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
mod driver;
mod find;
mod fit;
mod machine;
mod properties;
pub mod raw;
#[cfg(feature = "cudarc")]
mod safe;
mod scratch;
pub mod serving;
mod threads;
mod training;

pub use bind_error::{BindError, BindErrors};
pub use bindings::Number;
pub use driver::{MemoryKind, NoDriver};
pub use find::{PrepareError, Prepared, prepare};
pub use fit::{Mismatch, OtherMachine};
pub use machine::Machine;
pub use properties::PropertiesError;
pub use qkvault_graph::op::SCRATCH_ALIGNMENT;
pub use raw::launch_error::{LaunchError, ScalarError};
pub use raw::load_error::LoadError;
pub use raw::session::{SessionError, SessionOptions, SessionStats};
pub use training::{Training, TrainingError};

#[cfg(feature = "cudarc")]
pub use safe::{
    batch::{BatchError, BatchMetadata, Uploaded},
    bound::{BindFailure, Bound},
    capture::Captured,
    device::{Device, DeviceError, DeviceMemory},
    engine::Engine,
    operands::{Bindings, Element},
    serving::{ServePlan, Served},
    session::{LoadedPlan, Session},
    training::{SavedForBackward, TrainStepError, TrainingPair},
    workspace::{Workspace, WorkspaceError},
};

/// Functions for tests that are programs of their own: on a GPU, or with several cuDNN versions. Not part of the
/// interface.
#[doc(hidden)]
pub mod testing {
    pub use crate::driver::{driver, memory_kind};
    pub use crate::fit::check_fit;
    pub use crate::properties::present_target;
    pub use crate::raw::load::would_load;
}

/// The crate whose contexts, streams and slices the safe layer uses.
#[cfg(feature = "cudarc")]
pub use cudarc;
