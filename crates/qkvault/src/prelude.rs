//! What most programs need: `use qkvault::prelude::*;`. These names are what the package promises to keep; everything
//! else is reached by the crate that has it.

pub use crate::{Check, Checked, Error, ErrorKind, Preload, Runtime, RuntimeOptions, Warmed};
pub use qkvault_cache::VaultOptions;
pub use qkvault_exec::serving::{Rows, Step};
pub use qkvault_exec::{Args, BatchMetadata, Bound, Captured, LoadedPlan, Served, Training, TrainingPair};
pub use qkvault_graph::expr::{Expr, library, scalar, score};
pub use qkvault_graph::{
    Attention, BackwardOptions, Band, DType, Origins, Refusal, Role, Tensor, Valid, text, validate,
};
