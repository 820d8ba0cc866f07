//! The raw layer: sessions, plans and launches for callers without cudarc. Addresses are numbers and streams are
//! pointers.
//!
//! The safe layer is built on it. A function is `unsafe` where it relies on a promise of the caller: a context is
//! current, or addresses stay valid until a launch is finished. Its types are named `Raw...`, so that a program can use
//! both layers. [`prepare`](crate::prepare) looks plans up for this layer too.

pub(crate) mod bound;
pub(crate) mod constants;
pub(crate) mod conversion;
pub(crate) mod cubins;
pub(crate) mod cudnn;
pub(crate) mod described;
pub(crate) mod gpu;
pub(crate) mod host_scalars;
pub(crate) mod ids;
pub(crate) mod kept;
pub(crate) mod kernels;
pub(crate) mod launch;
pub(crate) mod launch_error;
pub(crate) mod load;
pub(crate) mod load_error;
pub(crate) mod order;
pub(crate) mod packs;
pub(crate) mod pool;
pub(crate) mod primary;
pub(crate) mod relaxed;
pub(crate) mod session;
pub(crate) mod table;

pub use crate::bindings::{RawBindings, RawOperand};
pub use crate::constants::slopes as constant_values;
pub use crate::driver::driver;
pub use bound::RawBound;
pub use conversion::ConversionArgs;
pub use cudnn::CudnnSource;
pub use described::RawDescribed;
pub use gpu::Gpu;
pub use ids::PlanId;
pub use launch::{DeviceBuffer, RawArgs};
pub use launch_error::RawBindFailure;
pub use load::{LoadTimes, RawPlan};
pub use order::{LaunchOrder, NamedArgs};
pub use session::RawSession;
pub use table::{PlanName, PlanTable, TableError};
