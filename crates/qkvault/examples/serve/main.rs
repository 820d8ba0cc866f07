//! Serves a toy model with continuous batching. Requests arrive and leave, prompts run in chunks, sequences allocate
//! and release pages, and share the pages of a common prefix. Every step runs on one of a small set of plans, and the
//! program compares its output with the oracle's.
//!
//! ```text
//! serve [--requests 24] [--seed 1] [--cudnn 9.19] [--vault DIR] [--build] [--cpu] [--out FILE]
//! ```
//!
//! On a GPU cuDNN runs the steps, and `--build` compiles the plans that the vault lacks (`--vault`; by default the
//! user's). With `--cpu` or without a GPU, the program interprets the op graph of each plan instead, for the version of
//! `--cudnn`, on the same operands.

#![allow(clippy::print_stdout, reason = "this is a program's output")]
#![forbid(unsafe_code)]

mod cpu;
mod gpu;
mod model;
mod pages;
mod scheduler;

use std::error::Error;

use qkvault::cache::VaultOptions;
use qkvault::exec::Device;
use qkvault::exec::serving::{Rows, Step};
use qkvault::graph::Role;
use qkvault::serving::{Buckets, Growth, ServePolicy, StepKind, StepSize};
use qkvault_reference::forward;

use model::{HEAD_DIM, Model, QUERY_HEADS};
use pages::Pool;
use scheduler::Scheduler;

/// An error that ends the program.
type Failure = Box<dyn Error>;

/// The machine that runs the steps: a GPU or an interpreter.
trait Machine {
    /// The name of the machine.
    fn name(&self) -> String;

    /// The number of the plan for a step.
    fn pick(&self, size: StepSize) -> Option<usize>;

    /// Runs a step on a plan. Returns O of every new token, and the operands for the oracle.
    fn run(&mut self, at: usize, step: &Step<'_>, queries: &[half::bf16], pool: &Pool) -> Result<Ran, Failure>;

    /// Plans built since the start of serving.
    fn builds(&self) -> u64;
}

/// The result of a step.
struct Ran {
    /// O as (token, query head, head dim), one sequence after the other.
    outputs: Vec<f32>,
    attention: qkvault::graph::Valid,
    inputs: qkvault_reference::Inputs,
}

/// The limits of this server, small enough for a few plans.
fn policy() -> ServePolicy {
    ServePolicy {
        batch: 8,
        queries: 32,
        keys: 256,
        tokens: 64,
        least_batch: 4,
        least_queries: 32,
        least_keys: 128,
        growth: Growth::even(Some(2), None, Some(2)),
        ..ServePolicy::default()
    }
}

fn main() -> Result<(), Failure> {
    let (mut requests, mut seed, mut build, mut cpu) = (24, 1, false, false);
    let (mut out, mut vault, mut cudnn) = (None, None, "9.19".to_owned());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--requests" => requests = value()?.parse()?,
            "--seed" => seed = value()?.parse()?,
            "--out" => out = Some(value()?),
            "--vault" => vault = Some(value()?),
            "--cudnn" => cudnn = value()?,
            "--build" => build = true,
            "--cpu" => cpu = true,
            other => return Err(format!("'{other}' is not an option; the top of main.rs lists them").into()),
        }
    }
    let buckets = Buckets::new(&policy())?;
    let model = Model::new(seed);
    let device = if cpu { None } else { Device::open(0).map_err(|error| println!("running on the CPU: {error}")).ok() };
    let mut machine: Box<dyn Machine> = match device {
        Some(device) => {
            let vault = vault.map_or_else(VaultOptions::new, VaultOptions::in_folder);
            Box::new(gpu::Gpu::new(&device, &model, &buckets, vault, build)?)
        }
        None => Box::new(cpu::Cpu::new(&model, &buckets, &cudnn)?),
    };
    let record = serve(&model, machine.as_mut(), requests, seed)?;
    println!("{}: {record:#}", machine.name());
    if let Some(file) = out {
        std::fs::write(file, format!("{record:#}\n"))?;
    }
    if record["wrong"] == 0 { Ok(()) } else { Err("steps were wrong".into()) }
}

/// Serves random requests until all are finished.
fn serve(model: &Model, machine: &mut dyn Machine, requests: usize, seed: u64) -> Result<serde_json::Value, Failure> {
    let mut pool = Pool::new();
    let mut scheduler = Scheduler::new(requests, seed, &policy());
    let (mut steps, mut wrong, mut worst, mut decodes, mut tokens) = (0, 0, 0.0_f64, 0, 0);
    let mut used = std::collections::BTreeSet::new();
    while let Some(plan) = scheduler.next(model, &mut pool) {
        let size = StepSize {
            sequences: plan.queries.len() as i64,
            queries: i64::from(plan.queries.iter().copied().max().unwrap_or(1)),
            keys: i64::from(plan.keys.iter().copied().max().unwrap_or(1)),
        };
        let at = machine.pick(size).ok_or_else(|| format!("no plan for {size:?}"))?;
        let step = Step::paged(Rows::Lengths(&plan.queries), Rows::Lengths(&plan.keys), &plan.tables);
        let ran = machine.run(at, &step, &plan.rows, &pool)?;
        let error = compare(&ran, &plan.queries)?;
        worst = worst.max(error);
        wrong += usize::from(error > 5e-3);
        (steps, tokens) = (steps + 1, tokens + plan.queries.iter().sum::<i32>());
        decodes += usize::from(size.queries == 1);
        used.insert(at);
        scheduler.finish(model, &mut pool, &plan, &ran.outputs);
    }
    pool.check_all_free()?;
    Ok(serde_json::json!({
        "machine": machine.name(), "requests": requests, "steps": steps, "decode_steps": decodes, "tokens": tokens,
        "plans_used": used.len(), "most_pages": pool.most_used(), "pages_shared": pool.shared(), "builds": machine.builds(),
        "wrong": wrong, "worst_relative_error": worst, "text": scheduler.checksum(),
    }))
}

/// The largest relative error of a sequence in the step's outputs.
fn compare(ran: &Ran, queries: &[i32]) -> Result<f64, Failure> {
    let exact = forward(&ran.attention, &ran.inputs)?;
    let exact = exact.get(Role::O).ok_or("the forward has no output")?;
    let (mut row, mut worst) = (0, 0.0_f64);
    for (sequence, &length) in queries.iter().enumerate() {
        let (mut error, mut all) = (0.0, 0.0);
        for s in 0..length as usize {
            for (h, d) in (0..QUERY_HEADS).flat_map(|h| (0..HEAD_DIM).map(move |d| (h, d))) {
                let x = exact.at(sequence, h, s, d);
                error += (f64::from(ran.outputs[(row * QUERY_HEADS + h) * HEAD_DIM + d]) - x).powi(2);
                all += x * x;
            }
            row += 1;
        }
        let relative = (error / f64::max(all, 1e-9)).sqrt();
        // NaN counts as an infinite error.
        worst = if relative.is_nan() { f64::INFINITY } else { worst.max(relative) };
    }
    Ok(worst)
}

/// Whether a plan is a decode: one dense query per sequence.
fn is_decode(kind: StepKind) -> bool {
    kind == StepKind::Decode
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_agrees_with_the_oracle_and_every_page_is_released() {
        let model = Model::new(1);
        let buckets = Buckets::new(&policy()).expect("sound");
        let mut texts = Vec::new();
        for version in ["9.19", "9.27"] {
            let mut machine = cpu::Cpu::new(&model, &buckets, version).expect("everything lowers");
            let record = serve(&model, &mut machine, 30, 1).expect("served");
            assert_eq!(record["wrong"], 0, "{record:#}");
            let count = |what: &str| record[what].as_u64().expect("a number");
            assert!(count("decode_steps") > 10 && count("decode_steps") < count("steps") && count("plans_used") > 2);
            assert!(count("pages_shared") > 10, "{record:#}");
            texts.push(record["text"].clone());
        }
        assert_eq!(texts[0], texts[1]);
    }
}
