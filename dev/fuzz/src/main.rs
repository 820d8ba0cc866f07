//! `qkvault-fuzz`, as `cargo xtask fuzz` runs it: every target in a process of its own, as many at a time as there are
//! cores, and the input of each that fails in a file.

use std::collections::VecDeque;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use qkvault_fuzz::alloc::Counting;
use qkvault_fuzz::drive::{self, Until, say};
use qkvault_fuzz::guard;
use qkvault_fuzz::targets::{self, FuzzTarget};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Puts random inputs to everything that reads data from outside.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask fuzz", bin_name = "cargo xtask fuzz")]
struct FuzzArgs {
    /// Seconds for all targets together
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Most inputs of each target
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    runs: u64,
    /// The seed of the inputs (default: PROPTEST_RNG_SEED, else another one in each run)
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Only this target; may be given several times
    #[arg(long = "target", value_name = "NAME")]
    names: Vec<String>,
    /// Targets that run at the same time (default: one for each core)
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Seconds that an input may take
    #[arg(long, value_name = "N", default_value_t = guard::LONGEST)]
    longest: u64,
    /// The folder for inputs that fail
    #[arg(long, value_name = "DIR", default_value = "target/fuzz")]
    out: PathBuf,
    /// Run the input of a file, on the one target that --target names
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seconds", "runs", "seed", "jobs"])]
    replay: Option<PathBuf>,
    /// List the targets
    #[arg(long)]
    list: bool,
    /// Run one target in this process, with the input that runs in this file
    #[arg(long, value_name = "FILE", hide = true)]
    child: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&FuzzArgs::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn print(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn run(args: &FuzzArgs) -> Result<()> {
    if args.list {
        targets::ALL.iter().for_each(|target| print(&format!("{:<16} {}", target.name, target.about)));
        return Ok(());
    }
    let chosen = chosen(&args.names)?;
    guard::set_longest(args.longest);
    if let Some(file) = &args.replay {
        let [target] = &chosen[..] else { bail!("--replay needs the one target of the file: --target NAME") };
        print(&drive::replay(target, file)?);
        return Ok(());
    }
    let seed = args.seed.or_else(|| std::env::var("PROPTEST_RNG_SEED").ok()?.parse().ok()).unwrap_or_else(now);
    if let Some(current) = &args.child {
        let [target] = &chosen[..] else { bail!("a child runs one target") };
        let until = Until { time: Duration::from_millis(args.seconds), runs: args.runs };
        print(&drive::run(target, seed, until, current)?);
        return Ok(());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.unwrap_or(cores).clamp(1, chosen.len());
    let millis = args.seconds.saturating_mul(1000).saturating_mul(jobs as u64) / chosen.len() as u64;
    std::fs::create_dir_all(&args.out).with_context(|| format!("{} cannot be made", args.out.display()))?;
    say(&format!("{} targets with seed {seed}, {millis} ms each", chosen.len()));
    let (left, failed) = (Mutex::new(VecDeque::from(chosen)), Mutex::new(Vec::new()));
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(target) = next() {
                    match child(target, seed, millis, args) {
                        Ok(said) => say(&format!("{}: {said}", target.name)),
                        Err(error) => {
                            say(&format!("{}: {error:#}", target.name));
                            failed.lock().unwrap_or_else(PoisonError::into_inner).push(target.name);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed.is_empty() { Ok(()) } else { bail!("{} failed with seed {seed}: {}", failed.len(), failed.join(", ")) }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The targets of these names, or all.
fn chosen(names: &[String]) -> Result<Vec<&'static FuzzTarget>> {
    if names.is_empty() {
        return Ok(targets::ALL.iter().collect());
    }
    let of = |name: &String| {
        let known = || targets::ALL.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
        targets::named(name).with_context(|| format!("there is no target {name}; the targets are: {}", known()))
    };
    names.iter().map(of).collect()
}

/// Runs a target in a process of its own, and returns what it printed.
fn child(target: &FuzzTarget, seed: u64, millis: u64, args: &FuzzArgs) -> Result<String> {
    let current = args.out.join(format!("{}.current", target.name));
    let program = std::env::current_exe().context("a program has a path")?;
    let mut command = Command::new(program);
    command.args(["--target", target.name, "--seed", &seed.to_string(), "--seconds", &millis.to_string()]);
    command.args(["--longest", &args.longest.to_string()]);
    command.args(["--runs", &args.runs.to_string(), "--child"]).arg(&current);
    let done = command.stdin(Stdio::null()).output().context("the process could not be started")?;
    if done.status.success() {
        let _ = std::fs::remove_file(&current);
        return Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    let input = drive::interrupted(&current).with_context(|| format!("it ended with {}: {said}", done.status))?;
    let _ = std::fs::remove_file(&current);
    let file = keep(target, &input, &args.out)?;
    let replay = format!("cargo xtask fuzz --target {} --replay {}", target.name, file.display());
    let folder = format!("dev/fuzz/corpus/{}", target.name);
    bail!(
        "an input of {} bytes fails ({})\n{said}\nreplay: {replay}\nwhen it is mended: mv {} {folder}/WHAT_IT_BROKE",
        input.len(),
        done.status,
        file.display()
    )
}

/// Writes an input that fails.
fn keep(target: &FuzzTarget, input: &[u8], out: &Path) -> Result<PathBuf> {
    let name = blake3::hash(input).to_hex();
    let file = std::path::absolute(out.join(format!("{}-{}", target.name, &name[..16])));
    let file = file.context("the folder of this process is gone")?;
    std::fs::write(&file, input).with_context(|| format!("{} cannot be written", file.display()))?;
    Ok(file)
}
