//! `bench engines`: the times of cuDNN, of qkvault's kernels and of FlashAttention-4's for the same attentions, in
//! turns, in captured graphs, with PyTorch's attention beside them. It writes the record of the results, and the table
//! by which an engine is chosen.

mod anew;
mod before;
mod cases;
mod dense;
mod features;
mod models;
mod peers;
mod request;
mod rows;
mod thin;
mod tilings;
mod tuned;
mod varlen;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use cudarc::driver::CudaStream;
use qkvault_cli::target::{LibraryArgs, TargetArgs};
use qkvault_cli::turns::in_turns;
use qkvault_cli::{Globals, Outcome, open_vault, out};
use qkvault_compile::times::{Table, Times};
use qkvault_compile::{CUDNN, Compiler, EngineId, FA4, KERNELS, OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::{Device, Session, cudarc};
use qkvault_graph::EnginePolicy;
use rayon::prelude::*;

use cases::EngineCase;
pub(super) use cases::{LLAMA, paged};
use peers::{Beside, Peers};
use rows::MeasuredCase;

/// Options of `bench engines`.
#[derive(Debug, clap::Args)]
pub(super) struct EnginesArgs {
    #[command(flatten)]
    library: LibraryArgs,
    /// The record of the results
    #[arg(long, value_name = "FILE", default_value = "engines.json")]
    out: PathBuf,
    /// Also write the table by which an engine is chosen (crates/compile/data/engines.json)
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Keep the rows of both files that this run does not measure again
    #[arg(long)]
    keep: bool,
    /// A Python with PyTorch, and perhaps FlashInfer and FlashAttention-4, whose attention takes turns with ours
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
    /// Only compile, in parallel, what the libraries of that Python compile at first use (FlashInfer, FlashAttention-4,
    /// FlexAttention), into their caches
    #[arg(long, requires = "python", conflicts_with = "tilings")]
    warm_peers: bool,
    /// Only cases whose name has one of these words
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    only: Vec<String>,
    /// Beside the cases, or the attentions of `--only` among them: every attention of models, in each phase, without
    /// peers. A config.json or a folder of them; may be given several times
    #[arg(long, value_name = "FILE|DIR")]
    models: Vec<PathBuf>,
    /// Begin no further case after so many seconds
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Rounds; each times every engine once, and every other round begins with the last one
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Measure other divisions of the kernels' work beside the usual one, and nothing else; --out gets their times
    #[arg(long, conflicts_with_all = ["table", "keep", "python"])]
    tilings: bool,
    /// Measure nothing: write the table, and what it chooses in the record, anew from the times in the record
    #[arg(long, requires = "table", conflicts_with_all = ["keep", "python", "plan", "tilings"])]
    anew: bool,
    /// With --anew: a record from before, whose times of peers stay where this one could not ask them
    #[arg(long, value_name = "FILE", requires = "anew")]
    before: Option<PathBuf>,
    /// With --anew: what `qkvault warm --autotune --json` printed, whose times of models are taken into the record; may
    /// be given several times
    #[arg(long, value_name = "FILE", requires = "anew")]
    tuned: Vec<PathBuf>,
    /// Only print the cases
    #[arg(long)]
    show: bool,
    /// Only compile the plans for --target, which need not be present
    #[arg(long)]
    plan: bool,
    /// With --plan: only the plans of one engine
    #[arg(long, value_name = "ENGINE", requires = "plan", value_parser = qkvault_cli::policy)]
    engine: Option<EnginePolicy>,
    /// Compile plans that the vault lacks
    #[arg(long)]
    build: bool,
    #[command(flatten)]
    target: TargetArgs,
    /// The GPU's number
    #[arg(long, default_value_t = 0)]
    device: usize,
}

/// The engines that are measured.
const ENGINES: [EngineId; 3] = [CUDNN, KERNELS, FA4];

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &EnginesArgs) -> anyhow::Result<Outcome> {
    let wanted = |case: &EngineCase| args.only.is_empty() || args.only.iter().any(|words| case.name.contains(words));
    let all = || anyhow::Ok(cases::list()?.into_iter().chain(models::list(&args.models)?));
    if let Some(table) = args.table.as_deref().filter(|_| args.anew) {
        anew::run(&args.out, table, (args.before.as_deref(), &args.tuned), all()?.collect())?;
        return Ok(Outcome::Good);
    }
    let list: Vec<EngineCase> = all()?.filter(wanted).collect();
    if args.show {
        let line =
            |case: &EngineCase| out::line(&format!("{}, {}: {}", case.name, case.direction().name(), case.attention));
        list.iter().for_each(line);
        return Ok(Outcome::Good);
    }
    if args.plan {
        return plan(globals, args, &list);
    }
    if let Some(python) = args.python.as_deref().filter(|_| args.warm_peers) {
        return peers::warm(python, args.device, &list);
    }
    let mut peers = Peers::default();
    let search = args.library.search()?;
    let device = Device::open(args.device)?;
    let session = Session::open(&device, &search)?;
    let vault = open_vault(globals)?;
    let planner = if args.build { Planner::opening(vault, search) } else { Planner::new(vault, None) };
    let stream = device.context().new_stream()?;
    let mut beside = args.python.as_deref().map(|python| Beside::start(python, args.device)).transpose()?;
    let of = beside.as_ref().map_or_else(String::new, |beside| format!(", beside {}", beside.machine()));
    let machine = format!(
        "{}, driver of CUDA {}, cuDNN {}, FlashAttention-4 {}, captured graphs that take turns, medians of {} rounds{of}",
        device.name(),
        session.gpu().driver,
        session.library()?.version(),
        qkvault_fa4::TOOLCHAIN.flash_attn,
        args.rounds
    );
    if args.tilings {
        let turn = Turn { args, session: &session, planner: &planner, stream: &stream };
        return tilings::run(&turn, &machine, &list);
    }
    let mut written = RunFiles::open(args, device.name(), machine)?;
    let mut measured = Vec::new();
    let (started, count) = (Instant::now(), list.len());
    for (at, case) in list.into_iter().enumerate() {
        if args.seconds.is_some_and(|most| started.elapsed().as_secs() >= most) {
            out::problem(&format!("{} of {count} cases are left out: the time is over", count - at));
            break;
        }
        let turn = Turn { args, session: &session, planner: &planner, stream: &stream };
        match turn.measure(&case, beside.as_mut(), &mut peers) {
            Ok(row) => {
                out::note(&row.to_string());
                measured.push(row);
            }
            // Other cases are worth their time.
            Err(error) => {
                out::problem(&format!("{}, {}: {error:#}", case.name, case.direction().name()));
                device.context().synchronize().context("the GPU stopped; what was measured before is kept")?;
            }
        }
        written.write(args, &measured, &peers)?;
    }
    // Rows of models that the others foretell go.
    if let Some(table) = &args.table {
        anew::run(&args.out, table, (None, &[]), all()?.collect()).context("the table has every row")?;
    }
    Ok(if measured.is_empty() { Outcome::Bad } else { Outcome::Good })
}

/// Compiles the plans of all engines. What an engine does not take or what cannot be compiled is told.
fn plan(globals: &Globals, args: &EnginesArgs, list: &[EngineCase]) -> anyhow::Result<Outcome> {
    let compiler = Compiler::open_compile_only(&args.library.search()?)?;
    let target = args.target.target(&compiler)?;
    let planner = Planner::new(open_vault(globals)?, Some(compiler));
    if args.tilings {
        return Ok(if tilings::plan(&planner, list) { Outcome::Bad } else { Outcome::Good });
    }
    let wanted = |engine: &EngineId| args.engine.is_none_or(|only| only == engine.policy());
    let of = |case| ENGINES.into_par_iter().filter(wanted).map(move |engine| (case, engine));
    let failed = list.par_iter().flat_map(of).filter(|(case, engine)| {
        let options = CompileOptions { engine: engine.policy(), ..CompileOptions::default() };
        let what = format!("{}, {}, {}", case.name, case.direction().name(), engine.name());
        match planner.plan(&case.attention, &target, &options, OnMiss::Compile) {
            Ok(answer) => {
                let told =
                    answer.outcome.map_or_else(|refusal| refusal.to_string(), |_| format!("{:?}", answer.source));
                out::note(&format!("{what}: {told}"));
                false
            }
            Err(error) => {
                out::problem(&format!("{what}: {error}"));
                true
            }
        }
    });
    Ok(if failed.count() == 0 { Outcome::Good } else { Outcome::Bad })
}

/// The files of a run, with the rows of earlier ones.
struct RunFiles {
    gpu: String,
    machine: String,
    record: Vec<serde_json::Value>,
    table: Option<Table>,
}

impl RunFiles {
    fn open(args: &EnginesArgs, gpu: &str, machine: String) -> anyhow::Result<RunFiles> {
        let read = |file: &Path| match std::fs::read_to_string(file) {
            Ok(text) if args.keep => Some(text),
            _ => None,
        };
        let what = |file: &Path| format!("{} is not what this command writes", file.display());
        let record = match read(&args.out) {
            None => Vec::new(),
            Some(text) => rows::record_rows(&text).with_context(|| what(&args.out))?,
        };
        let table = args.table.as_deref().and_then(|file| Some((file, read(file)?)));
        let table = table.map(|(file, text)| serde_json::from_str(&text).with_context(|| what(file))).transpose()?;
        Ok(RunFiles { gpu: gpu.to_owned(), machine, record, table })
    }

    fn write(&mut self, args: &EnginesArgs, measured: &[MeasuredCase], peers: &Peers) -> anyhow::Result<()> {
        let table = rows::table((&self.gpu, &self.machine), measured, self.table.as_ref());
        let mut record = rows::record(&self.machine, measured, peers, &table, &self.record);
        before::keep_peers(&mut record, &self.record);
        write(&args.out, &rows::record_text(&record)?)?;
        match &args.table {
            Some(file) => write(file, &rows::text(&table)?),
            None => Ok(()),
        }
    }
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("{} cannot be written", file.display()))
}

/// What one case is measured with.
struct Turn<'a> {
    args: &'a EnginesArgs,
    session: &'a Session,
    planner: &'a Planner,
    stream: &'a Arc<CudaStream>,
}

impl Turn<'_> {
    /// The times of all engines, as far as they take the case, and those of peers.
    fn measure(
        &self,
        case: &EngineCase,
        beside: Option<&mut Beside>,
        peers: &mut Peers,
    ) -> anyhow::Result<MeasuredCase> {
        let Turn { args, session, planner, stream } = self;
        let (mut refused, mut plans, mut engines) = (Vec::new(), Vec::new(), Vec::new());
        let on_miss = if args.build { OnMiss::Compile } else { OnMiss::Load };
        for engine in ENGINES {
            let options = CompileOptions { engine: engine.policy(), ..CompileOptions::default() };
            if engine == CUDNN && models::padding_ms(&case.attention) > models::LONG_MS {
                refused.push(format!("{}: not timed, it computes the padding of {}", engine.title(), case.attention));
                continue;
            }
            match session.prepare(planner, &case.attention, &options, on_miss) {
                Ok(prepared) => {
                    plans.push(prepared.plan);
                    engines.push(engine);
                }
                Err(error) => refused.push(format!("{}: {error}", engine.title())),
            }
        }
        anyhow::ensure!(!plans.is_empty(), "no engine takes it: {}", refused.join("; "));
        let beside = beside.filter(|_| case.has_peers());
        let mut turns = beside.map(|beside| beside.case(&case.attention)).transpose()?;
        let list = in_turns(stream, &case.attention, &plans, args.rounds, |round| match &mut turns {
            Some(turns) => turns.round(round),
            None => Ok(()),
        })?;
        if let Some(turns) = turns {
            peers.add(&case.name, case.direction(), turns.medians());
        }
        let mut times = Times::default();
        engines.iter().zip(list).for_each(|(engine, us)| times.set(*engine, us));
        let (name, attention) = (case.name.clone(), case.attention.clone());
        Ok(MeasuredCase { name, attention, times, refused })
    }
}
