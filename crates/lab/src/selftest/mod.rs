//! `selftest`: random valid attentions on the GPU against the oracle, outputs poisoned first; right, refused or wrong, with the seed.

mod batch;
mod cases;
mod expressions;
mod faults;
mod isolate;
mod judge;
mod large;
mod layouts;
mod philox;
mod sanitize;
mod sanitized;
mod serving;
mod stand;
mod tally;
mod verdicts;

pub(super) use cases::{Draw, attention as dense};
pub(super) use serving::attention as served;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use qkvault_graph::{Attention, Form, QuirkSet, VariantSet, text};
use rayon::prelude::*;
use serde_json::{Value, json};

use judge::{Case, Verdict};
use qkvault_cli::target::LibraryArgs;
use qkvault_cli::{Globals, Outcome, out, word};
use stand::Stand;
use tally::Tally;

/// Options of `selftest`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    library: LibraryArgs,
    /// How many attentions [default: 200, or all of the file]
    #[arg(long, value_name = "N")]
    cases: Option<u64>,
    /// Seed of the attentions and of their data
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of the first case: with `--cases 1`, one case of an earlier run, or of a file, where the first is 0
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// The GPU's number
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Batches as an engine that serves requests has them: varlen queries, paged keys and values
    #[arg(long)]
    serving: bool,
    /// Steps of training too large for the oracle: every operand is written below this folder, for bench/selftest_large.py to compare
    #[arg(long, value_name = "DIR", conflicts_with = "serving")]
    large: Option<PathBuf>,
    /// With `--large`: small ones, computed by the oracle in the place of a GPU, to try the comparison itself
    #[arg(long, requires = "large")]
    cpu: bool,
    /// Attentions of a file instead of random ones, in the text form, with a line `---` between them
    #[arg(long, value_name = "FILE", conflicts_with = "large")]
    file: Option<PathBuf>,
    /// Print the attentions, in the text form that `--file` reads, and do nothing else
    #[arg(long)]
    show: bool,
    /// How op graphs are written: auto, expanded, fused, unified
    #[arg(long, value_name = "FORM", default_value = "auto", value_parser = word::<Form>)]
    form: Form,
    /// Rules of lowering that are not followed, with commas between: to see what they are for
    #[arg(long, value_name = "VARIANTS", default_value = "")]
    without: VariantSet,
    /// Quirks that are taken although they are computed wrongly, by code, with commas between: to see what comes of them
    #[arg(long, value_name = "CODES", default_value = "")]
    allow: QuirkSet,
    /// With `--serving`: poison rows beyond the lengths in pages that are in use too, which kernels need not bear
    #[arg(long, requires = "serving")]
    tails: bool,
    /// Write the record to this file too, every few seconds
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Do only what needs no GPU, for this one: plans, operands, the oracle
    #[arg(long, value_name = "NAME|FILE")]
    dry: Option<String>,
    /// Run the cases in processes of their own, so many each: one that ends its process or faults on the GPU, after which every
    /// launch of its process fails, is asked again by itself, and the others are judged
    #[arg(long, value_name = "CASES", conflicts_with = "large")]
    isolate: Option<u64>,
    /// With `--isolate` and `--sanitize`: processes at the same time (default: one for each core)
    #[arg(long)]
    workers: Option<usize>,
    /// With `--isolate` and `--sanitize`: longest time for one case, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    case_limit: u64,
    /// Run each case under compute-sanitizer in a process of its own (needs `--vault`): memcheck each, initcheck and racecheck a sample;
    /// every fourth case is a serving batch
    #[arg(long, conflicts_with_all = ["large", "isolate", "dry"])]
    sanitize: bool,
    /// With `--sanitize`: the program
    #[arg(long, value_name = "FILE", default_value = "compute-sanitizer")]
    sanitizer: PathBuf,
    /// With `--sanitize`: every N-th case is put to initcheck and racecheck too; 0 for none
    #[arg(long, value_name = "N", default_value_t = 20)]
    sample: u64,
    /// Compare the verdicts of the rules, of the library without a GPU, and of the card; every fourth case is a serving batch
    #[arg(long, conflicts_with_all = ["large", "serving"])]
    verdicts: bool,
    /// Launch each case so many times more and compare bits: outputs that are not sums in any order must be the same
    #[arg(long, value_name = "N", default_value_t = 0)]
    repeat: u32,
    /// Judge the cases whose numbers are on standard input: what `--isolate` starts its processes with
    #[arg(long, hide = true)]
    worker: bool,
}

/// Random attentions of a run that does not say how many.
const DEFAULT_CASES: u64 = 200;

impl Args {
    /// The numbers of the cases; of a file with so many of them, those that there are.
    fn numbers(&self, in_file: Option<u64>) -> std::ops::Range<u64> {
        let all = in_file.map_or(DEFAULT_CASES, |n| n.saturating_sub(self.first));
        let wanted = self.cases.unwrap_or(all);
        self.first..self.first + if in_file.is_some() { wanted.min(all) } else { wanted }
    }

    /// Whether a case is a batch of serving.
    const fn serves(&self, number: u64) -> bool {
        let mixed = self.verdicts || self.sanitize;
        self.serving || (mixed && self.file.is_none() && number % 4 == 3)
    }
}

/// The attentions of a run: those of a file, or random ones.
struct Attentions<'a> {
    args: &'a Args,
    given: Option<Vec<Attention>>,
}

impl Attentions<'_> {
    fn of(args: &Args) -> anyhow::Result<Attentions<'_>> {
        let given = args.file.as_deref().map(attentions).transpose()?;
        if let Some(list) = given.as_ref().filter(|list| args.first >= list.len() as u64) {
            anyhow::bail!(
                "--first is {}, and the file has {} attentions, of which the first is 0",
                args.first,
                list.len()
            );
        }
        Ok(Attentions { args, given })
    }

    fn numbers(&self) -> std::ops::Range<u64> {
        self.args.numbers(self.given.as_ref().map(|list| list.len() as u64))
    }

    fn attention(&self, n: u64) -> Attention {
        match &self.given {
            Some(list) => list[n as usize].clone(),
            None if self.args.serves(n) => serving::attention(self.args.seed, n),
            None => cases::attention(self.args.seed, n),
        }
    }
}

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &Args) -> anyhow::Result<Outcome> {
    if let Some(folder) = &args.large {
        return large::run(globals, args, folder);
    }
    let attentions = Attentions::of(args)?;
    if args.show {
        let printed = attentions.numbers().map(|n| text::print(&attentions.attention(n)));
        printed.for_each(|text| out::line(&format!("{text}\n---")));
        return Ok(Outcome::Good);
    }
    if args.worker {
        return isolate::serve(&Stand::open(globals, args)?, &attentions);
    }
    if args.sanitize {
        return sanitize::run(globals, args, &attentions);
    }
    if let Some(each) = args.isolate {
        return isolate::run(globals, args, attentions.numbers(), each);
    }
    let stand = Stand::open(globals, args)?;
    let numbers: Vec<u64> = attentions.numbers().collect();
    let mut tally = Tally::new(args, numbers.len() as u64, stand.place.clone());
    // Threads of their own: they wait when the GPU is behind, and whoever judges must not wait for them.
    let pool = rayon::ThreadPoolBuilder::new().build()?;
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Case>(2 * pool.current_num_threads());
    std::thread::scope(|scope| {
        let (stand, attentions) = (&stand, &attentions);
        scope.spawn(move || {
            pool.install(|| {
                numbers.into_par_iter().with_max_len(1).for_each_with(sender, |sender, n| {
                    // Nobody listens only when the command is at its end.
                    let _ = sender.send(stand.prepare(attentions.attention(n), n));
                });
            });
        });
        for case in receiver {
            let verdict = stand.judge(&case);
            tally.take(&verdict, || row(&case, &verdict));
        }
    });
    tally.builds = stand.builds();
    Ok(tally.finish(globals))
}

/// What is kept of a case that is not right.
fn row(case: &Case, verdict: &Verdict) -> Value {
    json!({
        "case": case.number, "attention": case.attention.to_string(), "text": text::print(&case.attention),
        "lengths": case.prepared.as_ref().ok().map(|ready| batch::lengths(&ready.inputs)), "status": verdict.status, "why": verdict.why,
    })
}

/// The attentions of a file.
fn attentions(file: &Path) -> anyhow::Result<Vec<Attention>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{} could not be read", file.display()))?;
    let parts = text.split("\n---").map(str::trim).filter(|part| !part.is_empty()).enumerate();
    parts.map(|(at, part)| text::parse(part).with_context(|| format!("attention {at} of {}", file.display()))).collect()
}
