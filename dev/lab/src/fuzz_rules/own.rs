//! `fuzz-rules --engine kernels` and `--engine fa4`: what their rules take must become a plan. Sources go to NVRTC in
//! this process, FlashAttention-4's kernels to its compiler in a child process, and every recipe is checked.
//!
//! What rules refuse has no source, so nothing can confirm a refusal: it is counted by its code.

use qkvault_cache::{Vault, VaultOptions};
use qkvault_compile::{EngineId, FA4, KERNELS, OnMiss, Planner, Resolution};
use qkvault_graph::{Valid, validate};

use super::RuleCase;
use super::cases;
use super::compare::{RuleDifference, RuleVerdict};
use crate::selftest;

/// How many descriptions are drawn for an engine, if none is said: one of cuDNN takes 0.6 s of a core, one of kernels
/// about 1 s, and one of FlashAttention-4's kernels 10 s or more.
pub(super) fn usual_cases(engine: EngineId) -> u64 {
    match engine {
        KERNELS => 300,
        FA4 => 24,
        _ => 1_000,
    }
}

/// The description of a case: every second one is any description, the others are near what the engine takes.
pub(super) fn attention(engine: EngineId, seed: u64, number: u64) -> Valid {
    let near = if engine == FA4 { selftest::fa4_drawn } else { selftest::kernels_attention };
    let drawn = number.is_multiple_of(2).then(|| validate(near(seed, number / 2)).ok()).flatten();
    drawn.unwrap_or_else(|| cases::attention(seed, number, false))
}

/// Judges a case of an engine that is not cuDNN.
pub(super) fn judge(case: &RuleCase) -> RuleVerdict {
    let fa4 = case.options.engine == FA4.policy();
    let takes = if fa4 { qkvault_fa4::takes } else { qkvault_kernels::takes };
    let refusal = takes(&case.attention, case.target.sm()).err();
    let words = |refusal: &qkvault_graph::Refusal| -> Vec<String> {
        refusal.reasons().iter().map(|r| format!("{}: {}", r.code, r.given)).collect()
    };
    let rules = refusal.as_ref().map(words).unwrap_or_default();
    let planner = Planner::new(Vault::in_memory(VaultOptions::new()), None);
    let answer = planner.plan(&case.attention, &case.target, &case.options, OnMiss::Compile);
    let (kind, library) = match (answer, refusal) {
        (Ok(Resolution { outcome: Ok(_), .. }), None) => {
            return RuleVerdict::Agreed { supported: true, codes: Vec::new() };
        }
        (Ok(Resolution { outcome: Err(_), .. }), Some(refusal)) => {
            let codes = refusal.reasons().iter().map(|r| r.code.to_string()).collect();
            return RuleVerdict::Agreed { supported: false, codes };
        }
        (Ok(Resolution { outcome: Ok(_), .. }), Some(_)) => ("too strict", Vec::new()),
        (Ok(Resolution { outcome: Err(other), .. }), None) => ("no rule", words(&other)),
        (Err(error), _) => ("broken", vec![error.to_string()]),
    };
    RuleVerdict::Differed(Box::new(RuleDifference { case: case.clone(), rules, library, kind }))
}
