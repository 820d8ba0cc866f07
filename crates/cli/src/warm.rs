//! `warm`: compiles the plans that models need into the vault. The target GPU need not be present.

mod child;
mod part;
mod progress;
mod report;
mod sharing;
mod stopped;
mod tune;
mod versions;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context as _;

use qkvault_compile::{CUDNN, Compiler, Engines, OnMiss, PlanError, Planner, Resolution};
use qkvault_cudnn::{CompileOptions, LabOptions, QuirkSet, Target, VariantSet};
use qkvault_graph::{EnginePolicy, PlanKey, Refusal, Valid};
use qkvault_probe::{Request, check};
use rayon::prelude::*;
use serde_json::json;

use crate::jobs::{self, AttentionJob, ModelArgs};
use crate::target::{LibraryArgs, TargetsArgs, are_versions};
use crate::threads::threads;
use crate::{Globals, Outcome, flush_remote, older, open_vault, out, rejections};
use child::{ChildArgs, Journal};
use part::PlanPart;
use progress::Progress;
use report::{TargetReport, WarmRow};
pub(crate) use report::{chosen, computed_by};
use sharing::Sharing;

/// Options of `warm`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("cudnn", |arg| arg.value_parser(are_versions).value_name("VERSION,...").help(
    "The cuDNN version, such as 9.27 (which is 9.27.0) or 9.10.2; several with commas, each in a process of its own \
     (default: the first one found)"
)))]
pub struct WarmArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    target: TargetsArgs,
    #[command(flatten)]
    pub(super) library: LibraryArgs,
    /// Number of compiling threads, 1 to 1024 (default: one per core)
    #[arg(help_heading = "Compiling", long, short, value_name = "N", value_parser = threads)]
    jobs: Option<usize>,
    /// Compile part I of N parts that have no plan in common: one part per machine, then bring them together with
    /// `pack` and `unpack` or a remote store
    #[arg(help_heading = "Compiling", long = "shard", value_name = "I/N")]
    part: Option<PlanPart>,
    /// Compile nothing: list the plans, those that the vault has, and those that rules refuse
    #[arg(help_heading = "Compiling", long)]
    dry_run: bool,
    /// If the plan of the first engine needs more workspace than this many bytes, use the engine that needs the least
    #[arg(help_heading = "Compiling", long, value_name = "BYTES")]
    workspace_limit: Option<u64>,
    /// Whose plans to compile: cuDNN's, those of qkvault's own kernels, those of FlashAttention-4's (fa4, which `cargo
    /// xtask fetch --engine fa4` brings), or of each of these where it is faster or alone (auto)
    #[arg(help_heading = "Compiling", long, value_name = "ENGINE", value_parser = crate::policy, default_value = "auto")]
    engine: EnginePolicy,
    /// On a GPU host: also time the plans of every engine on GPU 0, in turns, and keep the times in the vault, so that
    /// the fastest is chosen here
    #[arg(help_heading = "Compiling", long, conflicts_with_all = ["dry_run", "part", "engine"])]
    autotune: bool,
    /// Variants of lowering to leave out, as `qkvault-lab` measures them
    #[arg(long, hide = true, value_name = "NAME,...", default_value = "")]
    without: VariantSet,
    #[command(flatten)]
    child: ChildArgs,
    /// Codes of quirks to accept (see docs/reasons.md)
    #[arg(help_heading = "Compiling", long, value_name = "CODE", value_delimiter = ',')]
    allow: Vec<QuirkSet>,
}

impl WarmArgs {
    /// What happens with a plan that the vault lacks.
    const fn on_miss(&self) -> OnMiss {
        if self.dry_run { OnMiss::Load } else { OnMiss::Compile }
    }
}

/// This program's file, to start it again.
fn this_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("this program's file is not known, so it cannot be started again")
}

/// One attention for one target.
#[derive(Clone, Copy)]
struct TargetJob<'j> {
    job: &'j AttentionJob,
    /// The target's place in the list of targets.
    target: usize,
    /// The key of its plan, if it can be described and lowered.
    key: Option<PlanKey>,
}

impl TargetJob<'_> {
    /// Whether a part has it. What has no plan is told with the same part on every machine too.
    fn is_in(&self, part: PlanPart) -> bool {
        let described = || self.job.attention.as_ref().map_or([0; 32], |attention| *attention.key().bytes());
        part.has(&self.key.map_or_else(described, |key| *key.bytes()))
    }
}

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &WarmArgs) -> anyhow::Result<Outcome> {
    let versions = args.library.versions();
    if versions.len() > 1 {
        return versions::run(globals, &versions);
    }
    // What may end the process compiles in another one. A dry run compiles nothing, and standard input is read once.
    let needs_cudnn = Engines::built_in().need_target(args.engine);
    let may_end = cfg!(unix) && !args.dry_run && !args.autotune && needs_cudnn;
    if may_end && !args.child.is_child() && !args.model.is_read_once() {
        return child::run();
    }
    let jobs::Jobs { jobs, combinations, appends, mut notes } = jobs::plan(&args.model)?;
    if jobs.is_empty() {
        notes.iter().for_each(|n| out::note(&format!("note: {n}")));
        return Err(jobs::nothing().into());
    }
    let allowed = args.allow.iter().fold(QuirkSet::NONE, |all, one| all.with(*one));
    let engine = args.engine;
    let lab = LabOptions::without(args.without);
    let policy =
        CompileOptions { workspace_limit: args.workspace_limit, allowed, engine, lab, ..CompileOptions::default() };
    if args.autotune {
        notes.iter().for_each(|n| out::note(&format!("note: {n}")));
        return tune::run(globals, args, &policy, &jobs);
    }
    let vault = open_vault(globals)?;
    // Plans of kernels need no cuDNN, and are the same with each.
    let compiler = match needs_cudnn {
        false => None,
        true => Some(Compiler::open_compile_only(&args.library.search()?)?),
    };
    let targets = args.target.targets(compiler.as_ref(), args.library.cudnn.as_deref())?;
    if let Some(compiler) = &compiler {
        notes.extend(compiler.toolchain().environment.notes());
    }
    notes.extend(older::notes(&vault));
    let planner = Planner::new(vault, compiler);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.jobs.unwrap_or(0)).build()?;
    let all = pool.install(|| keyed(&jobs, &targets, &planner, &policy));
    let mine: Vec<TargetJob<'_>> =
        all.iter().filter(|work| args.part.is_none_or(|part| work.is_in(part))).copied().collect();
    if !args.child.goes_on() {
        announce(args.part, &jobs, &targets, (mine.len(), all.len()));
    }
    let started = Instant::now();
    let progress = Progress::new(mine.len());
    let journal = args.child.journal()?;
    let one = |(place, work)| {
        let row = row(place, work, &planner, &targets, &policy, args, &journal);
        progress.done(row.is_built().then(|| named(work, &targets)).as_deref());
        (place, row)
    };
    // What was open when a process ended comes first, one after the other.
    let (first, others): (Vec<_>, Vec<_>) =
        mine.into_iter().enumerate().partition(|(place, _)| args.child.is_suspect(*place));
    let mut rows: Vec<(usize, WarmRow<'_>)> = pool.install(|| first.into_iter().map(&one).collect());
    rows.extend(pool.install(|| others.into_par_iter().map(&one).collect::<Vec<_>>()));
    rows.sort_by_key(|(place, _)| *place);
    let rows: Vec<WarmRow<'_>> = rows.into_iter().map(|(_, row)| row).collect();
    progress.finish();
    let merges = "merges, sums, copies, fills and dropout masks of the ranks";
    let on_miss = args.on_miss();
    notes.extend(beside(merges, &combinations, &targets, |of, sm| planner.combination(of, sm, on_miss))?);
    let fills = "appends to pages in 8 bits";
    notes.extend(beside(fills, &appends, &targets, |of, sm| planner.append(of, sm, on_miss))?);
    let seconds = started.elapsed().as_secs_f64();
    notes.extend(rejections::note(planner.vault()));
    notes.extend(flush_remote(planner.vault()));
    let report = |(place, target)| TargetReport {
        target,
        rows: rows.iter().filter(|row| row.target() == place).collect(),
        sharing: Sharing::count(all.iter().filter(|work| work.target == place).map(|work| (work.job, work.key))),
        part: args.part,
        seconds,
    };
    let reports: Vec<TargetReport<'_, '_>> = targets.iter().enumerate().map(report).collect();
    for line in reports.iter().flat_map(|report| report.uncompiled().into_iter().chain(report.unserved().1)) {
        if !notes.contains(&line) {
            notes.push(line);
        }
    }
    Ok(print(globals, &planner, &reports, &notes, seconds))
}

/// The row of a job, whose plan is looked up or compiled. `place` is its number in the journal.
fn row<'j>(
    place: usize,
    work: TargetJob<'j>,
    planner: &Planner,
    targets: &[Target],
    policy: &CompileOptions,
    args: &WarmArgs,
    journal: &Journal,
) -> WarmRow<'j> {
    let attention = match &work.job.attention {
        Ok(attention) => attention,
        Err(refusal) => return WarmRow::refused(work, refusal),
    };
    let target = &targets[work.target];
    // Only cuDNN's answers are stored, so a dry run asks the rules.
    if args.dry_run
        && planner.candidates(attention, target.sm(), policy.engine).engines == [CUDNN]
        && let Some(refusal) = by_rules(attention, target, policy)
    {
        return WarmRow::refused(work, &refusal);
    }
    if let (Some(key), Some(status)) = (work.key, args.child.ended(place)) {
        let why = format!("it ended the process that compiled it ({status})");
        return WarmRow::new(work, Err(PlanError::Interrupted { key, why }));
    }
    WarmRow::new(work, journal.within(place, || planner.plan(attention, target, policy, args.on_miss())))
}

/// Every attention for every target, with the key of its plan.
fn keyed<'j>(
    jobs: &'j [AttentionJob],
    targets: &[Target],
    planner: &Planner,
    policy: &CompileOptions,
) -> Vec<TargetJob<'j>> {
    let places: Vec<(usize, &AttentionJob)> =
        (0..targets.len()).flat_map(|at| jobs.iter().map(move |job| (at, job))).collect();
    let key = |(target, job): (usize, &'j AttentionJob)| {
        let attention = job.attention.as_ref().ok();
        let key = attention.and_then(|attention| planner.key(attention, &targets[target], policy).ok());
        TargetJob { job, target, key }
    };
    places.into_par_iter().map(key).collect()
}

/// An attention, with its target where there are several.
fn named(work: TargetJob<'_>, targets: &[Target]) -> String {
    let what = work.job.uses[0].label();
    if targets.len() > 1 { format!("{what} for {}", targets[work.target].label()) } else { what }
}

/// The refusal by rules, which cuDNN would give too.
fn by_rules(attention: &Valid, target: &Target, policy: &CompileOptions) -> Option<Refusal> {
    Refusal::from_reasons(check(&Request::new(attention, target).with_policy(*policy)).reasons)
}

/// Compiles what is launched beside attentions, for the GPUs of all targets; a note about it.
fn beside<T>(
    what: &str,
    list: &[T],
    targets: &[Target],
    plan: impl Fn(&T, u32) -> Result<Resolution, PlanError>,
) -> anyhow::Result<Option<String>> {
    let gpus: BTreeSet<u32> = targets.iter().map(Target::sm).collect();
    let mut missing = 0;
    for (of, sm) in list.iter().flat_map(|of| gpus.iter().map(move |sm| (of, *sm))) {
        match plan(of, sm) {
            Ok(_) => {}
            Err(PlanError::Missing { .. }) => missing += 1,
            Err(error) => return Err(error.into()),
        }
    }
    let all = list.len() * gpus.len();
    let note = format!("{all} plans of {what}, {missing} missing");
    Ok((all > 0).then_some(note))
}

/// Tells what will be compiled.
fn announce(part: Option<PlanPart>, jobs: &[AttentionJob], targets: &[Target], (mine, all): (usize, usize)) {
    let s = if jobs.len() == 1 { "" } else { "s" };
    let targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
    out::note(&format!("{} attention{s} for {}", jobs.len(), targets.join(" and for ")));
    if let Some(part) = part {
        out::note(&format!("part {part} has {mine} of {all}"));
    }
}

/// Prints the reports, and says whether every answer is there and kept.
fn print(
    globals: &Globals,
    planner: &Planner,
    reports: &[TargetReport<'_, '_>],
    notes: &[String],
    seconds: f64,
) -> Outcome {
    let vault = planner.vault();
    if globals.json {
        let stats = vault.stats();
        let runs = reports.iter().map(TargetReport::json).collect();
        let plans = reports.iter().flat_map(TargetReport::plans).collect();
        // The vault counts for all targets together.
        let rest = json!({
            "vault": vault.folder(), "notes": notes, "seconds": seconds, "rejected": stats.rejected(),
            "remote_hits": stats.hits_remote, "uploads": stats.uploads,
        });
        out::json(&report::whole(runs, plans, rest));
    } else {
        for report in reports {
            if reports.len() > 1 {
                out::line(&format!("{}", report.target));
            }
            report.print();
        }
        notes.iter().for_each(|n| out::line(&format!("note: {n}")));
        for report in reports {
            let of = if reports.len() > 1 { format!("{}: ", report.target.label()) } else { String::new() };
            out::line(&format!("{of}{}", report.counts()));
        }
        if let Some(folder) = vault.folder() {
            out::line(&format!("vault: {}", folder.display()));
        }
    }
    // Plans that are not stored are lost when the process ends, so this is an error.
    let lost: Vec<String> = reports.iter().filter_map(TargetReport::unstored).collect();
    lost.iter().for_each(|text| out::problem(&format!("error: {text}")));
    let bad = reports.iter().any(|report| report.unserved().0 + report.count("failed") > 0);
    if bad || !lost.is_empty() { Outcome::Bad } else { Outcome::Good }
}
