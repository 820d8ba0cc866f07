//! What most programs need: `use qkvault::prelude::*;`.

pub use crate::{Error, ErrorKind, Runtime};
pub use qkvault_exec::serving::{Rows, Step};
pub use qkvault_exec::{Args, BatchMetadata, LoadedPlan, Training, TrainingPair};
pub use qkvault_graph::{Attention, BackwardOptions, Band, DType, Role, Valid, validate};
