//! What all parts stand on: options, the runtime on the GPU, what describes the machine, and the plans to compile.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use anyhow::Context as _;
use cudarc::driver::CudaStream;
use qkvault::Runtime;
use qkvault_cli::target::{LibraryArgs, TargetArgs};
use qkvault_cli::{Globals, Outcome, open_vault, out, policy, vault_options};
use qkvault_compile::{Compiler, Engines, OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::cudarc;
use qkvault_graph::{EnginePolicy, Valid};
use rayon::prelude::*;
use serde_json::{Value, json};

use super::peer::Peer;
use super::{kernels, launch, shapes};

/// Options of every part.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct GroundOptions {
    /// Folder for records, pages and plots
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub(super) out: PathBuf,
    /// Rounds; each times every competitor once, and every other round runs in reverse
    #[arg(long, value_name = "N", default_value_t = 11)]
    pub(super) rounds: usize,
    /// The Python that has PyTorch; without PyTorch the records have no peer
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub(super) python: PathBuf,
    /// Measure no peer
    #[arg(long)]
    pub(super) no_peer: bool,
    /// Compile plans that the vault lacks
    #[arg(long)]
    pub(super) build: bool,
    /// The GPU's number
    #[arg(long, default_value_t = 0)]
    pub(super) device: usize,
    #[command(flatten)]
    pub(super) library: LibraryArgs,
}

/// Options of `plan`.
#[derive(Debug, clap::Args)]
pub(super) struct PlanOptions {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    library: LibraryArgs,
    /// Whose plans: auto, cudnn, kernels or fa4; of the last two only that of the first output
    #[arg(long, value_name = "ENGINE", value_parser = policy, default_value = "auto")]
    engine: EnginePolicy,
}

/// The runtime that a part measures.
pub(super) struct Ground {
    pub(super) runtime: Runtime,
    pub(super) stream: Arc<CudaStream>,
}

impl GroundOptions {
    /// Opens the runtime.
    pub(super) fn open(&self, globals: &Globals) -> anyhow::Result<Ground> {
        self.open_with(globals, EnginePolicy::default())
    }

    /// The same for the plans of an engine.
    pub(super) fn open_with(&self, globals: &Globals, engine: EnginePolicy) -> anyhow::Result<Ground> {
        let compile = CompileOptions { engine, ..CompileOptions::default() };
        let options = Runtime::options().gpu(self.device).cudnn(self.library.search()?).build_missing(self.build);
        let options = options.compile(compile);
        let runtime = options.vault(vault_options(globals).memory(0, 0)).open()?;
        let stream = runtime.device()?.context().new_stream()?;
        Ok(Ground { runtime, stream })
    }

    /// PyTorch in a process of its own, or why there is none.
    pub(super) fn peer(&self) -> Result<Peer, String> {
        if self.no_peer {
            return Err("--no-peer".to_owned());
        }
        Peer::start(&self.python, self.device).map_err(|error| {
            let why = format!("{error:#}");
            out::note(&format!("no peer: {why}"));
            why
        })
    }

    /// Writes the record of a part.
    pub(super) fn write(&self, part: &str, record: &Value) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.out).with_context(|| format!("{} cannot be made", self.out.display()))?;
        let path = self.out.join(format!("{part}.record.json"));
        std::fs::write(&path, format!("{record:#}\n")).with_context(|| format!("{} cannot be written", path.display()))
    }
}

impl Ground {
    /// The machine, as records have it.
    pub(super) fn machine(&self) -> anyhow::Result<Value> {
        let session = self.runtime.session()?;
        Ok(json!({
            "device": self.runtime.device()?.name(), "target": self.runtime.target()?.label(),
            "driver": session.gpu().driver, "cudnn": session.library()?.version().to_string(),
            "cudnn_set": session.library()?.set().to_string(), "qkvault": env!("CARGO_PKG_VERSION"),
            "cpus": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            "clocks": clocks(),
        }))
    }

    /// Plans that were built since the runtime was opened.
    pub(super) fn builds(&self) -> u64 {
        self.runtime.planner().vault().stats().builds
    }
}

/// Clocks, temperature and power of the GPU now, as nvidia-smi prints them; `None` without it.
pub(super) fn clocks() -> Option<String> {
    let fields = "clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_event_reasons.active";
    let asked = Command::new("nvidia-smi").args([&format!("--query-gpu={fields}"), "--format=csv,noheader"]).output();
    let found = asked.ok().filter(|found| found.status.success())?;
    Some(String::from_utf8_lossy(&found.stdout).lines().next()?.trim().to_owned())
}

/// Every attention that the parts launch.
fn attentions() -> anyhow::Result<Vec<Valid>> {
    let mut all = kernels::attentions()?;
    all.push(launch::attention()?);
    all.extend(shapes::all()?);
    Ok(all)
}

/// Compiles the plans of all parts into the vault.
pub(super) fn plan(globals: &Globals, options: &PlanOptions) -> anyhow::Result<Outcome> {
    let compiler = Compiler::open_compile_only(&options.library.search()?)?;
    let target = options.target.target(&compiler)?;
    let planner = Planner::new(open_vault(globals)?, Some(compiler));
    let own = !Engines::built_in().need_target(options.engine);
    let attentions = if own { vec![shapes::FIRST.attention()?] } else { attentions()? };
    let compile = CompileOptions { engine: options.engine, ..CompileOptions::default() };
    let refused: Vec<String> = attentions
        .par_iter()
        .filter_map(|attention| match planner.plan(attention, &target, &compile, OnMiss::Compile) {
            Ok(answer) => answer.outcome.err().map(|refusal| format!("{attention}: {refusal}")),
            Err(error) => Some(format!("{attention}: {error}")),
        })
        .collect();
    refused.iter().for_each(|why| out::problem(why));
    let stats = planner.vault().stats();
    out::line(&format!("{} attentions for {target}: {} built, {} not", attentions.len(), stats.builds, refused.len()));
    Ok(if refused.is_empty() { Outcome::Good } else { Outcome::Bad })
}
