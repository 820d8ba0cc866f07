//! Which types are `Send` and `Sync`, checked when this crate is compiled.
//!
//! | type | `Send` | `Sync` | why |
//! |---|---|---|---|
//! | `Session` | yes | yes | each launch leases a handle of its own |
//! | `LoadedPlan` | yes | yes | launches of cuDNN's plan wait for each other while they are queued |
//! | `Arena`, `Slot` | yes | yes | a lock orders their uses |
//! | `Bound` | yes | no | a launch reads the scalars that `set_scalar` writes |
//! | `Launches` | yes | no | it has bound plans |
//! | `Captured`, `LaunchGraph` | no | no | only one thread at a time may use a CUDA graph |

use crate::raw;

const fn send<T: Send>() {}
const fn sync<T: Sync>() {}

const _: () = {
    send::<raw::RawSession>();
    sync::<raw::RawSession>();
    send::<raw::RawPlan>();
    sync::<raw::RawPlan>();
    send::<raw::RawBound>();
};

#[cfg(feature = "cudarc")]
const _: () = {
    send::<crate::Session>();
    sync::<crate::Session>();
    send::<crate::LoadedPlan>();
    sync::<crate::LoadedPlan>();
    send::<crate::Bound<'static>>();
    send::<crate::Args<'static>>();
    send::<crate::Arena>();
    sync::<crate::Arena>();
    send::<crate::Slot<f32>>();
    sync::<crate::Slot<f32>>();
    send::<crate::BatchMetadata>();
    send::<crate::Launches<'static>>();
    send::<crate::Workspace>();
    sync::<crate::Workspace>();
};

/// Threads cannot share a bound plan:
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<qkvault_exec::raw::RawBound>();
/// ```
///
/// but it can move to another:
///
/// ```
/// fn moved<T: Send>() {}
/// moved::<qkvault_exec::raw::RawBound>();
/// ```
#[cfg(doctest)]
struct BoundIsNotSync;
