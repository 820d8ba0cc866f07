//! A limit of scratch memory: why a plan is over it.

use qkvault_graph::{Origin, Reason};

use crate::plan::PlanFacts;

/// Why a plan needs too much, where it does; it is the one that needs the least.
pub(crate) fn over(facts: &PlanFacts, limit: u64) -> Option<Reason> {
    let needs = facts.scratch().bytes;
    if needs <= limit {
        return None;
    }
    let (code, why, fix) = if facts.keeps_scores() {
        (
            "workspace.quadratic",
            ", which holds a gradient of every score: the backward is deterministic, or a bias wants its gradient",
            "sum dQ in any order (deterministic: no), take fewer sequences at a time, or raise the limit",
        )
    } else {
        ("workspace.limit", "", "raise the limit")
    };
    Some(Reason::new(
        Origin::Rule,
        code,
        "policy.workspace_limit",
        format!("the engine that needs the least needs {needs} bytes of workspace{why}"),
        format!("at most {limit} bytes are allowed"),
        fix,
    ))
}
