//! `bench cold`: fresh processes. The clock is that of this process, from before it starts the other one until that one
//! has told of its first output; then the times of further shapes in it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;
use qkvault_cli::{Globals, out};
use serde_json::{Value, json};

use super::first;
use super::ground::GroundOptions;
use super::peer::{Peer, numbers};
use super::shapes::{by_peer, shuffled};
use super::summary::FigureSummary;

/// Fresh processes of each kind; half as many of the kinds that compile.
const PROCESSES: u64 = 6;
/// Further shapes of a process.
const FURTHER: usize = 64;

/// What one fresh process of ours told.
struct ColdTimes {
    seconds: f64,
    steps: Value,
    rest: Value,
}

/// Measures.
pub(super) fn run(globals: &Globals, options: &GroundOptions) -> anyhow::Result<Value> {
    let machine = options.open(globals)?.machine()?;
    let (mut vault, mut built, mut torch, mut flex) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let [mut plan, mut output, mut floor, mut theirs] = [const { Vec::new() }; 4];
    let (mut steps, mut builds, mut why) = (Vec::new(), 0, None);
    for process in 0..PROCESSES {
        out::note(&format!("process {} of {PROCESSES}", process + 1));
        let told = ours(globals, options, false, FURTHER, process)?;
        vault.push(told.seconds);
        steps.push(told.steps);
        builds += told.rest["builds"].as_u64().unwrap_or(0);
        for (field, into) in [("plan_ms", &mut plan), ("output_ms", &mut output), ("floor_ms", &mut floor)] {
            into.extend(numbers(&told.rest[field]));
        }
        if process % 2 == 0 {
            built.push(ours(globals, options, true, 0, process)?.seconds);
        }
        if options.no_peer || why.is_some() {
            continue;
        }
        match Peer::first(&options.python, options.device, "first") {
            Err(error) => why = Some(format!("{error:#}")),
            Ok((time, mut peer)) => {
                torch.push(time.as_secs_f64());
                theirs.extend(by_peer(&mut peer, &shuffled(process)[..FURTHER / 2])?.1);
            }
        }
        if process == 0 && why.is_none() {
            match Peer::first(&options.python, options.device, "flex") {
                Err(error) => out::note(&format!("no FlexAttention: {error:#}")),
                Ok((time, _)) => flex.push(time.as_secs_f64()),
            }
        }
    }
    Ok(json!({
        "machine": machine, "builds": builds, "no_peer": why, "steps_ms": steps,
        "first_output_s": FigureSummary::from_values(vault), "first_output_built_s": FigureSummary::from_values(built),
        "torch_first_output_s": FigureSummary::from_values(torch), "flex_first_output_s": FigureSummary::from_values(flex),
        "further_plan_ms": FigureSummary::from_values(plan), "further_output_ms": FigureSummary::from_values(output),
        "further_floor_ms": FigureSummary::from_values(floor), "torch_further_ms": FigureSummary::from_values(theirs),
    }))
}

/// Runs one fresh process of this program; with `build`, over an empty vault that it may fill.
fn ours(
    globals: &Globals,
    options: &GroundOptions,
    build: bool,
    further: usize,
    seed: u64,
) -> anyhow::Result<ColdTimes> {
    let empty = tempfile::tempdir()?;
    let folder = if build { Some(empty.path()) } else { globals.vault.as_deref() };
    let words = first::words(options, build, further, seed);
    let program = std::env::current_exe()?;
    told(&program, folder, &words).with_context(|| format!("{} {}", program.display(), words.join(" ")))
}

fn told(program: &Path, vault: Option<&Path>, words: &[String]) -> anyhow::Result<ColdTimes> {
    let mut command = Command::new(program);
    command.args(words).stdout(Stdio::piped());
    if let Some(folder) = vault {
        command.arg("--vault").arg(folder);
    }
    let started = Instant::now();
    let mut child = command.spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    let first = lines.next();
    let seconds = started.elapsed().as_secs_f64();
    let rest = lines.next();
    let ended = child.wait()?;
    let (Some(first), Some(rest)) = (first, rest) else { anyhow::bail!("the process ended early with {ended}") };
    let first: Value = serde_json::from_str(&first?)?;
    Ok(ColdTimes { seconds, steps: first["steps_ms"].clone(), rest: serde_json::from_str(&rest?)? })
}
