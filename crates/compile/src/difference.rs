//! The difference between a stored entry and its rebuild.

use qkvault_graph::{CudnnVersion, PlanKey, Refusal, codec};

use crate::facts::Altered;
use crate::plan::BadPlan;

/// The difference between a stored entry and its rebuild.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    /// The entry is not a plan with this key.
    #[error("{0}")]
    Plan(#[from] BadPlan),
    /// What it was compiled from is missing or cannot be read.
    #[error("its description cannot be read: {0}; another version of qkvault wrote it, or somebody else did")]
    Origin(#[from] codec::DecodeError),
    /// What it says it was compiled from does not go together.
    #[error("its description is not one that its engine compiles: somebody else wrote it")]
    Description,
    /// This version refuses its description.
    #[error("this version refuses its description: {0}")]
    Refused(#[from] Refusal),
    /// It is compiled, and the entry is a refusal.
    #[error("it is a refusal, and what it refuses is compiled")]
    NotRefused,
    /// Its description has another key.
    #[error("its description has the key {found}: somebody else stored it under this key")]
    Key {
        /// The key of the description.
        found: PlanKey,
    },
    /// Something that the entry says is not so.
    #[error(transparent)]
    Altered(#[from] Altered),
    /// cuDNN's bytes differ: kernels, their parameters, or what they are launched with.
    #[error("its bytes ({stored} kernels) are not those that cuDNN {cudnn} gives")]
    Kernels {
        /// The version that compiled.
        cudnn: CudnnVersion,
        /// Kernels in the stored plan.
        stored: usize,
    },
    /// The cubins differ.
    #[error("its code is not what its description compiles to ({stored} bytes inside, {compiled} compiled)")]
    Cubins {
        /// Bytes of the stored cubins.
        stored: usize,
        /// Bytes of the compiled ones.
        compiled: usize,
    },
}
