//! `bench-serving`: measures serving steps on this machine's GPU.

mod decode;
mod padding;
mod pool;
mod prefill;
mod steps;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUevent_flags;
use qkvault_compile::{Compiler, OnMiss, Planner};
use qkvault_exec::{Bound, Device, Session, cudarc};
use qkvault_graph::{CompileOptions, DType, Form, Target};
use qkvault_sys::Library;
use rayon::prelude::*;
use serde_json::{Value, json};

use qkvault_cli::memory::Recorded;
use qkvault_cli::target::LibraryArgs;
use qkvault_cli::{Globals, Outcome, open_vault, out, word};

/// The measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum What {
    /// One new token per sequence: bandwidth of reading keys and values, as a share of copy bandwidth
    Decode,
    /// The cost of plans that are larger than the step
    Padding,
    /// Prompt chunks over a long context
    Prefill,
    /// Thousands of random steps: number of builds, and host time
    Steps,
}

/// Options of `bench-serving`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to measure (default: all)
    #[arg(value_enum)]
    what: Vec<What>,
    #[command(flatten)]
    library: LibraryArgs,
    /// Form of the op graphs: auto, expanded, fused, unified
    #[arg(long, value_name = "FORM", default_value = "auto", value_parser = word::<Form>)]
    form: Form,
    /// Rounds of each measurement; the report has medians
    #[arg(long, value_name = "N", default_value_t = 7)]
    rounds: usize,
    /// Random steps
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    steps: usize,
    /// Start no new measurement after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    limit: u64,
    /// Seed of the random steps
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Pages in the pool, each with 64 tokens of 8 heads of head dim 128; measurements that do not fit are left out
    #[arg(long, value_name = "N", default_value_t = 140_000)]
    pages: usize,
    /// Also write the record to this file, after each measurement
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// The GPU's number
    #[arg(long, default_value_t = 0)]
    device: usize,
}

/// Query heads and KV heads of all measurements. These sizes are those of Llama-3.1-8B.
const HEADS: (i64, i64) = (32, 8);
const HEAD_DIM: i64 = 128;
const PAGE: i64 = 64;
const DTYPE: DType = DType::BF16;
const SCALE: f32 = 0.088_388_35;

/// The state that all measurements share.
struct Bench<'a> {
    args: &'a Args,
    session: Session,
    planner: Planner,
    target: Target,
    stream: Arc<CudaStream>,
    options: CompileOptions,
    started: Instant,
    /// Bytes that a copy on the device reads and writes per second.
    copy: f64,
    record: Value,
}

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &Args) -> anyhow::Result<Outcome> {
    let search = args.library.search()?;
    let device = Device::open(args.device)?;
    let library = Library::open(&search)?;
    let session = Session::open(&device, &library)?;
    let target = session.target()?.clone();
    let planner = Planner::new(open_vault(globals)?, Some(Compiler::open(&search)?));
    let stream = device.context().new_stream()?;
    let copy = copy_bandwidth(&stream)?;
    out::note(&format!("copy bandwidth {:.2} TB/s", copy / 1e12));
    let record = json!({
        "device": device.name(), "cudnn": library.version().to_string(), "target": target.label(), "form": args.form, "seed": args.seed,
        "heads": [HEADS.0, HEADS.1], "head_dim": HEAD_DIM, "page_size": PAGE, "copy_tb_per_s": copy / 1e12,
    });
    let options = CompileOptions { lab: qkvault_graph::LabOptions::form(args.form), ..CompileOptions::default() };
    let mut bench = Bench { args, session, planner, target, stream, options, started: Instant::now(), copy, record };
    let all = [What::Decode, What::Padding, What::Prefill, What::Steps];
    let pool = pool::Pool::new(&bench.stream, args.pages)?;
    let chosen = if args.what.is_empty() { &all[..] } else { &args.what };
    bench.warm(&pool, chosen)?;
    for what in chosen {
        match what {
            What::Decode => decode::run(&mut bench, &pool)?,
            What::Padding => padding::run(&mut bench, &pool)?,
            What::Prefill => prefill::run(&mut bench, &pool)?,
            What::Steps => steps::run(&mut bench, &pool)?,
        }
    }
    bench.record["seconds"] = json!(bench.started.elapsed().as_secs_f64());
    bench.save();
    if globals.json {
        out::json(&bench.record);
    } else {
        out::lines(&format!("{:#}", bench.record));
    }
    Ok(Outcome::Good)
}

impl Bench<'_> {
    /// Adds a row to a list of the record, prints it, and saves the record.
    fn row(&mut self, list: &str, row: Value) {
        out::note(&format!("{list} {row}"));
        if !self.record[list].is_array() {
            self.record[list] = json!([]);
        }
        if let Some(rows) = self.record[list].as_array_mut() {
            rows.push(row);
        }
        self.save();
    }

    fn save(&self) {
        if let Some(path) = &self.args.record
            && let Err(error) = std::fs::write(path, format!("{:#}\n", self.record))
        {
            out::problem(&format!("{} could not be written: {error}", path.display()));
        }
    }

    /// Builds all missing plans of the chosen measurements, on all cores.
    fn warm(&mut self, pool: &pool::Pool, chosen: &[What]) -> anyhow::Result<()> {
        let started = Instant::now();
        let mut buckets = Vec::new();
        for what in chosen {
            buckets.extend(match what {
                What::Decode => decode::buckets(),
                What::Padding => padding::buckets(),
                What::Prefill => prefill::buckets(),
                What::Steps => steps::buckets(pool.order.len())?,
            });
        }
        let (planner, target, layer) = (&self.planner, &self.target, pool.layer());
        buckets.into_par_iter().try_for_each(|bucket| -> anyhow::Result<()> {
            planner.plan(&layer.attention(&bucket)?, target, &self.options, OnMiss::Compile)?;
            Ok(())
        })?;
        let builds = planner.vault().stats().builds;
        let seconds = started.elapsed().as_secs_f64();
        out::note(&format!("{builds} plans built in {seconds:.1} s"));
        self.record["warm"] = json!({ "builds": builds, "seconds": seconds });
        Ok(())
    }

    /// Whether the time limit has passed.
    fn over(&self) -> bool {
        self.started.elapsed().as_secs() >= self.args.limit
    }

    /// Median device time of one call of `launch`, in microseconds. Each round has enough calls for about 2 ms.
    fn time(&self, mut launch: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
        let once = self.round(3, &mut launch)?;
        let calls = ((2000.0 / once) as usize).clamp(5, 200);
        let mut times = Vec::new();
        for _ in 0..self.args.rounds.max(1) {
            times.push(self.round(calls, &mut launch)?);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    /// Median device time of one launch, in microseconds, with `calls` launches of the plans in turn recorded as one
    /// CUDA graph, so that the host's time does not count.
    fn time_recorded(&self, bound: &mut [Bound<'_>], calls: usize) -> anyhow::Result<f64> {
        let mut graph = Recorded::new(bound, &self.stream, calls)?;
        let mut replay = || graph.launch();
        self.round(1, &mut replay)?;
        let mut times =
            (0..self.args.rounds.max(1)).map(|_| self.round(1, &mut replay)).collect::<anyhow::Result<Vec<_>>>()?;
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2] / calls as f64)
    }

    fn round(&self, calls: usize, launch: &mut impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
        let event = || self.stream.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let (start, end) = (event()?, event()?);
        start.record(&self.stream)?;
        for _ in 0..calls {
            launch()?;
        }
        end.record(&self.stream)?;
        end.synchronize()?;
        Ok(f64::from(start.elapsed_ms(&end)?) * 1e3 / calls as f64)
    }
}

/// Bytes that a device copy of one GiB reads and writes per second.
fn copy_bandwidth(stream: &Arc<CudaStream>) -> anyhow::Result<f64> {
    const BYTES: usize = 1 << 30;
    let from = stream.alloc_zeros::<u8>(BYTES)?;
    let mut to = stream.alloc_zeros::<u8>(BYTES)?;
    let event = || stream.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
    let mut best = 0.0_f64;
    for _ in 0..5 {
        let (start, end) = (event()?, event()?);
        start.record(stream)?;
        for _ in 0..4 {
            stream.memcpy_dtod(&from, &mut to)?;
        }
        end.record(stream)?;
        end.synchronize()?;
        best = best.max(4.0 * 2.0 * BYTES as f64 / (f64::from(start.elapsed_ms(&end)?) / 1e3));
    }
    Ok(best)
}
