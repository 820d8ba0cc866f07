//! `probe`: checks whether a GPU and a cuDNN version support the attentions of a model or a description, and gives the
//! reasons if not.
//!
//! Rules decide in microseconds and need no library. With `--library`, cuDNN itself decides, and its plans go to the
//! vault.

mod ask;
mod budget;
mod features;
mod known;
mod matrix;
mod page;

use std::path::PathBuf;

use qkvault_compile::times::Expected;
use qkvault_compile::{CUDNN, Engine, EngineChoice, Engines, beside};
use qkvault_cudnn::{CompileOptions, QuirkSet, Target};
use qkvault_graph::{EnginePolicy, LibrarySet, Refusal, Valid};
use qkvault_probe::{
    Advice, Budget, Footprint, NEWEST, Near, Request, TRIED, advice, check, known_from, known_wrong, nearest,
};
use serde_json::{Value, json};

use crate::jobs::{self, ModelArgs};
use crate::target::{LibraryArgs, TargetArgs, is_target, profile};
use crate::{Globals, Outcome, out};

/// Rules answer without a library, so none is searched for a default.
const CUDNN_HELP: &str = "The cuDNN version, such as 9.27 (which is 9.27.0) or 9.10.2 \
                          (default: the newest that rules know; \
                          with --library the first one found, with --matrix several)";

/// Options of the command.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("model", |arg| arg.num_args(1..)))]
#[command(mut_group(jobs::WHAT, |group| group.args(["matrix", "known_wrong"])))]
#[command(mut_arg("cudnn", |arg| arg.help(CUDNN_HELP)))]
pub struct ProbeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A GPU by name (see `profile ls`) or a profile file (default: h200; with --matrix all GPUs that are known)
    #[arg(help_heading = "Target", long, value_name = "NAME|FILE", value_parser = is_target)]
    target: Option<String>,
    #[command(flatten)]
    pub(super) library: LibraryArgs,
    /// Also ask cuDNN, by compiling each attention (0.3 to 1 s each; plans and refusals go to the vault)
    #[arg(help_heading = "Answers", long = "library")]
    pub(super) ask: bool,
    /// Also compile the changes that are proposed for a refused attention, until cuDNN accepts one
    #[arg(help_heading = "Answers", long, requires = "ask")]
    confirm: bool,
    /// Device memory to fit in, in bytes (default: the free memory of a GPU of the target's name in this machine, else
    /// the target's total memory)
    #[arg(help_heading = "Answers", long, value_name = "BYTES")]
    memory: Option<u64>,
    /// Codes of quirks to accept (see docs/reasons.md)
    #[arg(help_heading = "Answers", long, value_name = "CODE", value_delimiter = ',')]
    allow: Vec<QuirkSet>,
    /// Write models and features by GPU and cuDNN version as FILE.html, FILE.md and FILE.json
    #[arg(help_heading = "Answers", long, value_name = "FILE")]
    matrix: Option<PathBuf>,
    /// List what is known to be computed wrongly, by which engine, GPU and version, and who saw it (with --json all of
    /// docs/known-wrong.json); nothing is probed
    #[arg(help_heading = "Answers", long, conflicts_with_all = ["model", "text", "matrix", "ask"])]
    known_wrong: bool,
}

impl ProbeArgs {
    /// The target, which is an H200 unless another one is named.
    fn target(&self) -> TargetArgs {
        TargetArgs { target: self.target.clone().unwrap_or_else(|| "h200".to_owned()) }
    }

    /// Whether the command needs a cuDNN library.
    pub(super) const fn needs_library(&self) -> bool {
        self.ask && self.matrix.is_none() && !self.known_wrong
    }
}

/// One attention and its result.
struct ProbeRow {
    what: String,
    uses: Vec<jobs::Use>,
    attention: Result<Valid, Refusal>,
    /// Reasons why it is not supported; empty if it is supported.
    reasons: Vec<qkvault_graph::Reason>,
    /// Single changes that rules accept, each with the library's answer if the library was asked.
    nearest: Vec<(Near, Option<&'static str>)>,
    footprint: Option<Footprint>,
    /// The library's answer, if the library was asked.
    library: Option<&'static str>,
}

pub(super) fn run(globals: &Globals, args: &ProbeArgs) -> anyhow::Result<Outcome> {
    if args.known_wrong {
        known::list(globals);
        return Ok(Outcome::Good);
    }
    if let Some(file) = &args.matrix {
        return matrix::write(globals, args, file);
    }
    let (asked, target) = match args.ask {
        true => {
            let asked = ask::TargetLibrary::open(globals, &args.library, &args.target())?;
            let target = asked.target.clone();
            (Some(asked), target)
        }
        false => (None, rules_target(args)?),
    };
    let (list, mut notes) = attentions(args)?;
    notes.extend(target.toolchain.environment.notes());
    let allowed = args.allow.iter().fold(QuirkSet::NONE, |all, one| all.with(*one));
    let policy = CompileOptions { allowed, ..CompileOptions::default() };
    let budget = budget::for_target(args.memory, &target, args.ask);
    let mut rows = Vec::new();
    for (uses, attention) in list {
        let mut row = by_rules(uses, attention, &target, budget, policy);
        if let Some(library) = &asked {
            library.ask(&mut row, &policy, budget)?;
            if args.confirm {
                library.confirm(&mut row, &policy)?;
            }
        }
        rows.push(row);
    }
    print(globals, &target, budget, &rows, &notes);
    let (served, refused): (Vec<&ProbeRow>, Vec<&ProbeRow>) =
        rows.iter().partition(|row| engine(row, &target).is_some());
    let served: Vec<jobs::Use> = served.iter().flat_map(|row| row.uses.clone()).collect();
    let other_way = refused.iter().filter(|row| jobs::as_mixed(&row.uses, &served).count() == row.uses.len()).count();
    if other_way > 0 && !globals.json {
        out::line(&format!(
            "{other_way} decodes that are refused go another way: the set's plans of mixed steps serve them"
        ));
    }
    Ok(if refused.len() > other_way { Outcome::Bad } else { Outcome::Good })
}

/// The target if no library is loaded: both the version and the GPU come from the options.
fn rules_target(args: &ProbeArgs) -> anyhow::Result<Target> {
    let version = args.library.cudnn.as_deref().map(str::parse).transpose()?.unwrap_or(NEWEST);
    let set = if args.library.full { LibrarySet::Full } else { LibrarySet::Slim };
    Ok(profile(&args.target().target)?.target(version, set))
}

type NamedAttention = (Vec<jobs::Use>, Result<Valid, Refusal>);

fn attentions(args: &ProbeArgs) -> anyhow::Result<(Vec<NamedAttention>, Vec<String>)> {
    let jobs::Jobs { jobs, notes, .. } = jobs::plan(&args.model)?;
    let named = |job: jobs::AttentionJob| (job.uses, job.attention);
    Ok((jobs.into_iter().map(named).collect(), notes))
}

fn by_rules(
    uses: Vec<jobs::Use>,
    attention: Result<Valid, Refusal>,
    target: &Target,
    budget: Budget,
    policy: CompileOptions,
) -> ProbeRow {
    let what = uses[0].label();
    let valid = match &attention {
        Ok(valid) => valid,
        Err(refusal) => {
            let reasons = refusal.reasons().to_vec();
            return ProbeRow { what, uses, attention, reasons, nearest: Vec::new(), footprint: None, library: None };
        }
    };
    let request = Request::new(valid, target).with_policy(policy);
    let mut reasons = check(&request).reasons;
    let nearest = nearest(&request, &TRIED).into_iter().map(|near| (near, None)).collect();
    let footprint = Footprint::for_attention(valid, target, &request.policy);
    reasons.extend(footprint.and_then(|f| f.over(budget)));
    ProbeRow { what, uses, attention, reasons, nearest, footprint, library: None }
}

fn print(globals: &Globals, target: &Target, budget: Budget, rows: &[ProbeRow], notes: &[String]) {
    let (supported, refused): (Vec<&ProbeRow>, Vec<&ProbeRow>) =
        rows.iter().partition(|row| engine(row, target).is_some());
    if globals.json {
        out::json(&json!({
            "target": target.label(),
            "cudnn": target.cudnn.to_string(),
            "memory": { "bytes": budget.bytes, "basis": budget.basis.name() },
            "supported": supported.into_iter().map(|row| entry(row, target)).collect::<Vec<_>>(),
            "refused": refused.into_iter().map(|row| entry(row, target)).collect::<Vec<_>>(),
            "notes": notes,
        }));
        return;
    }
    out::line(&format!("for {target}; in {budget}"));
    // Plans of one model, and parts of ranks that share an attention, have the same reasons: they are told once.
    let mut blocks: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    for row in rows {
        let choice = engine(row, target);
        let answer = if choice.is_some() { "supported" } else { "refused" };
        let why = why(row, choice.as_ref(), target);
        let head = [format!("{answer:9} {}", row.what)].into_iter().chain(told(row, choice, target));
        match blocks.iter_mut().find(|(_, known)| !why.is_empty() && *known == why) {
            Some((heads, _)) => heads.extend(head),
            None => blocks.push((head.collect(), why)),
        }
    }
    blocks.iter().flat_map(|(heads, told)| heads.iter().chain(told)).for_each(|line| out::line(line));
    notes.iter().for_each(|n| out::line(&format!("note: {n}")));
    out::line(&format!("{} supported, {} refused", supported.len(), refused.len()));
}

/// What is said of a row alone, below its first line.
fn told(row: &ProbeRow, choice: Option<EngineChoice>, target: &Target) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    if let Some(choice) = &choice {
        let by = choice.engine.title();
        lines.push(match expected(row, Some(choice), target) {
            Some(of) => format!("expected: {of}, by {by}"),
            None => format!("by {by}"),
        });
    }
    lines.extend(gradient(row));
    if let Some(choice) = choice.filter(|choice| choice.engine != CUDNN && row.reasons.is_empty()) {
        lines.extend(choice.to_string().lines().map(str::to_owned));
    }
    lines.iter().map(|line| format!("    {line}")).collect()
}

/// The reasons and the advice of a row, which others may have too.
fn why(row: &ProbeRow, choice: Option<&EngineChoice>, target: &Target) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    if let Some(choice) = choice.filter(|choice| choice.engine != CUDNN && !row.reasons.is_empty()) {
        lines.push(format!("{} takes it; cuDNN refuses it:", choice.engine.title()));
    }
    for reason in &row.reasons {
        lines.push(reason.to_string());
        lines.extend(known_from(&reason.code).map(|known| format!("  known from: {known}")));
    }
    let advised = advised(row, target);
    lines.extend(advised.iter().map(|advice| format!("advice: {} ({})", advice.what, advice.source)));
    for (_, answer) in others(row, target) {
        lines.extend(answer.err().iter().flat_map(|refusal| refusal.reasons()).map(ToString::to_string));
    }
    // A change that the library accepts takes precedence over one that it was not asked about.
    let accepted = row.nearest.iter().find(|(_, library)| *library == Some("supported"));
    let open = row.nearest.iter().find(|(_, library)| library.is_none());
    if let Some((near, library)) = accepted.or(open).filter(|_| choice.is_none()) {
        let by = if library.is_some() { ", confirmed by the library" } else { "" };
        lines.push(format!("nearest supported{by}: {}", near.change));
    }
    lines.iter().map(|line| format!("    {line}")).collect()
}

/// The derivative by the score that qkvault derives, of an attention that was described alone: what a backward of it
/// computes.
fn gradient(row: &ProbeRow) -> Option<String> {
    let described = row.attention.as_ref().ok().filter(|valid| valid.to_string() == row.what)?;
    Some(match described.score_mod_vjp()? {
        Ok(vjp) => format!("derivative by the score: {}", vjp.d_score),
        Err(why) => {
            let why: Vec<String> = why.iter().map(ToString::to_string).collect();
            format!("no derivative by the score: {}", why.join("; "))
        }
    })
}

/// The engine that takes an attention by default, and why; `None` if none does.
fn engine(row: &ProbeRow, target: &Target) -> Option<EngineChoice> {
    let attention = row.attention.as_ref().ok()?;
    Engines::built_in().by_rules(attention, target.sm(), EnginePolicy::Auto, (CUDNN, &row.reasons))
}

/// What a launch is expected to take, where the GPU is one of those that the table of times is of.
fn expected(row: &ProbeRow, choice: Option<&EngineChoice>, target: &Target) -> Option<Expected> {
    Engines::built_in().expected(choice?.engine, row.attention.as_ref().ok()?, target.sm())
}

/// What the other engines say of a valid attention that cuDNN refuses, by their names.
fn others(row: &ProbeRow, target: &Target) -> Vec<(String, Result<(), Refusal>)> {
    match row.attention.as_ref().ok().filter(|_| !row.reasons.is_empty()) {
        Some(valid) => {
            let engines = Engines::built_in();
            let others = engines.iter().filter(|engine| engine.id() != CUDNN);
            let answer = |engine: &dyn Engine| {
                let takes = engine.takes(valid, target.sm()).map_err(|refusal| beside(&refusal, CUDNN));
                (engine.id().name().to_string(), takes)
            };
            others.map(answer).collect()
        }
        None => Vec::new(),
    }
}

/// Advice about an attention that cuDNN supports.
fn advised(row: &ProbeRow, target: &Target) -> Vec<Advice> {
    let valid = row.attention.as_ref().ok().filter(|_| row.reasons.is_empty());
    valid.map_or_else(Vec::new, |valid| advice(valid, target))
}

fn entry(row: &ProbeRow, target: &Target) -> Value {
    let valid = row.attention.as_ref().ok();
    let choice = engine(row, target);
    let mut value = json!({
        "what": row.what,
        "key": valid.map(|a| a.key().to_string()),
        "attention": valid.map(|a| a.to_string()),
        "reasons": row.reasons,
        "nearest": row.nearest.iter().filter(|_| choice.is_none()).map(proposed).collect::<Vec<_>>(),
        "bytes": row.footprint.map(|f| f.bytes()),
        "library": row.library,
    });
    let known = known_wrong().wrong;
    let known: Vec<_> = known.into_iter().filter(|known| known.code.is_some_and(|code| has(row, code))).collect();
    if !known.is_empty() {
        value["known"] = json!(known);
    }
    if let Some(of) = expected(row, choice.as_ref(), target) {
        value["expected"] =
            json!({ "us": of.us, "measured": of.measured, "bound": of.limit.name(), "share": of.share });
    }
    if let Some(choice) = choice {
        value["chosen"] = crate::warm::chosen(&choice);
    }
    let advice = advised(row, target);
    if !advice.is_empty() {
        value["advice"] = advice.iter().map(|advice| json!({ "what": advice.what, "source": advice.source })).collect();
    }
    // Only where cuDNN refuses.
    for (name, answer) in others(row, target) {
        value[&name] = answer.map_or_else(|refusal| json!(refusal), |()| json!("supported"));
    }
    value
}

/// Whether a reason of the row has this code.
fn has(row: &ProbeRow, code: &str) -> bool {
    row.reasons.iter().any(|reason| reason.code.as_str() == code)
}

fn proposed((near, library): &(Near, Option<&'static str>)) -> Value {
    json!({
        "change": near.change,
        "attention": near.attention.to_string(),
        "cudnn": near.target.cudnn.to_string(),
        "library": library,
    })
}
