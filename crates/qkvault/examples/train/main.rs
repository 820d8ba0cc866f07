//! Trains a model of two attention layers. cuDNN computes the attention's forward and backward in 16 bits or in FP8,
//! the CPU the matrix products in single precision.
//!
//! ```text
//! train [--steps 200] [--batch 8] [--seq 256] [--width 256] [--heads 4] [--vocabulary 64] [--dtype bf16] [--seed 1]
//!       [--rate 0.001] [--plain] [--fp8 [--current] [--mixed]] [--out FILE] [--vault DIR] [--ranks N [--one-gpu]]
//!       [--build | --cpu | --plan NAME|FILE]
//! ```
//!
//! `--plan h200` only compiles the four plans into the vault; the target GPU need not be present. `--build` compiles
//! missing plans during the run. `--cpu` computes everything on the CPU, with the oracle instead of cuDNN, for a few
//! steps of small sizes.
//!
//! `--ranks 2` shares the attention between two GPUs over NCCL, each with its part of every sequence; with `--one-gpu`
//! both ranks are on the first GPU. The loss is that of one GPU.
//!
//! The task is to predict the token before each position. The first layer has a softcap, the second has ALiBi, and both
//! are causal; qkvault derives both backwards from the descriptions. With `--plain` neither has an expression.
//!
//! `--fp8` computes the attention in 8 bits: conversions on the GPU quantize Q, K, V and dO with delayed scales, and
//! turn O and the gradients back. It implies `--plain`, and heads of 128. `--current` scales by each tensor itself, for
//! compute capability 10.x; `--mixed` has the backward in 16 bits. The losses of the first steps are within the noise
//! of `--plain` in bf16, which a test compares; those after 600 are larger (`docs/results/fp8.md`).
//!
//! `train.py` trains the same model in PyTorch float32 from the same initial numbers and compares the losses.
//! `train.sh` runs both.

#![allow(clippy::print_stdout, reason = "this is a program's output")]
#![forbid(unsafe_code)]

mod clock;
mod cpu;
mod eight;
mod gpu;
mod gpu_eight;
mod model;
mod numbers;
mod product;
mod ranks;

use std::error::Error;
use std::time::Instant;

use model::{Config, Machine, Model};
use qkvault::exec::Device;
use qkvault::graph::Fp8;

/// An error that ends the program.
type Failure = Box<dyn Error>;

/// Options from the command line.
#[derive(Debug, Default)]
struct Options {
    out: Option<String>,
    vault: Option<String>,
    plan: Option<String>,
    build: bool,
    cpu: bool,
    ranks: Option<u32>,
    one_gpu: bool,
}

fn main() -> Result<(), Failure> {
    let (mut config, mut options) = (Config::default(), Options::default());
    let (mut heads, mut fp8, mut current) = (None, false, false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--steps" => config.steps = value()?.parse()?,
            "--batch" => config.batch = value()?.parse()?,
            "--seq" => config.seq = value()?.parse()?,
            "--width" => config.width = value()?.parse()?,
            "--heads" => heads = Some(value()?.parse()?),
            "--vocabulary" => config.vocabulary = value()?.parse()?,
            "--seed" => config.seed = value()?.parse()?,
            "--rate" => config.rate = value()?.parse()?,
            "--dtype" => config.dtype = value()?.parse()?,
            "--plain" => config.plain = true,
            "--fp8" => fp8 = true,
            "--current" => current = true,
            "--mixed" => config.mixed = true,
            "--out" => options.out = Some(value()?),
            "--vault" => options.vault = Some(value()?),
            "--plan" => options.plan = Some(value()?),
            "--build" => options.build = true,
            "--cpu" => options.cpu = true,
            "--ranks" => options.ranks = Some(value()?.parse()?),
            "--one-gpu" => options.one_gpu = true,
            other => return Err(format!("'{other}' is not an option; the top of main.rs lists them").into()),
        }
    }
    if current && !fp8 {
        return Err("--current is a kind of scaling; it needs --fp8".into());
    }
    if fp8 {
        config.fp8 = Some(if current { Fp8::Current } else { Fp8::Delayed });
        config.plain = true;
    }
    if config.mixed && (!fp8 || options.cpu) {
        return Err("--mixed is a forward of --fp8 with a backward in 16 bits, on a GPU".into());
    }
    // Backwards in 8 bits have heads of 128 on compute capability 9.0; without expressions both have the same.
    let usual = if config.plain { (config.width / 128).max(1) } else { config.heads };
    config.heads = heads.unwrap_or(usual);
    if fp8 && options.ranks.is_some() {
        return Err("--ranks shares attention in 16 bits; leave --fp8 out".into());
    }
    let folder = || gpu::vault(options.vault.as_deref());
    if let (Some(profile), Some(ranks)) = (&options.plan, options.ranks) {
        return ranks::plan(&config, folder(), profile, ranks);
    }
    if let Some(profile) = &options.plan {
        return gpu::plan(&config, options.vault.as_deref(), profile);
    }
    let (device, machine): (String, Box<dyn Machine>) = if options.cpu {
        ("cpu".into(), on_cpu(&config)?)
    } else if let Some(ranks) = options.ranks {
        let shared = ranks::Ranks::new(&config, folder, options.build, ranks, options.one_gpu)?;
        let place = if options.one_gpu { "one GPU" } else { "GPUs of their own" };
        (format!("{ranks} ranks on {place}"), Box::new(shared))
    } else {
        let device = Device::open(0)?;
        let (vault, build) = (options.vault.as_deref(), options.build);
        let machine: Box<dyn Machine> = match config.fp8 {
            None => Box::new(gpu::Gpu::new(&config, &device, vault, build)?),
            Some(_) => Box::new(gpu_eight::Gpu::new(&config, &device, vault, build)?),
        };
        (device.name().to_owned(), machine)
    };
    train(&config, &device, machine, options.out.as_deref())
}

/// The oracle, in the format of the attention.
fn on_cpu(config: &Config) -> Result<Box<dyn Machine>, Failure> {
    Ok(match config.fp8 {
        None => Box::new(cpu::Cpu::new(config)?),
        Some(_) => Box::new(eight::Cpu::new(config)?),
    })
}

fn train(config: &Config, device: &str, mut machine: Box<dyn Machine>, out: Option<&str>) -> Result<(), Failure> {
    let data = numbers::batches(config);
    let mut model = Model::new(config);
    let checksums = serde_json::json!({ "weights": model.checksum().to_string(), "data": numbers::checksum(data.iter().map(|&t| t.cast_unsigned())).to_string() });
    let (mut losses, started) = (Vec::new(), Instant::now());
    for (step, tokens) in data.chunks_exact(config.batch * config.seq).enumerate() {
        let loss = model.step(step, tokens, machine.as_mut())?;
        if step % 10 == 0 || step + 1 == config.steps {
            println!("step {step:4}: loss {loss:.5}");
        }
        losses.push(loss);
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{} steps on {device} in {seconds:.1} s", config.steps);
    if let Some(file) = out {
        let record = serde_json::json!({
            "config": config.json(), "checksums": checksums, "device": device, "seconds": seconds,
            "attention": machine.record(), "losses": losses,
        });
        std::fs::write(file, format!("{record:#}\n"))?;
    }
    Ok(())
}
