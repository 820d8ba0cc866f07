//! `selftest`: runs random valid attentions over poisoned outputs on the GPU and compares them with the oracle. Each
//! case is right, refused, wrong or failed.

mod batch;
mod cases;
mod eight_bits;
mod expressions;
mod families;
mod isolate;
mod judge;
mod judged;
mod kills;
mod layouts;
mod own;
mod philox;
mod ranks;
mod runner;
mod serving;
mod tally;

pub(super) use cases::{Draw, attention as dense};
pub(super) use own::{attention as kernels_attention, fa4_drawn};
pub(super) use serving::attention as served;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use qkvault_cudnn::{Form, QuirkSet, VariantSet};
use qkvault_graph::{Attention, EnginePolicy, text};
use qkvault_reference::Family;
use rayon::prelude::*;
use serde_json::{Value, json};

use families::Families;
use judge::{CaseVerdict, LaunchCase};
use qkvault_cli::target::LibraryArgs;
use qkvault_cli::{Globals, Outcome, out, policy, word};
use qkvault_compile::{FA4, KERNELS};
use runner::Runner;
use tally::Tally;

/// Options of `selftest`.
#[derive(Debug, clap::Args)]
pub struct SelftestArgs {
    #[command(flatten)]
    library: LibraryArgs,
    /// Number of attentions [default: 200, or all of the file]
    #[arg(long, value_name = "N")]
    cases: Option<u64>,
    /// Seed of the attentions and of their data
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of the first case, counted from 0; with `--cases 1` it repeats one case of a run or a file
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// The GPU's number
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Use only batches of a serving engine (varlen queries, paged keys and values), which are otherwise every fourth
    /// case
    #[arg(long)]
    serving: bool,
    /// Use 8-bit attentions with one scale per tensor, judged by what their formats cost; with `--engine kernels` those
    /// over a cache in 8 bits
    #[arg(long, conflicts_with = "serving")]
    fp8: bool,
    /// With `--fp8`: only cases that have what these codes refuse, separated by commas, and allow them
    #[arg(long, value_name = "CODES", default_value = "", requires = "fp8")]
    about: QuirkSet,
    /// Use the attentions of this file, in the text form with lines `---` between them
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The kind of numbers that operands hold: normal, below (scores near -120), above, far-below (-30,000), far-above,
    /// biased (by added tensors), lowest (padding masks), constant (equal keys), dominant (one key), zero, tiny, large
    /// (V), behind (NaN in padding); or mixed, which takes one after the other
    #[arg(long, value_name = "FAMILY", default_value = "mixed", value_parser = families::read)]
    family: Families,
    /// Only print the attentions, in the text form that `--file` reads
    #[arg(long)]
    show: bool,
    /// Whose plans are tried: cuDNN's, or those of qkvault's own kernels or FlashAttention-4's, over cases that these
    /// take
    #[arg(long, value_name = "ENGINE", default_value = "cudnn", conflicts_with = "serving", value_parser = policy)]
    engine: EnginePolicy,
    /// Form of the op graphs: auto, expanded, fused
    #[arg(long, value_name = "FORM", default_value = "auto", value_parser = word::<Form>)]
    form: Form,
    /// Lowering variants to turn off, separated by commas, to test their effect
    #[arg(long, value_name = "VARIANTS", default_value = "")]
    without: VariantSet,
    /// Codes of quirks to accept although cuDNN computes them wrongly, separated by commas, to test their effect
    #[arg(long, value_name = "CODES", default_value = "")]
    allow: QuirkSet,
    /// With `--serving`: also poison rows beyond the lengths in used pages, which kernels need not support
    #[arg(long, requires = "serving")]
    tails: bool,
    /// Also write the record to this file, every few seconds
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Add the right cases to this record of what a GPU has judged of the kernels' sources
    /// (crates/kernels/data/judged.json)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dry", "show"])]
    judged: Option<PathBuf>,
    /// Only do the parts that need no GPU, for this target: plans, operands, the oracle
    #[arg(long, value_name = "NAME|FILE")]
    dry: Option<String>,
    /// Run the cases in worker processes, this many in each; a case that ends its process or fails is repeated in a new
    /// process, so that a fault does not affect other cases
    #[arg(long, value_name = "CASES")]
    isolate: Option<u64>,
    /// With `--isolate`: number of parallel processes (default: one per core)
    #[arg(long)]
    workers: Option<usize>,
    /// With `--isolate`: longest time for one case, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    case_limit: u64,
    /// Launch each case this many more times; outputs that are not sums in any order must have the same bits
    #[arg(long, value_name = "N", default_value_t = 0)]
    repeat: u32,
    /// Share each attention among this many ranks, in both directions; with `--dry` only compile their plans
    #[arg(long, value_name = "N", conflicts_with_all = ["serving", "file", "show", "isolate"], value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: Option<u32>,
    /// With `--ranks`: all ranks are threads on one GPU
    #[arg(long, requires = "ranks")]
    one_gpu: bool,
    /// With `--ranks`: instead of cases, so many times kill one of the ranks, which are processes on a GPU each
    #[arg(long, value_name = "TIMES", requires = "ranks", conflicts_with_all = ["one_gpu", "dry"])]
    kills: Option<u32>,
    /// With `--kills`: worlds that run side by side on the same GPUs
    #[arg(long, requires = "kills", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    at_once: u32,
    /// One of the processes of `--kills`
    #[arg(long, requires = "kills", hide = true)]
    as_rank: bool,
    /// Judge the cases whose numbers are on standard input; `--isolate` starts its workers with this option
    #[arg(long, hide = true)]
    worker: bool,
}

/// Number of random attentions without `--cases`.
const DEFAULT_CASES: u64 = 200;

impl SelftestArgs {
    /// The kind of numbers of a case. Cases of serving are every second or fourth one, so families change in groups.
    fn family(&self, number: u64) -> Family {
        match (self.family, &self.file) {
            // All families of an attention, one after the other.
            (Families::Mixed, None) if self.engine == FA4.policy() => Family::ALL[(number % own::SHARED) as usize],
            _ => self.family.for_case(number),
        }
    }

    /// The family of a case's operands. cuDNN multiplies rows of padding by probabilities of zero, so they must be
    /// numbers.
    fn operand_family(&self, number: u64) -> Family {
        match self.family(number) {
            Family::Behind if !self.own_kernels() => Family::Normal,
            family => family,
        }
    }

    /// Whether plans are those of kernels that read no padding.
    fn own_kernels(&self) -> bool {
        [KERNELS, FA4].iter().any(|engine| engine.policy() == self.engine)
    }

    /// The numbers of the cases, limited to those of a file if there is one.
    fn numbers(&self, in_file: Option<u64>) -> std::ops::Range<u64> {
        let all = in_file.map_or(DEFAULT_CASES, |n| n.saturating_sub(self.first));
        let asked = self.cases.unwrap_or(all);
        self.first..self.first + if in_file.is_some() { asked.min(all) } else { asked }
    }

    /// Whether a case is a serving batch.
    fn serves(&self, number: u64) -> bool {
        // Batches of serving are among the cases of kernels and of FlashAttention-4's.
        if self.own_kernels() {
            let place = if self.engine == FA4.policy() { number / own::SHARED } else { number };
            return self.file.is_none() && place % 2 == 1;
        }
        self.serving || (!self.fp8 && self.file.is_none() && number % 4 == 3)
    }
}

/// The attentions of a run, from a file or random.
struct Attentions<'a> {
    args: &'a SelftestArgs,
    given: Option<Vec<Attention>>,
}

impl Attentions<'_> {
    fn from_args(args: &SelftestArgs) -> anyhow::Result<Attentions<'_>> {
        let given = args.file.as_deref().map(attentions).transpose()?;
        if let Some(list) = given.as_ref().filter(|list| args.first >= list.len() as u64) {
            anyhow::bail!("--first is {}, but the file has {} attentions, numbered from 0", args.first, list.len());
        }
        Ok(Attentions { args, given })
    }

    fn numbers(&self) -> std::ops::Range<u64> {
        self.args.numbers(self.given.as_ref().map(|list| list.len() as u64))
    }

    fn attention(&self, n: u64) -> Attention {
        match &self.given {
            Some(list) => list[n as usize].clone(),
            None if self.args.engine == KERNELS.policy() && self.args.fp8 => own::cached(self.args.seed, n),
            None if self.args.engine == KERNELS.policy() => own::attention(self.args.seed, n),
            None if self.args.engine == FA4.policy() => fa4_drawn(self.args.seed, n / own::SHARED),
            None if self.args.fp8 => eight_bits::attention(self.args.seed, n, self.args.about),
            None if self.args.serves(n) => serving::attention(self.args.seed, n),
            None => cases::attention(self.args.seed, n),
        }
    }
}

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &SelftestArgs) -> anyhow::Result<Outcome> {
    if let Some(code) = args.about.iter().find(|code| eight_bits::ABOUT.iter().all(|known| known.as_str() != *code)) {
        let known: Vec<&str> = eight_bits::ABOUT.iter().map(|code| code.as_str()).collect();
        anyhow::bail!("--about {code} draws no cases; it takes {}", known.join(", "));
    }
    match (args.ranks, args.kills) {
        (Some(_), Some(_)) if args.as_rank => return kills::rank(globals, args),
        (Some(ranks), Some(times)) => return kills::run(globals, args, ranks, times),
        (Some(ranks), None) => return ranks::run(globals, args, ranks),
        (None, _) => {}
    }
    let attentions = Attentions::from_args(args)?;
    if args.show {
        let printed = attentions.numbers().map(|n| text::print(&attentions.attention(n)));
        printed.for_each(|text| out::lines(&format!("{text}\n---")));
        return Ok(Outcome::Good);
    }
    if args.worker {
        return isolate::serve(&Runner::open(globals, args)?, &attentions);
    }
    if let Some(each) = args.isolate {
        return isolate::run(globals, args, attentions.numbers(), each);
    }
    let runner = Runner::open(globals, args)?;
    let numbers: Vec<u64> = attentions.numbers().collect();
    let mut tally = Tally::new(args, numbers.len() as u64, runner.place.clone());
    // A separate pool: its threads wait while the GPU is behind, and the oracle of the judging thread must not wait for
    // them.
    let pool = rayon::ThreadPoolBuilder::new().build()?;
    let (sender, receiver) = std::sync::mpsc::sync_channel::<LaunchCase>(2 * pool.current_num_threads());
    std::thread::scope(|scope| {
        let (runner, attentions) = (&runner, &attentions);
        scope.spawn(move || {
            pool.install(|| {
                numbers.into_par_iter().with_max_len(1).for_each_with(sender, |sender, n| {
                    // Sending fails only after the receiver has ended with the command.
                    let _ = sender.send(runner.prepare(attentions.attention(n), n));
                });
            });
        });
        for case in receiver {
            let verdict = runner.judge(&case);
            tally.take(&verdict, case.number, || row(args, &case, &verdict));
        }
    });
    tally.builds = runner.builds();
    Ok(tally.finish(globals))
}

/// The record row of a case.
fn row(args: &SelftestArgs, case: &LaunchCase, verdict: &CaseVerdict) -> Value {
    json!({
        "case": case.number, "family": args.family(case.number).name(), "attention": case.attention.to_string(), "text": text::print(&case.attention),
        "lengths": case.prepared.as_ref().ok().map(|ready| batch::lengths(&ready.inputs)), "status": verdict.status, "why": verdict.why,
    })
}

/// Reads the attentions of a file.
fn attentions(file: &Path) -> anyhow::Result<Vec<Attention>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{} could not be read", file.display()))?;
    let parts = text.split("\n---").map(str::trim).filter(|part| !part.is_empty()).enumerate();
    parts.map(|(at, part)| text::parse(part).with_context(|| format!("attention {at} of {}", file.display()))).collect()
}
