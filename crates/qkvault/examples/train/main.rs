//! Trains a model of two attention layers. cuDNN computes the attention's forward and backward in 16 bits, the CPU the
//! matrix products in single precision.
//!
//! ```text
//! train [--steps 200] [--batch 8] [--seq 256] [--width 256] [--heads 4] [--dtype bf16] [--seed 1] [--rate 0.001]
//!       [--out FILE] [--vault DIR] [--ranks N [--one-gpu]] [--build | --cpu | --plan NAME|FILE]
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
//! are causal; qkvault derives both backwards from the descriptions. `train.py` trains the same model in PyTorch
//! float32 from the same initial numbers and compares the losses. `train.sh` runs both.

#![allow(clippy::print_stdout, reason = "this is a program's output")]
#![forbid(unsafe_code)]

mod cpu;
mod gpu;
mod model;
mod numbers;
mod product;
mod ranks;

use std::error::Error;
use std::time::Instant;

use model::{Config, Machine, Model};
use qkvault::exec::Device;

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
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--steps" => config.steps = value()?.parse()?,
            "--batch" => config.batch = value()?.parse()?,
            "--seq" => config.seq = value()?.parse()?,
            "--width" => config.width = value()?.parse()?,
            "--heads" => config.heads = value()?.parse()?,
            "--seed" => config.seed = value()?.parse()?,
            "--rate" => config.rate = value()?.parse()?,
            "--dtype" => config.dtype = value()?.parse()?,
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
    let folder = || gpu::vault(options.vault.as_deref());
    if let (Some(profile), Some(ranks)) = (&options.plan, options.ranks) {
        return ranks::plan(&config, folder(), profile, ranks);
    }
    if let Some(profile) = &options.plan {
        return gpu::plan(&config, options.vault.as_deref(), profile);
    }
    let (device, machine): (String, Box<dyn Machine>) = if options.cpu {
        ("cpu".into(), Box::new(cpu::Cpu::new(&config)?))
    } else if let Some(ranks) = options.ranks {
        let shared = ranks::Ranks::new(&config, folder, options.build, ranks, options.one_gpu)?;
        let place = if options.one_gpu { "one GPU" } else { "GPUs of their own" };
        (format!("{ranks} ranks on {place}"), Box::new(shared))
    } else {
        let device = Device::open(0)?;
        let gpu = gpu::Gpu::new(&config, &device, options.vault.as_deref(), options.build)?;
        (device.name().to_owned(), Box::new(gpu))
    };
    train(&config, &device, machine, options.out.as_deref())
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
