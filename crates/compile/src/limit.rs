//! Limits of scratch memory: the reason for a plan that exceeds one, and cuDNN's plan within one.

use qkvault_cudnn::registry::codes;
use qkvault_graph::Reason;

use crate::facts::PlanFacts;

/// The reason if a plan exceeds the limit; the plan is the one that needs the least.
pub(crate) fn over(facts: &PlanFacts, limit: u64) -> Option<Reason> {
    let needs = facts.scratch().bytes;
    if needs <= limit {
        return None;
    }
    let (code, why, fix) = if facts.keeps_scores() {
        (
            &codes::WORKSPACE_QUADRATIC,
            ", which holds a gradient of every score: the backward is deterministic, or computes the gradient of a bias",
            "sum dQ in any order (deterministic: no), process fewer sequences at a time, or raise the limit",
        )
    } else {
        (&codes::WORKSPACE_LIMIT, "", "raise the limit")
    };
    let given = format!("the engine that needs the least needs {needs} bytes of workspace{why}");
    let reason = code.reason(given).at("options.workspace_limit").with_fix(fix);
    Some(reason.with_needed(format!("at most {limit} bytes")))
}
