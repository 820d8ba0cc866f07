//! `fuzz-rules`: compares the answers of the rules and of the library for random descriptions, without a GPU.
//!
//! Descriptions that lowering or the rules report as not built or computed wrongly do not go to the library: they have
//! no graph, or the answer would mean nothing. Worker processes, one cuDNN each, compile the others, so that an abort
//! inside cuDNN costs one case and counts as a finding.

mod cases;
mod compare;
mod eight_bits;
mod own;
mod shrink;
mod worker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use qkvault_base::{MANIFEST, cudnn_dir};
use qkvault_cudnn::{CompileOptions, Profile, Target};
use qkvault_graph::{CudnnVersion, LibrarySet, text};
use serde_json::json;

use crate::workers::Worker;
use compare::{RuleDifference, RuleVerdict};
use qkvault_cli::{Globals, Outcome, out};
use qkvault_compile::{CUDNN, EngineId, FA4, KERNELS};

/// Options of the command.
#[derive(Clone, Debug, clap::Args)]
pub struct FuzzRulesArgs {
    /// Number of random descriptions [default: 1000 of cuDNN, 300 of kernels, 24 of fa4]
    #[arg(long)]
    cases: Option<u64>,
    /// Seed of the descriptions
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of the first case, to continue a run or to repeat a case
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Only deterministic backwards
    #[arg(long)]
    deterministic: bool,
    /// Only 8-bit attentions, with what only a GPU can judge allowed, so that the library is asked for it too
    #[arg(long)]
    fp8: bool,
    /// Whose rules: cuDNN's, or those of qkvault's own kernels or of FlashAttention-4's, which are compiled for one GPU
    #[arg(long, value_name = "ENGINE", default_value = "cudnn", conflicts_with_all = ["deterministic", "fp8", "versions", "full"], value_parser = engine)]
    engine: EngineId,
    /// GPUs to compile for, by name
    #[arg(long, value_delimiter = ',', default_values_t = ["a100", "l40s", "h200", "b200", "rtx-pro-6000"].map(String::from))]
    targets: Vec<String>,
    /// cuDNN versions among the fetched ones (default: all of them)
    #[arg(long, value_delimiter = ',', value_name = "VERSION")]
    versions: Vec<CudnnVersion>,
    /// Use the full library sets instead of the slim ones
    #[arg(long)]
    full: bool,
    /// Number of compiling processes
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Use the descriptions of this file, in the text form with lines `---` between them, for every GPU and version
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Do not shrink differences
    #[arg(long)]
    keep_size: bool,
    /// Answer cases from standard input with the cuDNN in this folder; the command starts its workers with this option
    #[arg(long, value_name = "DIR", hide = true)]
    worker: Option<PathBuf>,
}

/// One description with its target and library.
#[derive(Clone)]
pub(super) struct RuleCase {
    number: u64,
    attention: qkvault_graph::Valid,
    target: Target,
    profile: String,
    library: PathBuf,
    options: CompileOptions,
}

impl RuleCase {
    fn with(&self, attention: qkvault_graph::Valid) -> RuleCase {
        RuleCase { attention, ..self.clone() }
    }
}

/// An engine that has rules of its own.
fn engine(name: &str) -> Result<EngineId, String> {
    let list = [CUDNN, KERNELS, FA4];
    let found = list.into_iter().find(|engine| engine.name().as_str() == name);
    found.ok_or_else(|| format!("it takes {}", list.map(|engine| engine.name().to_string()).join(", ")))
}

pub(super) fn run(globals: &Globals, args: &FuzzRulesArgs) -> anyhow::Result<Outcome> {
    if let Some(folder) = &args.worker {
        worker::serve(folder)?;
        return Ok(Outcome::Good);
    }
    let (targets, libraries) = match args.engine {
        CUDNN => (args.targets.clone(), libraries(args)?),
        _ => (vec!["h200".to_owned()], vec![(qkvault_probe::NEWEST, PathBuf::new())]),
    };
    let profiles: Vec<Profile> = targets.iter().map(|name| Ok(Profile::named(name)?)).collect::<anyhow::Result<_>>()?;
    let given = args.file.as_deref().map(cases::read).transpose()?;
    let pairs = profiles.len() as u64 * libraries.len() as u64;
    let asked = args.cases.unwrap_or(own::usual_cases(args.engine));
    let cases = given.as_ref().map_or(asked, |list| list.len() as u64 * pairs);
    let started = Instant::now();
    let next = AtomicU64::new(args.first);
    let found = Mutex::new(FuzzResults::default());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.workers.max(1))
            .map(|_| {
                scope.spawn(|| {
                    let mut workers: BTreeMap<PathBuf, Worker> = BTreeMap::new();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= args.first + cases {
                            return anyhow::Ok(());
                        }
                        let case = draw(args, number, &profiles, &libraries, given.as_deref());
                        one(args, case, &mut workers, &found)?;
                        let n = number - args.first + 1;
                        if n.is_multiple_of(100) {
                            out::note(&format!("{n} of {}, {:.0} s", cases, started.elapsed().as_secs_f64()));
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().try_for_each(|t| t.join().expect("a thread of the fuzzing does not panic"))
    })?;
    let found = found.into_inner().expect("no thread of the fuzzing panicked");
    report(globals, args, cases, &found, started);
    Ok(if found.differences.is_empty() { Outcome::Good } else { Outcome::Bad })
}

/// The results of all cases.
#[derive(Default)]
struct FuzzResults {
    agreed: u64,
    supported: u64,
    refused: u64,
    /// Cases that did not go to the library, by the first reason code.
    not_asked: BTreeMap<String, u64>,
    /// How often each rule was confirmed.
    confirmed: BTreeMap<String, u64>,
    /// Differences by signature: the first one, and their number.
    differences: BTreeMap<String, (RuleDifference, u64)>,
}

fn draw(
    args: &FuzzRulesArgs,
    number: u64,
    profiles: &[Profile],
    libraries: &[(CudnnVersion, PathBuf)],
    given: Option<&[qkvault_graph::Valid]>,
) -> RuleCase {
    let pairs = profiles.len() as u64 * libraries.len() as u64;
    // Cycles through every pair of GPU and version, so that chance leaves out none.
    let (gpu, library) = ((number % pairs) as usize % profiles.len(), (number % pairs) as usize / profiles.len());
    let (version, folder) = &libraries[library];
    let set = if args.full { LibrarySet::Full } else { LibrarySet::Slim };
    RuleCase {
        number,
        attention: match given {
            Some(list) => list[(number / pairs) as usize].clone(),
            None if args.fp8 => eight_bits::attention(args.seed, number, args.deterministic),
            None if args.engine != CUDNN => own::attention(args.engine, args.seed, number),
            None => cases::attention(args.seed, number, args.deterministic),
        },
        options: if args.fp8 {
            eight_bits::options()
        } else {
            CompileOptions { engine: args.engine.policy(), ..CompileOptions::default() }
        },
        target: profiles[gpu].target(*version, set),
        profile: profiles[gpu].name.clone(),
        library: folder.clone(),
    }
}

fn one(
    args: &FuzzRulesArgs,
    case: RuleCase,
    workers: &mut BTreeMap<PathBuf, Worker>,
    found: &Mutex<FuzzResults>,
) -> anyhow::Result<()> {
    let lock = || found.lock().expect("no thread of the fuzzing panicked");
    match compare::judge(&case, workers)? {
        RuleVerdict::NotAsked(code) => *lock().not_asked.entry(code).or_default() += 1,
        RuleVerdict::Agreed { supported, codes } => {
            if args.file.is_some() {
                let what = if supported { "supported" } else { "refused" };
                out::note(&format!("{what}: {} under {} on {}", case.attention, case.target.cudnn, case.profile));
            }
            let mut found = lock();
            found.agreed += 1;
            *(if supported { &mut found.supported } else { &mut found.refused }) += 1;
            codes.into_iter().for_each(|code| *found.confirmed.entry(code).or_default() += 1);
        }
        RuleVerdict::Differed(difference) => {
            let signature = difference.signature();
            if args.file.is_some() {
                let place = format!("{} under {} on {}", case.attention, case.target.cudnn, case.profile);
                out::note(&format!("differs: {place}: {}", difference.signature()));
            }
            let known = lock().differences.get_mut(&signature).map(|(_, n)| *n += 1).is_some();
            if !known {
                lock().differences.insert(signature.clone(), (*difference.clone(), 1));
                out::note(&format!("case {}: {signature}", case.number));
                if !args.keep_size {
                    let smallest = shrink::smallest(&case, &difference, workers)?;
                    if let Some((first, _)) = lock().differences.get_mut(&signature) {
                        *first = smallest;
                    }
                }
            }
        }
    }
    Ok(())
}

/// The fetched libraries that the options select.
fn libraries(args: &FuzzRulesArgs) -> anyhow::Result<Vec<(CudnnVersion, PathBuf)>> {
    let root = cudnn_dir();
    let end = if args.full { "-full" } else { "-slim" };
    let mut list = Vec::new();
    for entry in root.read_dir().with_context(|| format!("{} has no fetched cuDNN", root.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(version) = name.strip_suffix(end).and_then(|v| v.parse::<CudnnVersion>().ok()) else { continue };
        let selected = args.versions.is_empty() || args.versions.contains(&version);
        if selected && path.join(MANIFEST).exists() {
            list.push((version, path));
        }
    }
    list.sort();
    anyhow::ensure!(
        !list.is_empty(),
        "no fetched cuDNN in {}; `cargo xtask fetch --cudnn 9.27` gets one",
        root.display()
    );
    Ok(list)
}

fn report(globals: &Globals, args: &FuzzRulesArgs, cases: u64, found: &FuzzResults, started: Instant) {
    let FuzzResults { agreed, supported, refused, not_asked, confirmed, differences } = found;
    let differed: u64 = differences.values().map(|(_, n)| n).sum();
    let seconds = started.elapsed().as_secs_f64();
    if globals.json {
        let disagreed: Vec<_> = differences
            .iter()
            .map(|(signature, (d, n))| {
                json!({
                    "signature": signature, "count": n, "case": d.case.number, "target": d.case.profile,
                    "cudnn": d.case.target.cudnn.to_string(), "rules": d.rules, "library": d.library,
                    "attention": text::print(&d.case.attention),
                })
            })
            .collect();
        out::json(&json!({
            "engine": args.engine.name().as_str(), "cases": cases, "seed": args.seed, "first": args.first, "agreed": agreed, "supported": supported,
            "refused": refused, "not_asked": not_asked, "confirmed": confirmed, "differed": differed,
            "disagreed": disagreed, "seconds": seconds,
        }));
        return;
    }
    for (signature, (d, n)) in differences {
        out::line(&format!("{n} x {signature}"));
        let by = match args.engine {
            CUDNN => format!("cuDNN {}", d.case.target.cudnn),
            engine => engine.name().to_string(),
        };
        out::line(&format!("case {} for {} under {by}", d.case.number, d.case.profile));
        out::line(&format!("rules: {}", d.rules.join("; ")));
        out::line(&format!("library: {}", d.library.join("; ")));
        out::lines(&text::print(&d.case.attention));
    }
    let left: u64 = not_asked.values().sum();
    out::line(&format!(
        "{} cases of seed {} in {seconds:.0} s: {agreed} agreed ({supported} supported, {refused} refused), {differed} differed, \
         {left} not asked",
        cases, args.seed
    ));
}
