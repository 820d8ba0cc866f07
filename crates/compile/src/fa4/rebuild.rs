//! An entry of FlashAttention-4's kernels beside what its description asks for today.

use std::sync::Arc;

use qkvault_fa4::SM;

use super::{Fa4Compiler, Fa4Plan, compiler, name};
use crate::computation::ValidDescription;
use crate::difference::Difference;
use crate::facts::{KernelCompiler, PlanFacts};
use crate::plan::Plan;
use crate::rebuild::{Checked, Stored, failed, same_cubins, same_facts, same_key, same_labels, skipped};

pub(super) fn check(stored: &Stored<'_>, toolchain: &Fa4Compiler) -> Checked {
    let Stored { key, entry, plan: Some(plan), of: ValidDescription::Attention(attention), by: _ } = stored else {
        return Err(Difference::Description.into());
    };
    let now = Fa4Plan::for_attention(attention, SM)?;
    let by = plan.facts.kernels().map(|kernels| &kernels.by);
    if now.key() != *key && by.is_some_and(|by| matches!(by, KernelCompiler::Fa4 { .. }) && *by != compiler()) {
        return skipped(format!("another compiler than {} compiled it", name()));
    }
    same_key(*key, now.key())?;
    now.read(*key, &Arc::new((*entry).clone()))?;
    let again = match now.entry_by(|kernels| toolchain.compile(kernels)) {
        Ok(again) => again,
        Err(failure) => return failed(failure),
    };
    same_labels(entry, &again)?;
    let again = Arc::new(again);
    let compiled = Plan::from_entry(*key, &again)?;
    if again.payload[compiled.blob.len()..] != entry.payload[plan.blob.len()..] {
        return Err(Difference::Description.into());
    }
    same_facts(&plan.facts, &PlanFacts { blob_bytes: plan.facts.blob_bytes, ..compiled.facts.clone() })?;
    same_cubins(plan, &compiled)
}
