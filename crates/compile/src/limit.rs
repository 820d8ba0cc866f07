//! Limits of scratch memory: the reason for a plan that exceeds one, and cuDNN's plan within one.

use qkvault_cache::Vault;
use qkvault_graph::registry::codes;
use qkvault_graph::{Choice, PlanKey, Reason};

use crate::facts::PlanFacts;
use crate::job::{Found, Job};
use crate::planner::PlanError;

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

/// The plan of the first engine if it is within the limit, otherwise that of the engine that needs the least if that
/// is; a refusal if none is. The refusal follows from stored plans, and is not stored itself.
pub(crate) fn within(
    limit: Option<u64>,
    vault: &Vault,
    job: Job<'_>,
    find: impl Fn(&Vault, &Job<'_>) -> Result<Found, PlanError>,
) -> Result<(PlanKey, Found), PlanError> {
    let first = find(vault, &job)?;
    let exceeds = |found: &Found| found.2.as_ref().ok().and_then(|plan| over(&plan.facts, limit?));
    let Some(reason) = exceeds(&first) else { return Ok((job.key, first)) };
    // A named engine is the only one.
    if job.graph.engine.is_some() {
        return Ok((job.key, (first.0, first.1, Err(reason.into()))));
    }
    let job = job.choosing(Choice::LeastWorkspace);
    let least = find(vault, &job)?;
    match exceeds(&least) {
        None => Ok((job.key, least)),
        Some(reason) => Ok((job.key, (least.0, least.1, Err(reason.into())))),
    }
}
