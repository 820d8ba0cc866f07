//! Lowering: from a valid attention to the op graph that cuDNN gets for a target.
//!
//! Versions and architectures differ in the operations that they support, not in their meaning. The [`Target`] gives
//! the version and architecture, the [`CompileOptions`] the choices. Features that are not built yet are refused with a
//! code.

mod backward;
mod builder;
mod engines;
mod forward;
mod fp8;
mod fp8_backward;
mod limits;
mod lowest;
mod mask;
mod mxfp8;
mod mxfp8_backward;
mod paged;
mod power;
mod ragged;
mod remainder;
mod score;
mod softmax;
mod step;
mod tails;
pub(crate) mod variants;

use std::num::NonZeroU8;

use serde::{Deserialize, Serialize};

pub use ragged::WIDE_OFFSETS;
pub use variants::{BadVariant, Gain, VARIANTS, Variant, VariantRow, VariantSet};

pub(crate) use engines::{FIRST_NAMED, lacks_8_bit_engine, lacks_engine};
pub(crate) use limits::{chosen_form, need_the_softmax_operation};
pub(crate) use tails::derivative_meets_lengths;

use crate::op::TensorId;
use crate::registry::{Facts, QuirkSet, codes, refused_by_lowering};
use crate::{Choice, CudnnVersion, EngineName, EnginePolicy, Fp8, OpGraph, Reason, Refusal, Target, Valid};

/// The first version whose composite graphs may contain band-mask and softmax operations.
///
/// cudnn-frontend 1.23 uses them since 9.21, although the header of 9.20 has them.
pub const FUSED_OPS: CudnnVersion = CudnnVersion::v9(21, 0);

/// The options that can change a compiled plan, besides the attention and the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompileOptions {
    /// The heuristics that are asked for engines.
    pub heuristics: Heuristics,
    /// Most bytes of scratch memory that a launch may need. If the plan of the first engine needs more, the engine that
    /// needs the least is searched, and refused if it needs more too. It is in no key: a plan is the same with and
    /// without it.
    pub workspace_limit: Option<u64>,
    /// Quirks that are accepted although cuDNN computes them wrongly.
    pub allowed: QuirkSet,
    /// Other ways to write the op graph, only for the instruments of `qkvault-lab`: they are slower or refused.
    #[doc(hidden)]
    pub lab: LabOptions,
    /// Whose plans are taken. It is in no key: each engine's plans have keys of their own.
    #[serde(skip_serializing_if = "EnginePolicy::is_default")]
    pub engine: EnginePolicy,
}

/// Ways to write an op graph while a new cuDNN is examined: forms that are refused or slower, and variants of lowering
/// that are switched off. The result may be slower, refused or wrong.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LabOptions {
    /// The form of the op graph.
    pub form: Form,
    /// Variants of lowering that are switched off.
    pub without: VariantSet,
    /// How many of cuDNN's configurations that give a plan are passed over. It is in the key as a [`Choice`].
    #[serde(skip_serializing_if = "is_zero")]
    pub configuration: u8,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(n: &u8) -> bool {
    *n == 0
}

impl LabOptions {
    /// The choice of a configuration.
    #[must_use]
    pub fn choice(self) -> Choice {
        NonZeroU8::new(self.configuration).map_or(Choice::First, Choice::After)
    }

    /// A form with every variant.
    #[must_use]
    pub const fn form(form: Form) -> LabOptions {
        LabOptions { form, without: VariantSet::NONE, configuration: 0 }
    }

    /// The usual form without some variants.
    #[must_use]
    pub const fn without(without: VariantSet) -> LabOptions {
        LabOptions { form: Form::Auto, without, configuration: 0 }
    }
}

/// Lengths of queries and of keys, as operands.
type Lens = (TensorId, TensorId);

/// The form of an op graph; all forms compute the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Form {
    /// The form that was best for the target in tests: see `docs/results`.
    #[default]
    Auto,
    /// Only matrix products, pointwise operations and reductions. Every 9.x version supports it.
    Expanded,
    /// Masks and softmax as single operations, since 9.21.
    Fused,
}

/// The cuDNN heuristics that are asked, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Heuristics {
    /// Mode A, then the fallback list.
    #[default]
    AThenFallback,
    /// Only mode A.
    A,
    /// Only the fallback list.
    Fallback,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions {
            heuristics: Heuristics::AThenFallback,
            workspace_limit: None,
            allowed: QuirkSet::NONE,
            lab: LabOptions::default(),
            engine: EnginePolicy::default(),
        }
    }
}

impl CompileOptions {
    /// The default options with cuDNN's plans alone, for programs that want no other engine.
    #[must_use]
    pub fn cudnn() -> CompileOptions {
        CompileOptions { engine: EnginePolicy::Named(EngineName::new("cudnn")), ..CompileOptions::default() }
    }
}

impl Form {
    /// The form that is written.
    ///
    /// `Auto` is the expanded form: every version accepts it, so that one set of tests covers all.
    #[must_use]
    pub const fn resolve(self) -> Form {
        match self {
            Form::Auto | Form::Expanded => Form::Expanded,
            Form::Fused => Form::Fused,
        }
    }
}

/// Lowers an attention for a target.
///
/// # Errors
///
/// Features that are not built yet ([`Origin::NotBuilt`](crate::Origin::NotBuilt)), forms that the version does not
/// support ([`Origin::Rule`](crate::Origin::Rule)), and features that it computes wrongly
/// ([`Origin::Quirk`](crate::Origin::Quirk)), unless the options allow their codes.
pub fn lower(attention: &Valid, target: &Target, options: &CompileOptions) -> Result<OpGraph, Refusal> {
    let facts = Facts::new(attention, target, options);
    let mut reasons = refused_by_lowering(&facts).collect();
    let accepted_quirks = allowed(&mut reasons, options.allowed);
    if let Some(refusal) = Refusal::from_reasons(reasons) {
        return Err(refusal);
    }
    let form = chosen_form(attention, options);
    let without = options.lab.without;
    let backward = match attention.get().fp8 {
        None | Some(Fp8::Cache) => backward::lower(attention, form, target, without),
        Some(Fp8::Delayed | Fp8::Current) => fp8_backward::lower(attention, form, target, without),
        Some(Fp8::Block) => mxfp8_backward::lower(attention, form, target, without),
    };
    let mut graph = backward.unwrap_or_else(|| forward::lower(attention, form, target, without));
    ragged::width(&mut graph, target);
    graph.accepted_quirks = accepted_quirks;
    graph.engine = engines::named(attention, target);
    if !graph.excluded_engines.is_empty() && options.allowed.contains(&codes::ENGINE_WRONG) {
        graph.excluded_engines.clear();
        graph.accepted_quirks = accepted_quirks.with(QuirkSet::known([&codes::ENGINE_WRONG]));
    }
    Ok(graph)
}

/// Removes the allowed quirks from the reasons, and returns those that were removed.
fn allowed(reasons: &mut Vec<Reason>, allowed: QuirkSet) -> QuirkSet {
    let is_allowed = |r: &Reason| allowed.contains(&r.code);
    let accepted_quirks = QuirkSet::known(reasons.iter().filter(|r| is_allowed(r)).map(|r| &r.code));
    reasons.retain(|r| !is_allowed(r));
    accepted_quirks
}

/// The reasons for which [`lower`] refuses, without a graph: rules need them within microseconds.
#[must_use]
pub fn refusals(attention: &Valid, target: &Target, options: &CompileOptions) -> Vec<Reason> {
    let mut reasons = refused_by_lowering(&Facts::new(attention, target, options)).collect();
    allowed(&mut reasons, options.allowed);
    reasons
}
