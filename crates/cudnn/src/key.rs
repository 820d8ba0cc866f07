//! Keys of cuDNN's plans: format version, op graph, target and options.

use std::num::NonZeroU8;

use serde::{Deserialize, Serialize};

use crate::lower::{Form, Heuristics, LabOptions};
use crate::{CompileOptions, KEY_FORMAT, OpGraph, PlanKey, Target, canon, codec};

/// Which engine configuration, of those that cuDNN returns, a plan uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// The first that gives a plan: the fastest, according to cuDNN's heuristics.
    #[default]
    First,
    /// The one that needs the least scratch memory, for callers with less memory than the first one needs.
    LeastWorkspace,
    /// The one after so many others that give a plan: for instruments that time every configuration.
    After(NonZeroU8),
}

/// The key of the plan for this op graph, target and options, with the first configuration that gives a plan, or the
/// one that the options of instruments name.
#[must_use]
pub fn plan_key(graph: &OpGraph, target: &Target, options: &CompileOptions) -> PlanKey {
    plan_key_of(graph, target, options, options.lab.choice())
}

/// Like [`plan_key`], with a chosen configuration.
///
/// A workspace limit is in no key: a plan within the limit equals the plan without a limit.
#[must_use]
pub fn plan_key_of(graph: &OpGraph, target: &Target, options: &CompileOptions, choice: Choice) -> PlanKey {
    // The op graph contains the lowering rules that were applied and the quirks that were allowed.
    let CompileOptions { heuristics, workspace_limit: _, allowed: _, lab, engine: _ } = options;
    let LabOptions { form, without: _, configuration: _ } = lab;
    // The op graph contains the form. `Auto` gives the same key as the form that it resolves to.
    let form = match form.resolve() {
        Form::Auto | Form::Expanded => 1_u8,
        Form::Fused => 2,
    };
    let heuristics = match heuristics {
        Heuristics::AThenFallback => 1_u8,
        Heuristics::A => 2,
        Heuristics::Fallback => 3,
    };
    let choice = match choice {
        Choice::First => None,
        Choice::LeastWorkspace => Some(1_u8),
        // 255 gives 0, which is no other choice's.
        Choice::After(others) => Some(others.get().wrapping_add(1)),
    };
    let options = (form, heuristics, choice);
    let mut bytes = codec::encode(&(KEY_FORMAT, canon::op_graph(graph), target.identity(), options));
    if !graph.accepted_quirks.is_empty() {
        bytes.extend(codec::encode(&Vec::from(graph.accepted_quirks)));
    }
    // This list begins with a number and the list of quirks with a text, so the two cannot be confused.
    if let Some(engine) = &graph.engine {
        bytes.extend(codec::encode(&canon::engine(engine)));
    }
    PlanKey::hashed(&bytes)
}
