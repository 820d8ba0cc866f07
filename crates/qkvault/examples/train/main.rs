//! Trains a model of two attention layers: single-precision weights and products, 16-bit attention whose forward and backward are cuDNN's.
//!
//! ```text
//! train [--steps 200] [--batch 8] [--seq 256] [--width 256] [--heads 4] [--dtype bf16] [--seed 1] [--rate 0.001]
//!       [--out FILE] [--vault DIR] [--build | --cpu | --plan NAME|FILE]
//! ```
//!
//! `--plan h200` compiles the four plans into the vault for a GPU that need not be here, and stops; `--build` compiles what is missing
//! on the spot; `--cpu` computes everything on the CPU, with the oracle in the place of cuDNN, for a few steps of small sizes.
//!
//! The task: say the token before each one. The first layer caps its scores, the second has ALiBi, both are causal; both derivatives
//! follow from their descriptions. `train.py` trains the same model in PyTorch float32 from the same numbers and compares the losses,
//! `train.sh` runs both.

#![allow(clippy::print_stdout, reason = "this is a program's output")]

mod cpu;
mod gpu;
mod model;
mod numbers;

use std::error::Error;
use std::time::Instant;

use model::{Config, Machine, Model};
use qkvault::exec::Device;

/// Anything that ends the program.
type Failure = Box<dyn Error>;

/// What the words on the command line ask for.
#[derive(Debug, Default)]
struct Wishes {
    out: Option<String>,
    vault: Option<String>,
    plan: Option<String>,
    build: bool,
    cpu: bool,
}

fn main() -> Result<(), Failure> {
    let (mut config, mut wishes) = (Config::default(), Wishes::default());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        match word.as_str() {
            "--steps" => config.steps = value()?.parse()?,
            "--batch" => config.batch = value()?.parse()?,
            "--seq" => config.seq = value()?.parse()?,
            "--width" => config.width = value()?.parse()?,
            "--heads" => config.heads = value()?.parse()?,
            "--seed" => config.seed = value()?.parse()?,
            "--rate" => config.rate = value()?.parse()?,
            "--dtype" => config.dtype = value()?.parse()?,
            "--out" => wishes.out = Some(value()?),
            "--vault" => wishes.vault = Some(value()?),
            "--plan" => wishes.plan = Some(value()?),
            "--build" => wishes.build = true,
            "--cpu" => wishes.cpu = true,
            other => return Err(format!("'{other}' is no option; the top of main.rs lists them").into()),
        }
    }
    if let Some(profile) = &wishes.plan {
        return gpu::plan(&config, wishes.vault.as_deref(), profile);
    }
    let (device, machine): (String, Box<dyn Machine>) = if wishes.cpu {
        ("cpu".into(), Box::new(cpu::Cpu::new(&config)?))
    } else {
        let device = Device::open(0)?;
        let gpu = gpu::Gpu::new(&config, &device, wishes.vault.as_deref(), wishes.build)?;
        (device.name().to_owned(), Box::new(gpu))
    };
    train(&config, &device, machine, wishes.out.as_deref())
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
            "attention": machine.tell(), "losses": losses,
        });
        std::fs::write(file, format!("{record:#}\n"))?;
    }
    Ok(())
}
