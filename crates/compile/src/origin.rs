//! What a plan is compiled from, as data. It follows the plan's bytes in an entry's payload, and is the metadata of a
//! refusal.
//!
//! It is a description, versions and options from closed lists: everything else, op graphs, sources, requests and keys,
//! is generated from it by the program that reads. So nothing of a stored entry is ever compiled or run, and a check
//! by a rebuild ([`rebuild`](crate::rebuild)) compares a plan with what its description gives today.

use qkvault_cudnn::{Choice, CompileOptions, Target};
use qkvault_fa4::Told;
use qkvault_graph::{Attention, Combination, Conversion, Refusal, Valid, ValidCombination, ValidConversion, validate};
use serde::{Deserialize, Serialize};

use crate::cudnn::unlimited;
use crate::kernels::computation::Computation;

/// What a plan is compiled from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Origin {
    /// What it computes.
    pub(crate) of: Description,
    /// What compiles it.
    pub(crate) by: By,
}

/// A description of a computation, in canonical form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Description {
    /// An attention.
    Attention(Box<Attention>),
    /// A conversion to or from 8 bits.
    Conversion(Conversion),
    /// A combination of tensors.
    Combination(Combination),
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

/// A description without contradictions.
#[derive(Clone, Debug)]
pub(crate) enum ValidDescription {
    Attention(Valid),
    Conversion(ValidConversion),
    Combination(ValidCombination),
}

impl Description {
    pub(crate) fn attention(of: &Valid) -> Description {
        Description::Attention(Box::new(Attention::clone(of)))
    }

    pub(crate) fn validate(self) -> Result<ValidDescription, Refusal> {
        Ok(match self {
            Description::Attention(attention) => ValidDescription::Attention(validate(*attention)?),
            Description::Conversion(conversion) => ValidDescription::Conversion(conversion.validate()?),
            Description::Combination(combination) => ValidDescription::Combination(combination.validate()?),
        })
    }
}

impl ValidDescription {
    pub(crate) fn computation(&self) -> &dyn Computation {
        match self {
            ValidDescription::Attention(of) => of,
            ValidDescription::Conversion(of) => of,
            ValidDescription::Combination(of) => of,
        }
    }
}
