//! `libqkvault`: qkvault for programs in C and C++, and the library under its doors to PyTorch and JAX.
//!
//! The header `include/qkvault.h` is generated from these modules (`cargo xtask header`) and is the documentation for
//! users. What a function does is in `qkvault::RawRuntime` and the crates below it; these modules convert arguments,
//! catch panics and remember errors.
//!
//! * `status`: statuses, the last error of a thread, and the guard around every function.
//! * `handle`, `sized`, `text`: handles, structs that may grow, and strings across the border.
//! * `version`, `context`, `describe`, `operand`, `explain`, `plan`, `launch`, `training`, `communicator`, `rank`,
//!   `serving`, `batch`, `oracle`: the functions.
//!
//! Doors of frameworks are further folders beside these modules, with functions of the same prefix `qkv_`; `host`
//! computes their calls on CPUs.

#![allow(non_camel_case_types, reason = "types have the names that they have in C")]
#![allow(clippy::missing_safety_doc, reason = "the header says for every function what its caller promises")]

pub mod batch;
pub mod communicator;
pub mod context;
pub mod describe;
pub mod explain;
pub mod handle;
mod host;
pub mod launch;
pub mod operand;
pub mod oracle;
pub mod plan;
pub mod plan_info;
pub mod rank;
mod rank_body;
pub mod serving;
pub mod sharding;
pub mod sized;
pub mod status;
pub mod text;
pub mod torch;
pub mod training;
pub mod version;
pub mod xla;

/// What the header says of threads, as far as a compiler can tell it.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    const fn moved<T: Send>() {}
    shared::<context::RuntimeContext>();
    shared::<describe::DescriptionContent>();
    shared::<plan::Planned>();
    shared::<serving::Serving>();
    shared::<communicator::SharedLink>();
    moved::<batch::Batch>();
    moved::<rank::SharedRank>();
    moved::<oracle::Oracle>();
};
