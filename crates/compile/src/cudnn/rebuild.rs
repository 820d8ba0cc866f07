//! An entry of cuDNN, a plan or a refusal, beside what cuDNN gives for its description here.

use qkvault_graph::{Refusal, Valid};

use super::OpenCompiler;
use super::compiler::Compiled;
use super::failure::Failure;
use super::job::Job;
use super::made::Made;
use crate::computation::ValidDescription;
use crate::difference::Difference;
use crate::facts::Altered;
use crate::origin::By;
use crate::plan::{self, Plan};
use crate::rebuild::{Checked, RebuildCheck, Stop, Stored, failed, same_facts, same_key, same_labels, skipped};
use crate::same_code::{Parameter, kernels, parameters_that_differ};

/// How often a plan is compiled again to find out whether cuDNN leaves a parameter unset: what it leaves there is of
/// the process, and mostly differs in the second.
const BUILDS: usize = 4;

pub(super) fn check(stored: &Stored<'_>, compiler: &OpenCompiler) -> Checked {
    let (By::Cudnn { target, options, choice }, ValidDescription::Attention(attention)) = (&stored.by, &stored.of)
    else {
        return Err(Difference::Description.into());
    };
    let attention: &Valid = attention;
    let job = Job::choosing(attention, target, options, *choice, compiler)?;
    same_key(stored.key, job.key)?;
    match &stored.plan {
        Some(plan) => of_plan(stored, plan, &job, compiler),
        None => of_refusal(stored, &job, compiler),
    }
}

fn of_plan(stored: &Stored<'_>, plan: &Plan, job: &Job<'_>, compiler: &OpenCompiler) -> Checked {
    same_facts(&plan.facts, &job.facts(Made::from_facts(&plan.facts)))?;
    same_labels(stored.entry, &plan.to_entry(&job.target))?;
    let Compiled { blob, engine, passed_over, workspace, milliseconds } = match compiled(job, compiler)? {
        Ok(compiled) => compiled,
        Err(failure) => return failed(failure),
    };
    let made = Made { engine, passed_over, workspace, compile_ms: milliseconds, blob_bytes: blob.len() as u64 };
    same_facts(&plan.facts, &job.facts(made))?;
    let kernels = kernels(&plan.blob);
    let different = || Difference::Kernels { cudnn: job.target.cudnn, stored: kernels.len() };
    let doubted = parameters_that_differ(&plan.blob, &blob).filter(|_| !kernels.is_empty());
    if !are_unset(job, compiler, doubted.ok_or_else(different)?, &blob)? {
        return Err(different().into());
    }
    Ok(RebuildCheck::Same { kernels: kernels.len(), kernel_bytes: kernels.iter().map(|kernel| kernel.len()).sum() })
}

fn of_refusal(stored: &Stored<'_>, job: &Job<'_>, compiler: &OpenCompiler) -> Checked {
    let refusal: Refusal = plan::refusal_of(stored.entry)?;
    let again = job.refusal_entry(&refusal);
    same_labels(stored.entry, &again)?;
    if (&again.meta, &again.payload) != (&stored.entry.meta, &stored.entry.payload) {
        return Err(Difference::Description.into());
    }
    match compiled(job, compiler)? {
        Err(Failure::Refused(now)) if now == refusal => Ok(RebuildCheck::SameRefusal),
        Err(Failure::Refused(now)) => Err(Altered::new("reasons", &refusal, &now).into()),
        Err(failure) => failed(failure),
        Ok(_) => Err(Difference::NotRefused.into()),
    }
}

/// Whether cuDNN leaves parts of these parameters unset: they differ between plans that it makes here.
fn are_unset(job: &Job<'_>, compiler: &OpenCompiler, mut doubted: Vec<Parameter>, blob: &[u8]) -> Result<bool, Stop> {
    for _ in 0..BUILDS {
        if doubted.is_empty() {
            break;
        }
        if let Ok(Compiled { blob: again, .. }) = compiled(job, compiler)? {
            let differ = parameters_that_differ(&again, blob).unwrap_or_default();
            doubted.retain(|parameter| !differ.contains(parameter));
        }
    }
    Ok(doubted.is_empty())
}

/// What cuDNN makes of a job, here.
fn compiled(job: &Job<'_>, compiler: &OpenCompiler) -> Result<Result<Compiled, Failure>, Stop> {
    let compiler = match compiler.get() {
        Ok(compiler) => compiler,
        Err(why) if why.is_empty() => return skipped("there is no cuDNN here"),
        Err(why) => return failed(why),
    };
    match compiler.compile_choice(&job.graph, &job.target, &job.options, job.choice) {
        Err(failure @ Failure::OtherLibrary { .. }) => skipped(failure.to_string()),
        made => Ok(made),
    }
}
