//! An entry of kernels beside what its description generates today.

use qkvault_kernels::{generate, generate_append, generate_combination, generate_conversion, generate_scale_update};

use super::KernelPlan;
use super::nvrtc::{NVRTC, Nvrtc};
use crate::computation::ValidDescription;
use crate::difference::Difference;
use crate::facts::KernelCompiler;
use crate::rebuild::{Checked, Stored, failed, same_cubins, same_facts, same_key, same_labels, skipped};

pub(super) fn check(stored: &Stored<'_>, sm: u32) -> Checked {
    let Stored { key, entry, plan: Some(plan), of, by: _ } = stored else {
        return Err(Difference::Description.into());
    };
    let made = match of {
        ValidDescription::Attention(attention) => generate(attention, sm)?,
        ValidDescription::Conversion(conversion) => generate_conversion(conversion, sm)?,
        ValidDescription::Combination(combination) => generate_combination(combination, sm),
        ValidDescription::Scales(update) => generate_scale_update(update, sm)?,
        ValidDescription::Append(append) => generate_append(append, sm)?,
    };
    let now = KernelPlan { of: of.computation(), made };
    if let Some(KernelCompiler::Nvrtc(major, minor)) = plan.facts.kernels().map(|kernels| &kernels.by)
        && (*major, *minor) != NVRTC
        && now.key_by((*major, *minor)) == *key
    {
        return skipped(format!("NVRTC {major}.{minor} compiled it, and this is {}.{}", NVRTC.0, NVRTC.1));
    }
    same_key(*key, now.key())?;
    same_facts(&plan.facts, &now.facts(plan.facts.blob_bytes, 0))?;
    same_labels(entry, &now.entry(plan))?;
    match Nvrtc::open(None).and_then(|nvrtc| now.compile(&nvrtc)) {
        Ok(compiled) => same_cubins(plan, &compiled),
        Err(failure) => failed(failure),
    }
}
