//! Plans on a device: load, bind by role, launch.

mod bindings;
mod check;
mod driver;
mod find;
mod fit;
mod machine;
mod properties;
pub mod raw;
#[cfg(feature = "cudarc")]
mod safe;
mod scratch;
mod threads;

pub use bindings::Number;
pub use check::{BindError, BindErrors, check_bindings, check_workspace};
pub use driver::{MemoryKind, NoDriver, driver, memory_kind};
pub use find::{DRIVERS, PrepareError, Prepared, candidates, prepare};
pub use fit::{DriverRule, LOAD_RULES, LoadRules, Mismatch, OtherMachine, check_fit};
pub use machine::Machine;
pub use properties::PropertiesError;
pub use raw::bound::{LaunchError, SlotError};
pub use raw::load::LoadError;
pub use raw::session::{SessionError, SessionOptions, SessionStats};
pub use scratch::SCRATCH_ALIGNMENT;

#[cfg(feature = "cudarc")]
pub use safe::{
    bound::{BindFailure, Bound},
    capture::Captured,
    device::{Device, DeviceError},
    engine::Engine,
    operands::{Bindings, Element},
    session::{LoadedPlan, Session},
    workspace::{Workspace, WorkspaceError},
};

/// The crate whose contexts, streams and slices the safe layer takes.
#[cfg(feature = "cudarc")]
pub use cudarc;
