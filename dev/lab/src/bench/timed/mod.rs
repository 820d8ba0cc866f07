//! `bench attentions`: times the attentions of a file, a manifest or a model on the GPU, forward and backward, in
//! turns; or compiles them for a GPU that is not present.

pub(super) mod entry;
pub(super) mod file;
mod models;
pub(super) mod turns;

use std::io::BufRead as _;
use std::path::PathBuf;

use anyhow::Context as _;
use qkvault_compile::{Compiler, OnMiss, Planner};
use qkvault_cudnn::{CompileOptions, Form, Heuristics, VariantSet};
use qkvault_exec::{Device, Session, SessionOptions};
use qkvault_sys::Library;
use serde_json::{Value, json};

use entry::TimedEntry;
use file::TimedCase;
use qkvault_cli::jobs::ModelArgs;
use qkvault_cli::target::{LibraryArgs, TargetArgs};
use qkvault_cli::{Globals, Outcome, open_vault, out, word};
use turns::Turns;

/// Options of `bench attentions`.
#[derive(Debug, clap::Args)]
#[command(mut_group(qkvault_cli::jobs::WHAT, |group| group.arg("cases")))]
pub(in crate::bench) struct TimedArgs {
    /// The file of cases (bench/training.txt describes the format)
    #[arg(long, value_name = "FILE", required_unless_present_any = ["model", "text"])]
    #[arg(conflicts_with_all = ["model", "text"])]
    cases: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    /// Cases by name (default: all)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Forms of the op graph to compare: auto, expanded, fused
    #[arg(long, value_name = "FORM", value_delimiter = ',', default_value = "auto", value_parser = word::<Form>)]
    form: Vec<Form>,
    /// Lowering variants to turn off, joined by `+`; each set is timed beside the default (see the documentation of
    /// `lower`)
    #[arg(long, value_name = "RULE+RULE", value_delimiter = ',', value_parser = rules)]
    without: Vec<VariantSet>,
    /// Heuristics that select engines: a-then-fallback, a, fallback
    #[arg(long, value_name = "WHICH", default_value = "a-then-fallback", value_parser = word::<Heuristics>)]
    heuristics: Heuristics,
    /// Refuse plans that need more scratch memory than this many bytes
    #[arg(long, value_name = "BYTES")]
    workspace_limit: Option<u64>,
    /// Rounds; each round times every entry once, and every other round runs in reverse
    #[arg(long, value_name = "N", default_value_t = 11)]
    rounds: usize,
    /// Rows of O to check against float64
    #[arg(long, value_name = "N", default_value_t = 16)]
    rows: usize,
    /// Compile plans that the vault lacks
    #[arg(long)]
    build: bool,
    /// Only compile for --target and report the plans; needs no GPU and times nothing
    #[arg(long)]
    plan: bool,
    /// Read lines `ENTRY forward|backward LAUNCHES [BEFORE]` from standard input and time each, so that another program
    /// can take turns
    #[arg(long)]
    interactive: bool,
    /// Seed of the data
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The GPU's number
    #[arg(long, default_value_t = 0)]
    device: usize,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    library: LibraryArgs,
}

fn rules(text: &str) -> Result<VariantSet, String> {
    text.replace('+', ",").parse().map_err(|error: qkvault_cudnn::BadVariant| error.to_string())
}

impl TimedArgs {
    fn option_sets(&self) -> Vec<(String, CompileOptions)> {
        let options = |form: Form, without: VariantSet| {
            let name = serde_json::to_value(form).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
            let rules: Vec<&str> = without.iter().map(|rule| rule.row().name).collect();
            let name = if rules.is_empty() { name } else { format!("{name}-without-{}", rules.join("+")) };
            (
                name,
                CompileOptions {
                    heuristics: self.heuristics,
                    lab: qkvault_cudnn::LabOptions { form, without, ..Default::default() },
                    ..CompileOptions::cudnn()
                },
            )
        };
        let sets = || std::iter::once(VariantSet::default()).chain(self.without.iter().copied());
        self.form.iter().flat_map(|&form| sets().map(move |without| options(form, without))).collect()
    }

    fn cases(&self) -> anyhow::Result<Vec<TimedCase>> {
        let (shown, mut cases) = match &self.cases {
            None => ("the models".to_owned(), models::cases(&self.model, self.seed)?),
            Some(path) => {
                let shown = path.display().to_string();
                let text = std::fs::read_to_string(path).with_context(|| format!("{shown} could not be read"))?;
                let cases = file::read(&text, self.seed).with_context(|| format!("{shown} cannot be timed"))?;
                (shown, cases)
            }
        };
        if let Some(name) = self.only.iter().find(|name| cases.iter().all(|c| c.name != **name)) {
            let names: Vec<&str> = cases.iter().map(|c| c.name.as_str()).collect();
            anyhow::bail!("{shown} has no case '{name}'; it has {}", names.join(", "));
        }
        cases.retain(|c| self.only.is_empty() || self.only.contains(&c.name));
        Ok(cases)
    }
}

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &TimedArgs) -> anyhow::Result<Outcome> {
    let cases = args.cases()?;
    let search = args.library.search()?;
    if args.plan {
        let compiler = Compiler::open_compile_only(&search)?;
        let target = args.target.target(&compiler)?;
        let planner = Planner::new(open_vault(globals)?, Some(compiler));
        let list = entry::plan(&cases, &args.option_sets(), &planner, &target);
        let machine = json!({ "where": "nowhere", "target": target.label(), "cudnn": target.cudnn.to_string() });
        return Ok(report(globals, &machine, &list));
    }
    let device = Device::open(args.device)?;
    let library = Library::open(&search)?;
    let options = SessionOptions { workspace_limit: args.workspace_limit, ..SessionOptions::default() };
    let session = Session::with_options(&device, &library, options)?;
    let compiler = if args.build { Some(Compiler::open(&search)?) } else { None };
    let planner = Planner::new(open_vault(globals)?, compiler);
    let build = if args.build { OnMiss::Compile } else { OnMiss::Load };
    let machine = json!({
        "where": "gpu", "device": device.name(), "uuid": device.uuid(), "target": session.target()?.label(),
        "driver": session.gpu().driver, "cudnn": library.version().to_string(),
        "cudnn_set": library.set().to_string(), "seed": args.seed, "rounds": args.rounds,
    });
    let mut turns = Turns::new(&session, &planner, build, device.context().new_stream()?);
    for case in &cases {
        for (form, options) in &args.option_sets() {
            out::note(&format!("{} {form}", case.name));
            turns.add(case, form, options, args.rows);
        }
    }
    if args.interactive {
        return serve(&machine, &mut turns);
    }
    turns.alternate(args.rounds);
    Ok(report(globals, &machine, turns.entries()))
}

/// Answers the lines of standard input until it ends. The first output line describes all entries.
fn serve(machine: &Value, turns: &mut Turns) -> anyhow::Result<Outcome> {
    out::record(
        &json!({ "machine": machine, "entries": turns.entries().iter().map(TimedEntry::json).collect::<Vec<_>>() }),
    );
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            [entry, direction @ ("forward" | "backward"), launches, ref before @ ..] if before.len() < 2 => {
                let number = |word: &str| word.parse().map_err(|_| format!("'{word}' is not a number of launches"));
                number(launches).and_then(|n| {
                    let before = before.first().map_or(Ok(1), |word| number(word))?;
                    turns.time(entry, direction == "backward", n, before).map_err(|(_, why)| why)
                })
            }
            _ => Err(format!("'{line}' is not `ENTRY forward|backward LAUNCHES [LAUNCHES-BEFORE]`")),
        };
        out::record(&match answer {
            Ok(ms) => json!({ "ms": ms }),
            Err(error) => json!({ "error": error }),
        });
    }
    Ok(Outcome::Good)
}

fn report(globals: &Globals, machine: &Value, entries: &[TimedEntry]) -> Outcome {
    if globals.json {
        let list: Vec<Value> = entries.iter().map(TimedEntry::json).collect();
        out::json(&json!({ "machine": machine, "entries": list }));
    } else {
        let columns =
            ["entry", "status", ">forward ms", ">TFLOP/s", ">backward ms", ">TFLOP/s", ">workspace", ">backward's"];
        out::table(&columns, &entries.iter().map(TimedEntry::cells).collect::<Vec<_>>());
        for entry in entries {
            if let Some(why) = entry.why() {
                out::line(&format!("\n{}: {why}", entry.name()));
            }
        }
    }
    if entries.iter().all(TimedEntry::good) { Outcome::Good } else { Outcome::Bad }
}
