//! What only compiling tells of a plan of cuDNN.

use crate::facts::{PassedOver, PlanFacts};

/// What only compiling tells of a plan of cuDNN. All other facts follow from what was asked.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) engine: String,
    pub(crate) passed_over: Vec<PassedOver>,
    pub(crate) workspace: u64,
    pub(crate) compile_ms: u32,
    pub(crate) blob_bytes: u64,
}

impl Made {
    /// What a stored plan says of it.
    pub(crate) fn from_facts(facts: &PlanFacts) -> Made {
        let PlanFacts { engine, workspace, compile_ms, blob_bytes, .. } = facts.clone();
        let passed_over = facts.cudnn().map_or_else(Vec::new, |own| own.passed_over.clone());
        Made { engine, passed_over, workspace, compile_ms, blob_bytes }
    }
}
