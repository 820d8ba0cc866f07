//! Serves a toy model with continuous batching: requests arrive and leave, prompts are read in chunks, pages are given and taken
//! back, a common beginning of the prompts is shared; every step runs on one of a small set of plans, and its output is compared
//! with the oracle's.
//!
//! ```text
//! serve [--requests 24] [--seed 1] [--cudnn 9.19] [--build] [--cpu] [--out FILE]
//! ```
//!
//! On a GPU the steps are cuDNN's: `--build` compiles the plans that the vault does not have. With `--cpu`, and where there is no GPU,
//! what lowering emits for each plan is interpreted instead, over the very words that the GPU would be given.

#![allow(clippy::print_stdout, reason = "this is a program's output")]

mod cpu;
mod gpu;
mod model;
mod pages;
mod scheduler;

use std::error::Error;

use qkvault::exec::Device;
use qkvault::exec::serving::{Rows, Step};
use qkvault::graph::Role;
use qkvault::serving::{Buckets, Growth, ServePolicy, StepKind, StepSize};
use qkvault_reference::forward;

use model::{HEAD_DIM, Model, QUERY_HEADS};
use pages::Pool;
use scheduler::Scheduler;

/// Anything that ends the program.
type Failure = Box<dyn Error>;

/// What runs the steps: a GPU, or an interpreter.
trait Machine {
    /// Where it is.
    fn name(&self) -> String;

    /// The plan that a step runs on.
    fn pick(&self, size: StepSize) -> Option<usize>;

    /// Runs a step on a plan: O of every new token, and the operands that the oracle is given to compute the same.
    fn run(&mut self, at: usize, step: &Step<'_>, queries: &[half::bf16], pool: &Pool) -> Result<Ran, Failure>;

    /// Plans built since all were there.
    fn builds(&self) -> u64;
}

/// What came of a step.
struct Ran {
    /// (token, query head, head dim), all sequences one after the other.
    outputs: Vec<f32>,
    attention: qkvault::graph::Valid,
    inputs: qkvault_reference::Inputs,
}

/// The ranges of this server: a few plans.
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
    let (mut requests, mut seed, mut build, mut cpu, mut out, mut cudnn) =
        (24, 1, false, false, None, "9.19".to_owned());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        match word.as_str() {
            "--requests" => requests = value()?.parse()?,
            "--seed" => seed = value()?.parse()?,
            "--out" => out = Some(value()?),
            "--cudnn" => cudnn = value()?,
            "--build" => build = true,
            "--cpu" => cpu = true,
            other => return Err(format!("'{other}' is no option; the top of main.rs lists them").into()),
        }
    }
    let buckets = Buckets::new(&policy())?;
    let model = Model::new(seed);
    let device = if cpu { None } else { Device::open(0).map_err(|error| println!("on the CPU: {error}")).ok() };
    let mut machine: Box<dyn Machine> = match device {
        Some(device) => Box::new(gpu::Gpu::new(&device, &model, &buckets, build)?),
        None => Box::new(cpu::Cpu::new(&model, &buckets, &cudnn)?),
    };
    let told = serve(&model, machine.as_mut(), requests, seed)?;
    println!("{}: {told:#}", machine.name());
    if let Some(file) = out {
        std::fs::write(file, format!("{told:#}\n"))?;
    }
    if told["wrong"] == 0 { Ok(()) } else { Err("steps were wrong".into()) }
}

/// Serves random requests to their end.
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

/// Relative error of the step's outputs, by the sequence that is furthest off.
fn compare(ran: &Ran, queries: &[i32]) -> Result<f64, Failure> {
    let exact = forward(&ran.attention, &ran.inputs)?;
    let exact = exact.get(Role::O).ok_or("a forward has an output")?;
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
        // What is not a number is as wrong as can be.
        worst = if relative.is_nan() { f64::INFINITY } else { worst.max(relative) };
    }
    Ok(worst)
}

/// Whether a plan's queries are dense: one row per sequence.
fn is_decode(kind: StepKind) -> bool {
    kind == StepKind::Decode
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_of_continuous_batching_is_the_oracles_and_every_page_comes_back() {
        let model = Model::new(1);
        let buckets = Buckets::new(&policy()).expect("sound");
        let mut texts = Vec::new();
        for version in ["9.19", "9.27"] {
            let mut machine = cpu::Cpu::new(&model, &buckets, version).expect("everything lowers");
            let told = serve(&model, &mut machine, 30, 1).expect("served");
            assert_eq!(told["wrong"], 0, "{told:#}");
            let count = |what: &str| told[what].as_u64().expect("a number");
            assert!(count("decode_steps") > 10 && count("decode_steps") < count("steps") && count("plans_used") > 2);
            assert!(count("pages_shared") > 10, "{told:#}");
            texts.push(told["text"].clone());
        }
        assert_eq!(texts[0], texts[1]);
    }
}
