//! Checks a stored entry by a rebuild: everything in it is generated again from the description that it keeps, compiled
//! again by this version's compilers, and compared.
//!
//! What follows without a compiler is compared first. Nothing of an entry but its description, versions and options
//! from closed lists is used, so an entry of a stranger can be checked.

use std::sync::Arc;

use qkvault_cache::{Entry, EntryKind};
use qkvault_fa4::{CompileError, Installed, SM};
use qkvault_graph::{PlanKey, Refusal, Valid, codec};
use qkvault_kernels::{generate, generate_combination, generate_conversion};

use crate::cudnn::OpenCompiler;
use crate::cudnn::compiler::{Compiled, Compiler};
use crate::cudnn::facts::Made;
use crate::cudnn::failure::Failure;
use crate::cudnn::job::Job;
use crate::difference::Difference;
use crate::fa4::{Fa4Compiler, Fa4Failure, Fa4Plan, compiler, name};
use crate::facts::{Altered, PlanFacts};
use crate::kernels::nvrtc::{NVRTC, Nvrtc, NvrtcError};
use crate::kernels::{KernelCompiler, KernelPlan};
use crate::origin::{By, Origin, ValidDescription};
use crate::plan::{self, Plan};
use crate::same_code::{Parameter, kernels, parameters_that_differ, same_code};

/// The compilers that a check may use. An entry of another one is skipped.
#[derive(Debug, Default)]
pub struct Rebuilder<'a> {
    cudnn: Option<&'a Compiler>,
    nvrtc: Option<&'a Nvrtc>,
    fa4: Option<&'a Installed>,
    /// Kernels are compiled once for all entries.
    known: Fa4Compiler,
}

/// The result of a rebuild.
#[derive(Debug)]
#[non_exhaustive]
pub enum RebuildCheck {
    /// Every fact, the kernels, and the labels are the same.
    Same {
        /// Number of compiled kernels in the plan.
        kernels: usize,
        /// Their bytes in the plan.
        kernel_bytes: usize,
    },
    /// It is refused again, for the same reasons.
    SameRefusal,
    /// It was not compiled: it is a measurement, or what compiled it is not here.
    Skipped {
        /// The reason.
        why: String,
    },
    /// The rebuild gives another plan.
    Different(Difference),
    /// Compiling does not work here.
    Failed(Failure),
    /// NVRTC does not compile its source.
    Uncompiled(NvrtcError),
    /// FlashAttention-4's toolchain does not compile its kernels.
    UncompiledByFa4(Fa4Failure),
}

/// How often a plan is compiled again to find out whether cuDNN leaves a parameter unset: what it leaves there is of
/// the process, and mostly differs in the second.
const BUILDS: usize = 4;

/// Why a check ends early.
enum Stop {
    Different(Difference),
    Other(RebuildCheck),
}

impl<T: Into<Difference>> From<T> for Stop {
    fn from(difference: T) -> Stop {
        Stop::Different(difference.into())
    }
}

fn skipped<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Other(RebuildCheck::Skipped { why: why.into() }))
}

impl<'a> Rebuilder<'a> {
    /// With these compilers.
    #[must_use]
    pub fn new(cudnn: Option<&'a Compiler>, nvrtc: Option<&'a Nvrtc>, fa4: Option<&'a Installed>) -> Rebuilder<'a> {
        Rebuilder { cudnn, nvrtc, fa4, known: Fa4Compiler::default() }
    }

    /// Generates an entry again from its description, compiles it, and compares all that the entry says: key, facts,
    /// bindings, recipe, code, labels; of a refusal its reasons.
    #[must_use]
    pub fn verify(&self, key: PlanKey, entry: &Entry) -> RebuildCheck {
        let check = match entry.kind {
            EntryKind::Plan => self.plan(key, entry),
            EntryKind::Refusal => self.refusal(key, entry),
            EntryKind::Times => skipped("measured times cannot be computed"),
        };
        match check {
            Ok(check) | Err(Stop::Other(check)) => check,
            Err(Stop::Different(difference)) => RebuildCheck::Different(difference),
        }
    }

    fn plan(&self, key: PlanKey, entry: &Entry) -> Result<RebuildCheck, Stop> {
        let plan = Plan::from_entry(key, &Arc::new(entry.clone()))?;
        let tail = &entry.payload[plan.blob.len()..];
        let Origin { of, by } = codec::decode(tail)?;
        let of = of.validate()?;
        // Its one form, which this version writes: nothing else may lie in it.
        let again = Origin { of: of.computation().description(), by: by.clone().canonical() };
        if codec::encode(&again) != tail {
            return Err(Difference::Description.into());
        }
        match (by, &of) {
            (By::Cudnn { target, options, choice }, ValidDescription::Attention(attention)) => {
                of_job(attention, &target, &options, choice, |job| self.cudnn(key, entry, &plan, job))
            }
            (By::Nvrtc { sm }, _) => self.nvrtc(key, entry, &plan, &of, sm),
            (By::Fa4 { told: _ }, ValidDescription::Attention(attention)) => self.fa4(key, entry, &plan, attention),
            _ => Err(Difference::Description.into()),
        }
    }

    fn cudnn(&self, key: PlanKey, entry: &Entry, plan: &Plan, job: &Job<'_>) -> Result<RebuildCheck, Stop> {
        same_key(key, job.key)?;
        same_facts(&plan.facts, &job.facts(Made::from_facts(&plan.facts)))?;
        same_labels(entry, &plan.to_entry(&job.target))?;
        let Compiled { blob, engine, passed_over, workspace, milliseconds } = match self.compiled(job)? {
            Ok(compiled) => compiled,
            Err(failure) => return Ok(RebuildCheck::Failed(failure)),
        };
        let made = Made { engine, passed_over, workspace, compile_ms: milliseconds, blob_bytes: blob.len() as u64 };
        same_facts(&plan.facts, &job.facts(made))?;
        let kernels = kernels(&plan.blob);
        let different = || Difference::Kernels { cudnn: job.target.cudnn, stored: kernels.len() };
        let doubted = parameters_that_differ(&plan.blob, &blob).filter(|_| !kernels.is_empty());
        if !self.are_unset(job, doubted.ok_or_else(different)?, &blob)? {
            return Err(different().into());
        }
        Ok(RebuildCheck::Same { kernels: kernels.len(), kernel_bytes: kernels.iter().map(|kernel| kernel.len()).sum() })
    }

    /// Whether cuDNN leaves parts of these parameters unset: they differ between plans that it makes here.
    fn are_unset(&self, job: &Job<'_>, mut doubted: Vec<Parameter>, blob: &[u8]) -> Result<bool, Stop> {
        for _ in 0..BUILDS {
            if doubted.is_empty() {
                break;
            }
            if let Ok(Compiled { blob: again, .. }) = self.compiled(job)? {
                let differ = parameters_that_differ(&again, blob).unwrap_or_default();
                doubted.retain(|parameter| !differ.contains(parameter));
            }
        }
        Ok(doubted.is_empty())
    }

    /// What cuDNN makes of a job, here.
    fn compiled(&self, job: &Job<'_>) -> Result<Result<Compiled, Failure>, Stop> {
        let Some(compiler) = self.cudnn else { return skipped("there is no cuDNN here") };
        match compiler.compile_choice(&job.graph, &job.target, &job.options, job.choice) {
            Err(failure @ Failure::OtherLibrary { .. }) => skipped(failure.to_string()),
            made => Ok(made),
        }
    }

    fn nvrtc(
        &self,
        key: PlanKey,
        entry: &Entry,
        plan: &Plan,
        of: &ValidDescription,
        sm: u32,
    ) -> Result<RebuildCheck, Stop> {
        let made = match of {
            ValidDescription::Attention(attention) => generate(attention, sm)?,
            ValidDescription::Conversion(conversion) => generate_conversion(conversion, sm)?,
            ValidDescription::Combination(combination) => generate_combination(combination, sm),
        };
        let now = KernelPlan { of: of.computation(), made };
        if let Some(KernelCompiler::Nvrtc(major, minor)) = plan.facts.kernels().map(|kernels| &kernels.by)
            && (*major, *minor) != NVRTC
            && now.key_by((*major, *minor)) == key
        {
            return skipped(format!("NVRTC {major}.{minor} compiled it, and this is {}.{}", NVRTC.0, NVRTC.1));
        }
        same_key(key, now.key())?;
        same_facts(&plan.facts, &now.facts(plan.facts.blob_bytes, 0))?;
        same_labels(entry, &now.entry(plan))?;
        let Some(nvrtc) = self.nvrtc else { return skipped("there is no NVRTC here") };
        let compiled = match now.compile(nvrtc) {
            Ok(compiled) => compiled,
            Err(failure) => return Ok(RebuildCheck::Uncompiled(failure)),
        };
        same_cubins(plan, &compiled)
    }

    fn fa4(&self, key: PlanKey, entry: &Entry, plan: &Plan, attention: &Valid) -> Result<RebuildCheck, Stop> {
        let now = Fa4Plan::for_attention(attention, SM)?;
        let by = plan.facts.kernels().map(|kernels| &kernels.by);
        if now.key() != key && by.is_some_and(|by| matches!(by, KernelCompiler::Fa4 { .. }) && *by != compiler()) {
            return skipped(format!("another compiler than {} compiled it", name()));
        }
        same_key(key, now.key())?;
        now.read(key, &Arc::new(entry.clone()))?;
        let Some(toolchain) = self.fa4 else { return skipped("FlashAttention-4's toolchain is not here") };
        let compile = |list: &[_]| -> Result<Vec<_>, CompileError> {
            self.known.compile_by(list, |missing| toolchain.compile(missing))
        };
        let again = match now.entry_by(compile) {
            Ok(again) => again,
            Err(failure) => return Ok(RebuildCheck::UncompiledByFa4(failure)),
        };
        same_labels(entry, &again)?;
        let again = Arc::new(again);
        let compiled = Plan::from_entry(key, &again)?;
        if again.payload[compiled.blob.len()..] != entry.payload[plan.blob.len()..] {
            return Err(Difference::Description.into());
        }
        same_facts(&plan.facts, &PlanFacts { blob_bytes: plan.facts.blob_bytes, ..compiled.facts.clone() })?;
        same_cubins(plan, &compiled)
    }

    fn refusal(&self, key: PlanKey, entry: &Entry) -> Result<RebuildCheck, Stop> {
        let Origin { of, by } = codec::decode(&entry.meta)?;
        let by = by.canonical();
        let stored: Refusal = plan::refusal_of(entry)?;
        let (By::Cudnn { target, options, choice }, ValidDescription::Attention(attention)) = (by, of.validate()?)
        else {
            return Err(Difference::Description.into());
        };
        of_job(&attention, &target, &options, choice, |job| {
            same_key(key, job.key)?;
            let again = job.refusal_entry(&stored);
            same_labels(entry, &again)?;
            if (&again.meta, &again.payload) != (&entry.meta, &entry.payload) {
                return Err(Difference::Description.into());
            }
            match self.compiled(job)? {
                Err(Failure::Refused(now)) if now == stored => Ok(RebuildCheck::SameRefusal),
                Err(Failure::Refused(now)) => Err(Altered::new("reasons", &stored, &now).into()),
                Err(failure) => Ok(RebuildCheck::Failed(failure)),
                Ok(_) => Err(Difference::NotRefused.into()),
            }
        })
    }
}

/// Lowers, and checks the job with its op graph.
fn of_job(
    attention: &Valid,
    target: &qkvault_graph::Target,
    options: &qkvault_graph::CompileOptions,
    choice: qkvault_graph::Choice,
    check: impl FnOnce(&Job<'_>) -> Result<RebuildCheck, Stop>,
) -> Result<RebuildCheck, Stop> {
    let compiler = OpenCompiler::new(None);
    check(&Job::choosing(attention, target, options, choice, &compiler)?)
}

fn same_key(stored: PlanKey, found: PlanKey) -> Result<(), Difference> {
    if stored == found { Ok(()) } else { Err(Difference::Key { found }) }
}

fn same_facts(stored: &PlanFacts, expected: &PlanFacts) -> Result<(), Altered> {
    stored.altered(expected).map_or(Ok(()), Err)
}

/// Compares what a list of entries shows.
fn same_labels(stored: &Entry, expected: &Entry) -> Result<(), Altered> {
    let Entry { kind, target, what, library, meta: _, payload: _ } = expected;
    let labels = [
        ("target in the header", &stored.target, target),
        ("description in the header", &stored.what, what),
        ("library in the header", &stored.library, library),
    ];
    if stored.kind != *kind {
        return Err(Altered::new("kind", &stored.kind, kind));
    }
    match labels.into_iter().find(|(_, stored, expected)| stored != expected) {
        Some((label, stored, expected)) => Err(Altered::new(label, stored, expected)),
        None => Ok(()),
    }
}

fn same_cubins(stored: &Plan, compiled: &Plan) -> Result<RebuildCheck, Stop> {
    if !same_code(&stored.blob, &compiled.blob) {
        let (stored, compiled) = (stored.blob.len(), compiled.blob.len());
        return Err(Difference::Cubins { stored, compiled }.into());
    }
    let kernels = compiled.facts.kernels().map_or(0, |facts| facts.recipe.modules.len());
    Ok(RebuildCheck::Same { kernels, kernel_bytes: compiled.blob.len() })
}
