//! The key of a plan of kernels: everything that can change its code or what a launch does, and nothing else.

use qkvault_graph::Binding;
use qkvault_graph::{KEY_FORMAT, PlanKey, Valid, codec};

use super::LaunchRecipe;

/// The tag that separates these hashes from those of cuDNN's plans.
const TAG: &str = "qkvault plan of kernels, key format 2";

/// What the code of a plan is compiled from. Source and recipe say everything that a launch computes: what a
/// description has besides, such as how many pages a pool has, is in no key.
#[derive(Clone, Copy, Debug)]
pub struct CodeOrigin<'a> {
    /// The CUDA source.
    pub source: &'a str,
    /// The compiler's options, without the architecture.
    pub options: &'a [String],
    /// The recipe, without cubins.
    pub recipe: &'a LaunchRecipe,
    /// NVRTC's version, major and minor: another update of it gives the same code.
    pub nvrtc: (u32, u32),
}

impl CodeOrigin<'_> {
    /// The key of the plan: the same on every GPU of the architecture, whatever its multiprocessors, its memory bus,
    /// its driver and its cuDNN. The architecture follows from the recipe.
    #[must_use]
    pub fn key(&self) -> PlanKey {
        let CodeOrigin { source, options, recipe, nvrtc } = *self;
        let arch = architecture(recipe.sm);
        let bytes = codec::encode(&(KEY_FORMAT, source, options, recipe, nvrtc, arch));
        let mut hasher = blake3::Hasher::new_derive_key(TAG);
        hasher.update(&bytes);
        PlanKey::from_bytes(*hasher.finalize().as_bytes())
    }
}

/// The name by which compilers call an architecture. Code for `sm_90a` may use everything that Hopper has, and runs on
/// Hopper alone.
#[must_use]
pub fn architecture(sm: u32) -> String {
    if sm == 90 { "sm_90a".to_owned() } else { format!("sm_{sm}") }
}

/// The operands that a launch of an attention by kernels binds, in order of unique id. It binds no buffer of its own:
/// what kernels need besides is scratch memory.
#[must_use]
pub fn bindings(attention: &Valid) -> Vec<Binding> {
    let facts = attention.operand_facts();
    let binding = |o: &qkvault_graph::OperandFact<'_>| Binding {
        role: o.role,
        dtype: o.dtype,
        scalar: o.scalar,
        output: o.output,
        bytes: o.bytes,
        alignment: o.alignment,
    };
    facts.iter().map(binding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_contains_the_format_of_keys() {
        assert!(TAG.ends_with(&format!(" {KEY_FORMAT}")));
    }
}
