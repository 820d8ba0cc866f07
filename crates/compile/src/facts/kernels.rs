//! The facts that plans of kernels have alone.

use qkvault_kernels::recipe::{BadRecipe, Checked, LaunchRecipe};
use serde::{Deserialize, Serialize};

use super::PlanFacts;

/// The facts of a plan of kernels, beside those that every plan has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelFacts {
    /// What compiled the cubins.
    pub by: KernelCompiler,
    /// What a launch does.
    pub recipe: LaunchRecipe,
}

/// A compiler of kernels, with the versions that decide the code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum KernelCompiler {
    /// NVRTC, major and minor.
    Nvrtc(u32, u32),
    /// FlashAttention-4's toolchain.
    Fa4 {
        /// Version of `flash-attn-4`.
        flash_attn: String,
        /// Version of `nvidia-cutlass-dsl`.
        cutlass_dsl: String,
        /// Version of `quack-kernels`.
        quack: String,
    },
}

impl KernelFacts {
    /// Checks the recipe against the facts of its plan: operands, bytes of cubins, scratch memory.
    ///
    /// # Errors
    ///
    /// [`BadRecipe`], with the first part that is wrong.
    pub fn check(&self, facts: &PlanFacts) -> Result<Checked, BadRecipe> {
        let KernelFacts { by: _, recipe } = self;
        for (place, given, needed) in [
            ("scratch memory in bytes", recipe.scratch, facts.workspace),
            ("the architecture", u64::from(recipe.sm), u64::from(facts.sm)),
        ] {
            if given != needed {
                let (given, needed) = (given.to_string(), format!("the plan's facts have {needed}"));
                return Err(BadRecipe::Wrong { place: place.to_owned(), given, needed });
            }
        }
        recipe.clone().check(&facts.bindings, facts.blob_bytes)
    }
}
