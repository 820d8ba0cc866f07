//! What may move between threads and what may be shared, checked when this crate is compiled.
//!
//! | type | `Send` | `Sync` | why |
//! |---|---|---|---|
//! | `Session` | yes | yes | handles are leased, never shared |
//! | `LoadedPlan` | yes | yes | cuDNN's plan is behind a lock |
//! | `Bound` | yes | no | a launch reads the numbers that `set_scalar` writes |
//! | `Captured` | no | no | CUDA's graph objects must stay with one thread at a time |

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
    send::<crate::Bindings<'static>>();
    send::<crate::Engine>();
    sync::<crate::Engine>();
    send::<crate::Workspace>();
    sync::<crate::Workspace>();
};

/// A bound plan cannot be launched from two threads at one time:
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
