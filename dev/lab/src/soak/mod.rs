//! `soak`: threads launch on many streams for minutes, with loads and evictions of plans beside the launches; every
//! result is checked, and memory is watched.

mod checked;
mod graph;
mod lanes;
mod operands;
mod watch;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cudarc::driver::CudaStream;
use qkvault::Runtime;
use qkvault_cli::target::LibraryArgs;
use qkvault_cli::{Globals, Outcome, out, vault_options};
use qkvault_exec::cudarc;
use serde_json::{Value, json};

use lanes::{Lane, LaneKind};
use watch::MemorySample;

/// Options of `soak`.
#[derive(Debug, clap::Args)]
pub struct SoakArgs {
    #[command(flatten)]
    library: LibraryArgs,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Streams, which all threads share; each thread has data of its own on each
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
    /// How long to launch
    #[arg(long, value_name = "MINUTES", default_value_t = 10.0)]
    minutes: f64,
    /// Plans that stay loaded: fewer than there are, so that they are loaded and evicted all the time
    #[arg(long, value_name = "N", default_value_t = 4)]
    keep: usize,
    /// Most megabytes by which memory of the GPU, or resident memory, may grow after the first quarter of the time
    #[arg(long, value_name = "MB", default_value_t = 64)]
    growth: u32,
    /// Build the plans that the vault lacks
    #[arg(long)]
    build: bool,
    /// Also write the record to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// The GPU's number
    #[arg(long, default_value_t = 0)]
    device: usize,
}

/// What the threads share.
struct Soak {
    runtime: Runtime,
    streams: Vec<Arc<CudaStream>>,
    /// Plans of all lanes.
    plans: usize,
    stop: AtomicBool,
    gate: Barrier,
    failures: Mutex<Vec<String>>,
}

/// Turns of each kind.
type LaneTurns = BTreeMap<LaneKind, u64>;

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &SoakArgs) -> anyhow::Result<Outcome> {
    let minutes = args.minutes.clamp(0.0, 10_000.0);
    let runtime = Runtime::options().gpu(args.device).cudnn(args.library.search()?).vault(vault_options(globals));
    let runtime = runtime.build_missing(args.build).handles(args.threads as usize).keep(args.keep, 1 << 30).open()?;
    let started = Instant::now();
    let attentions = LaneKind::ALL.iter().map(|kind| kind.attentions()).collect::<anyhow::Result<Vec<_>>>()?.concat();
    for attention in &attentions {
        runtime.plan(attention).with_context(|| format!("{attention} (with --build it is built here)"))?;
    }
    let context = runtime.device()?.context();
    let streams = (0..args.streams).map(|_| context.new_stream()).collect::<Result<_, _>>()?;
    let gate = Barrier::new(args.threads as usize + 1);
    let plans = attentions.len();
    let soak = Soak { runtime, streams, plans, stop: AtomicBool::new(false), gate, failures: Mutex::default() };
    let (samples, turns) = soak.launch(args.threads, Duration::from_secs_f64(minutes * 60.0));
    let record = soak.record(args, started.elapsed(), &samples, &turns);
    if let Some(path) = &args.record {
        std::fs::write(path, format!("{record:#}\n")).with_context(|| path.display().to_string())?;
    }
    if globals.json {
        out::json(&record);
    } else {
        out::lines(&format!("{record:#}"));
    }
    let passed = record["passed"] == json!(true);
    Ok(if passed { Outcome::Good } else { Outcome::Bad })
}

impl Soak {
    /// Starts the threads, waits until the time is over or something fails, and gives memory over time and turns.
    fn launch(&self, threads: u32, time: Duration) -> (Vec<MemorySample>, LaneTurns) {
        std::thread::scope(|scope| {
            let started: Vec<_> = (0..threads).map(|thread| scope.spawn(move || self.thread(thread))).collect();
            self.gate.wait();
            let samples = self.watch(time);
            self.stop.store(true, Ordering::Relaxed);
            let mut all = LaneTurns::new();
            for thread in started {
                match thread.join() {
                    Ok(turns) => turns.into_iter().for_each(|(kind, count)| *all.entry(kind).or_default() += count),
                    Err(_) => self.fail("a thread panicked; its message is above".to_owned()),
                }
            }
            (samples, all)
        })
    }

    /// Samples memory until the time is over, and unloads unused plans now and then.
    fn watch(&self, time: Duration) -> Vec<MemorySample> {
        let (started, each) = (Instant::now(), (time / 400).max(Duration::from_millis(50)));
        let mut samples = Vec::new();
        while started.elapsed() < time && !self.stop.load(Ordering::Relaxed) {
            std::thread::sleep(each);
            match self.session().device().memory() {
                Ok(memory) => {
                    let (device, resident) = (memory.total - memory.free, watch::resident());
                    samples.push(MemorySample { at: started.elapsed(), device, resident });
                }
                Err(error) => self.fail(error.to_string()),
            }
            if samples.len() % 20 == 19 {
                self.runtime.unload_unused();
                let minutes = started.elapsed().as_secs_f64() / 60.0;
                out::note(&format!("{minutes:.1} minutes, {} loads", self.session().stats().loads));
            }
        }
        samples
    }

    fn session(&self) -> &qkvault::exec::Session {
        self.runtime.session().expect("a soak runs on a GPU")
    }

    /// One thread: a lane on each stream, which take turns until it is over.
    fn thread(&self, thread: u32) -> LaneTurns {
        let lanes = std::panic::catch_unwind(AssertUnwindSafe(|| self.lanes(thread)));
        // Also after a failure: the others wait.
        self.gate.wait();
        let lanes = lanes.unwrap_or_else(|_| Err(anyhow::anyhow!("a lane panicked; its message is above")));
        let mut turns = LaneTurns::new();
        let mut lanes = lanes.unwrap_or_else(|error| {
            self.fail(format!("{error:#}"));
            Vec::new()
        });
        while !self.stop.load(Ordering::Relaxed) && !lanes.is_empty() {
            for (at, (kind, lane)) in lanes.iter_mut().enumerate() {
                if let Err(error) = lane.turn(&self.runtime) {
                    let (before, loads) = (turns.values().sum::<u64>(), self.session().stats().loads);
                    let place = format!("thread {thread}, stream {at}, after {before} launches of the thread");
                    self.fail(format!("{place} and {loads} loads: {error:#}"));
                    return turns;
                }
                *turns.entry(*kind).or_default() += 1;
            }
        }
        turns
    }

    fn lanes(&self, thread: u32) -> anyhow::Result<Vec<(LaneKind, Box<dyn Lane>)>> {
        let lane = |(at, stream): (usize, &Arc<CudaStream>)| {
            // Every kind comes to every stream.
            let kind = LaneKind::ALL[(thread as usize + at) % LaneKind::ALL.len()];
            let seed = u64::from(thread) * 1000 + at as u64;
            Ok((kind, kind.lane(&self.runtime, stream, seed)?))
        };
        self.streams.iter().enumerate().map(lane).collect()
    }

    fn fail(&self, what: String) {
        out::problem(&what);
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(what);
        self.stop.store(true, Ordering::Relaxed);
    }

    fn record(&self, args: &SoakArgs, took: Duration, samples: &[MemorySample], turns: &LaneTurns) -> Value {
        let limit = u64::from(args.growth) * 1_000_000;
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let memory = watch::record(samples, limit);
        let passed = failures.is_empty() && memory["flat"] != json!(false);
        let (session, target) = (self.session().stats(), self.runtime.target().ok());
        let kinds: BTreeMap<&str, u64> = turns.iter().map(|(kind, count)| (kind.name(), *count)).collect();
        json!({
            "passed": passed, "device": self.session().device().name(), "cudnn": target.map(|target| target.cudnn.to_string()),
            "target": target.map(qkvault_cudnn::Target::label), "threads": args.threads, "streams": args.streams, "minutes": args.minutes,
            "seconds": took.as_secs_f64().round(), "plans": self.plans, "keep": args.keep, "loads": session.loads,
            "load_failures": session.load_failures, "handles": session.handles,
            "checked": turns.values().sum::<u64>(), "checked_by_kind": kinds, "failures": failures, "memory": memory,
        })
    }
}
