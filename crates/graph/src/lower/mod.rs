//! Lowering: from a valid attention to the op graph that cuDNN is given for a target.
//!
//! Versions and architectures differ in which operations they know, never in the meaning; what differs is read from the
//! [`Target`], and what may be chosen from the [`CompileOptions`]. What is not built yet is refused by name.

mod backward;
mod builder;
mod engines;
mod forward;
mod limits;
mod mask;
mod paged;
mod ragged;
mod score;
mod softmax;
mod step;
mod tails;
mod unified;
pub(crate) mod variants;

use serde::{Deserialize, Serialize};

pub use ragged::WIDE_OFFSETS;
pub use unified::UNIFIED_OP;
pub use variants::{BadVariant, Gain, VARIANTS, Variant, VariantRow, VariantSet};

pub(crate) use engines::{FIRST_NAMED, lacks_engine};
pub(crate) use limits::{chosen_form, need_the_softmax_operation};
pub(crate) use tails::derivative_meets_lengths;

use crate::op::TensorId;
use crate::registry::{Facts, QuirkSet, codes, refused_by_lowering};
use crate::{CudnnVersion, OpGraph, Reason, Refusal, Target, Valid};

/// The first version whose composite graphs may hold band-mask and softmax operations.
///
/// cudnn-frontend 1.23 uses them from 9.21, though the header of 9.20 has them.
pub const FUSED_OPS: CudnnVersion = CudnnVersion::v9(21, 0);

/// Everything but the attention and the target that can change a compiled plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompileOptions {
    /// Which heuristics are asked for engines.
    pub heuristics: Heuristics,
    /// Most bytes of scratch memory that a launch may need. Where the plan of the first engine needs more, that of the
    /// engine which needs the least is looked for, and refused where that is still too much. In no key: plans are the
    /// same with and without it.
    pub workspace_limit: Option<u64>,
    /// Quirks that are taken although cuDNN computes them wrongly: for those who know better.
    pub allowed: QuirkSet,
    /// Other ways to write the op graph, for the instruments of `qkvault-lab` alone: they lose.
    #[doc(hidden)]
    pub lab: LabOptions,
}

/// How an op graph is written when a new cuDNN is looked into: forms that are refused or slower, and variants of lowering that are
/// switched off. What is written so may be slower, refused or wrong.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LabOptions {
    /// The form of the op graph.
    pub form: Form,
    /// Variants of lowering that are not followed.
    pub without: VariantSet,
}

impl LabOptions {
    /// A form, with every variant.
    #[must_use]
    pub const fn form(form: Form) -> LabOptions {
        LabOptions { form, without: VariantSet::NONE }
    }

    /// The usual form without some variants.
    #[must_use]
    pub const fn without(without: VariantSet) -> LabOptions {
        LabOptions { form: Form::Auto, without }
    }
}

/// Lengths of queries and of keys, as operands.
type Lens = (TensorId, TensorId);

/// How the op graph of an attention is written; all forms mean the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Form {
    /// The form that was found best for the target: see `docs/results`.
    #[default]
    Auto,
    /// Matrix products, pointwise operations and reductions alone. Every 9.x library knows it.
    Expanded,
    /// Masks and softmax as operations of their own, since 9.21.
    Fused,
    /// The whole forward as one operation, since 9.13; masks and expressions in it since 9.21. There is none for a
    /// backward, which is written expanded.
    Unified,
}

/// Which of cuDNN's heuristics are asked, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Heuristics {
    /// Mode A, then the fallback list.
    #[default]
    AThenFallback,
    /// Mode A alone.
    A,
    /// The fallback list alone.
    Fallback,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions {
            heuristics: Heuristics::AThenFallback,
            workspace_limit: None,
            allowed: QuirkSet::NONE,
            lab: LabOptions::default(),
        }
    }
}

impl Form {
    /// The form that is emitted for a library version.
    ///
    /// `Auto` writes the expanded form: every version accepts it, and so one set of tests covers all.
    #[must_use]
    pub const fn resolve(self) -> Form {
        match self {
            Form::Auto | Form::Expanded => Form::Expanded,
            Form::Fused => Form::Fused,
            Form::Unified => Form::Unified,
        }
    }
}

/// Lowers an attention for a target.
///
/// # Errors
///
/// What is not built yet ([`Origin::NotBuilt`](crate::Origin::NotBuilt)), forms that the version does not know
/// ([`Origin::Rule`](crate::Origin::Rule)), and what it would compute wrongly ([`Origin::Quirk`](crate::Origin::Quirk))
/// unless the options allow that by its code.
pub fn lower(attention: &Valid, target: &Target, policy: &CompileOptions) -> Result<OpGraph, Refusal> {
    let facts = Facts::of(attention, target, policy);
    let mut reasons = refused_by_lowering(&facts).collect();
    let accepted_quirks = allowed(&mut reasons, policy.allowed);
    if let Some(refusal) = Refusal::of(reasons) {
        return Err(refusal);
    }
    let form = chosen_form(attention, policy);
    let mut graph = backward::lower(attention, form, target, policy.lab.without).unwrap_or_else(|| match form {
        Form::Unified => unified::lower(attention, target, policy.lab.without),
        form => forward::lower(attention, form, target, policy.lab.without),
    });
    ragged::width(&mut graph, target);
    graph.accepted_quirks = accepted_quirks;
    graph.engine = engines::named(attention, target);
    if !graph.excluded_engines.is_empty() && policy.allowed.contains(&codes::ENGINE_WRONG) {
        graph.excluded_engines.clear();
        graph.accepted_quirks = accepted_quirks.with(QuirkSet::known([&codes::ENGINE_WRONG]));
    }
    Ok(graph)
}

/// Takes the quirks out of the reasons that a policy allows, and says which those were.
fn allowed(reasons: &mut Vec<Reason>, allowed: QuirkSet) -> QuirkSet {
    let is_allowed = |r: &Reason| allowed.contains(&r.code);
    let accepted_quirks = QuirkSet::known(reasons.iter().filter(|r| is_allowed(r)).map(|r| &r.code));
    reasons.retain(|r| !is_allowed(r));
    accepted_quirks
}

/// Why [`lower`] would refuse, without writing a graph: what rules that are asked in microseconds need of it.
#[must_use]
pub fn refusals(attention: &Valid, target: &Target, policy: &CompileOptions) -> Vec<Reason> {
    let mut reasons = refused_by_lowering(&Facts::of(attention, target, policy)).collect();
    allowed(&mut reasons, policy.allowed);
    reasons
}
