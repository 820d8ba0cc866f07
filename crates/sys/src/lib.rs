//! The raw cuDNN backend API: declarations generated from NVIDIA's header, loaded at run time, with owned objects and
//! complete errors.
//!
//! This layer knows nothing of attention. It finds a cuDNN ([`Search`]), opens it once ([`Library::open`]) and checks
//! that the libraries which cuDNN will open are present. [`Descriptor`] and [`CudnnHandle`] own their cuDNN objects. A
//! failing call returns the status, the attribute and cuDNN's message ([`CallError`]).
//!
//! Three rules hold throughout:
//!
//! * cuDNN's enums are integers with names, so a number that the header does not have is a valid value;
//! * nothing is linked: a program with this crate starts on a machine without cuDNN, and gets the reason as a value;
//! * a loaded cuDNN stays loaded, and a second one is refused.

#![warn(clippy::missing_errors_doc, clippy::must_use_candidate)]

#[rustfmt::skip]
#[allow(missing_docs, unused, non_camel_case_types, non_snake_case, non_upper_case_globals, unreachable_pub, clippy::all, clippy::pedantic)]
#[allow(clippy::undocumented_unsafe_blocks, reason = "generated")]
mod bindings;
mod attribute;
mod busy;
#[cfg(doctest)]
mod compile_fail;
mod declare;
mod descriptor;
mod element;
mod ending;
mod error;
mod execution;
mod handle;
pub mod headless;
mod library;
pub mod log;
mod names;
mod needs;
mod open;
mod places;
mod process;
mod search;
mod tried;

pub use bindings::{
    AttributeName, AttributeType, BehaviorNote, DataType, HeurMode, Kind, KnobType, NumericalNote, OperationGraphMode,
    PointwiseMode, ReduceTensorOp, ReshapeMode, RngDistribution, Severity, Status, TensorReordering,
};
pub use descriptor::Descriptor;
pub use element::Element;
pub use ending::{Working, working};
pub use error::{CallError, CudnnLoadError, Error};
pub use execution::{ExecutionPlan, VariantPack};
pub use handle::CudnnHandle;
pub use library::{Library, LoadedFile};
pub use needs::NvrtcLibrary;
pub use qkvault_base::{CudnnVersion, LibrarySet};
pub use search::Search;
pub use tried::{SearchStep, Tried, UnusableReason};
