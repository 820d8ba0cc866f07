//! `selftest --kills`: ranks are processes that compute together over NCCL; one is killed at a random moment, and every
//! other one must end with an error that names it before the deadline.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use qkvault_base::random::Rng;
use qkvault_cli::{Globals, Outcome, open_vault, out};
use qkvault_compile::{OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::{Device, Session};
use qkvault_graph::{Attention, DType};
use qkvault_parallel::{GpuRank, Nccl, RunError, Scheme, Secret, SessionPlans, Sharding, Store, World, schedule};
use serde_json::{Value, json};

use super::SelftestArgs;

/// How long a rank waits for another one.
const DEADLINE: Duration = Duration::from_secs(5);

/// How long processes take to start and to join.
const START: Duration = Duration::from_secs(120);

/// What a rank prints when its first run has ended.
const RUNNING: &str = "running";

/// One rank: it computes until another one is lost.
pub(super) fn rank(globals: &Globals, args: &SelftestArgs) -> anyhow::Result<Outcome> {
    let world = World::from_env()?;
    let search = args.library.search()?;
    let session = Session::open(&Device::open(args.device + world.local_rank as usize)?, &search)?;
    let (planner, options) = (Planner::opening(open_vault(globals)?, search), CompileOptions::default());
    let plans = SessionPlans { session: &session, planner: &planner, options: &options, on_miss: OnMiss::Compile };
    let context = session.device().context();
    context.bind_to_thread()?;
    let attention = Attention::bshd(1, (32, 8), (16_384, 16_384), 128, DType::BF16).causal().with_stats().validate()?;
    let made = schedule(&attention, &Sharding::new(world.size, Scheme::Ring))?;
    let mut ranks = Nccl::join(Store::meet(&world, START)?, None)?;
    let mut on_gpu = GpuRank::prepare(&made, &mut ranks, &plans, context)?;
    on_gpu.allocate()?;
    let stream = context.new_stream()?;
    let mut told = false;
    let error: RunError = loop {
        let ran = on_gpu.run(&mut ranks, &stream).and_then(|()| on_gpu.wait(&mut ranks, &stream, DEADLINE));
        if let Err(error) = ran {
            break error;
        }
        if !told {
            out::line(RUNNING);
            told = true;
        }
    };
    let named = if let RunError::Ranks(error) = &error { error.rank() } else { None };
    out::line(&json!({ "named": named, "error": error.to_string() }).to_string());
    Ok(Outcome::Bad)
}

/// A process with the lines that it prints.
struct Process(Child, Receiver<String>);

impl Process {
    fn start(rank: u32, ranks: u32, port: u16, secret: &Secret) -> anyhow::Result<Process> {
        let mut words: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
        words.push("--as-rank".into());
        let mut command = Command::new(std::env::current_exe()?);
        secret.give_to(&mut command);
        let mut child = command
            .args(words)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", ranks.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("QKVAULT_PORT", port.to_string())
            .env("MASTER_PORT", port.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .context("this program could not start itself")?;
        let (sender, lines) = channel();
        let printed = BufReader::new(child.stdout.take().context("no output")?);
        std::thread::spawn(move || printed.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Ok(Process(child, lines))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended, or is of no more use.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills one rank once; what is wrong with the others, and the seconds until the last of them had ended.
fn once(ranks: u32, rng: &mut Rng) -> anyhow::Result<(Vec<String>, f64)> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let secret = Secret::random()?;
    let start = |rank| Process::start(rank, ranks, port, &secret);
    let mut list = (0..ranks).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    for (rank, Process(_, lines)) in list.iter().enumerate() {
        let line = lines.recv_timeout(START).with_context(|| format!("rank {rank} does not begin"))?;
        anyhow::ensure!(line == RUNNING, "rank {rank} ends before a run: {line}");
    }
    let victim = rng.within(0, ranks as usize - 1);
    std::thread::sleep(Duration::from_micros(rng.within(0, 300_000) as u64));
    list[victim].0.kill()?;
    let begin = Instant::now();
    let mut wrong = Vec::new();
    for (rank, Process(_, lines)) in list.iter().enumerate().filter(|(rank, _)| *rank != victim) {
        match lines.recv_timeout(DEADLINE * 3) {
            Ok(line) => {
                let told: Value = serde_json::from_str(&line).unwrap_or_default();
                if told["named"] != json!(victim) {
                    wrong.push(format!("rank {rank} names another one than {victim}: {line}"));
                }
            }
            Err(error) => wrong.push(format!("rank {rank} has said nothing {:?} after a kill: {error}", DEADLINE * 3)),
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    if seconds > DEADLINE.as_secs_f64() + 1.0 {
        wrong.push(format!("it took {seconds:.1} s, and the deadline is {DEADLINE:?}"));
    }
    Ok((wrong, seconds))
}

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &SelftestArgs, ranks: u32, kills: u32) -> anyhow::Result<Outcome> {
    anyhow::ensure!(ranks >= 2 && !args.one_gpu, "kills need at least two ranks, each on a GPU: NCCL joins no others");
    let next = AtomicU32::new(0);
    let (worst, wrong) = std::thread::scope(|scope| {
        let one = || -> anyhow::Result<(f64, Vec<String>)> {
            let (mut worst, mut wrong) = (0.0_f64, Vec::new());
            loop {
                let kill = next.fetch_add(1, Ordering::Relaxed);
                if kill >= kills {
                    return Ok((worst, wrong));
                }
                let mut rng = Rng::new(args.seed.wrapping_mul(1_000_003).wrapping_add(kill.into()));
                let (found, seconds) = once(ranks, &mut rng).with_context(|| format!("kill {kill}"))?;
                worst = worst.max(seconds);
                found.iter().for_each(|line| out::note(&format!("kill {kill}: {line}")));
                wrong.extend(found);
            }
        };
        let threads: Vec<_> = (0..args.at_once.min(kills)).map(|_| scope.spawn(one)).collect();
        let join = |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
        threads.into_iter().map(join).try_fold((0.0_f64, Vec::new()), |(worst, mut wrong), found| {
            let (seconds, of_one) = found?;
            wrong.extend(of_one);
            anyhow::Ok((worst.max(seconds), wrong))
        })
    })?;
    let record = json!({
        "ranks": ranks, "kills": kills, "wrong": wrong, "worst_seconds": worst, "deadline_seconds": DEADLINE.as_secs(),
    });
    if let Some(path) = &args.record {
        std::fs::write(path, format!("{record:#}\n"))?;
    }
    if globals.json {
        out::json(&record);
    } else {
        out::line(&format!("{kills} kills, {} wrong, the last rank ended after {worst:.2} s at most", wrong.len()));
    }
    Ok(if wrong.is_empty() { Outcome::Good } else { Outcome::Bad })
}
