//! What a plan is compiled from, as data. It follows the plan's bytes in an entry's payload, and is the metadata of a
//! refusal.
//!
//! It is a description, versions and options from closed lists: everything else, op graphs, sources, requests and keys,
//! is generated from it by the program that reads. So nothing of a stored entry is ever compiled or run, and a check
//! by a rebuild ([`rebuild`](crate::rebuild)) compares a plan with what its description gives today.

use qkvault_cudnn::{Choice, CompileOptions, Target};
use qkvault_fa4::Told;
use qkvault_graph::EnginePolicy;
use serde::{Deserialize, Serialize};

use crate::computation::Description;

/// What a plan is compiled from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Origin {
    /// What it computes.
    pub(crate) of: Description,
    /// What compiles it.
    pub(crate) by: By,
}

/// What compiles a plan, with what it is told besides the description.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum By {
    /// cuDNN.
    Cudnn { target: Box<Target>, options: CompileOptions, choice: Choice },
    /// NVRTC, for a compute capability.
    Nvrtc { sm: u32 },
    /// FlashAttention-4's toolchain; what it told of the launch of each kernel.
    Fa4 { told: Vec<Told> },
}

impl By {
    /// The one form in which it is kept: what no key contains is left out.
    pub(crate) fn canonical(self) -> By {
        match self {
            By::Cudnn { target, options, choice } => By::Cudnn { target, options: unlimited(&options), choice },
            other => other,
        }
    }
}

/// No key contains a limit or the choice of an engine, so the inputs of a plan of cuDNN do not either.
pub(crate) fn unlimited(options: &CompileOptions) -> CompileOptions {
    CompileOptions { workspace_limit: None, engine: EnginePolicy::default(), ..*options }
}
