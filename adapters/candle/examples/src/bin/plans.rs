//! Compiles, without a GPU, the plans that generation with Llama-3.2-1B asks for, in candle-transformers' own code and
//! over pages.
//!
//! ```text
//! plans [--target h200] [--vault DIR] [--prompts 512,2048,8192] [--list]
//! ```
//!
//! Tensors on the CPU describe the calls; nothing computes them. `--list` prints the descriptions alone.

#![allow(clippy::print_stdout, reason = "this is a program's output")]

use std::collections::HashSet;

use candle_core::{DType, Device, Result, Tensor};
use candle_qkvault::qkvault::cache::VaultOptions;
use candle_qkvault::qkvault::graph::Valid;
use candle_qkvault::qkvault::{RawRuntime, Runtime};
use candle_qkvault::{Options, descriptions};
use candle_qkvault_examples::{Words, paged};

type Failure = Box<dyn std::error::Error>;

fn main() -> std::result::Result<(), Failure> {
    let words = Words::of_process();
    let mut options = Runtime::options().build_missing(true);
    if let Some(folder) = words.text("--vault") {
        options = options.vault(VaultOptions::in_folder(folder));
    }
    let runtime = options.open_raw()?;
    let prompts = words.text("--prompts").unwrap_or("512,2048,8192");
    let prompts: Vec<usize> = prompts.split(',').map(str::parse).collect::<std::result::Result<_, _>>()?;
    let mut all = transformers(&prompts)?;
    all.extend(paged::plans(&prompts)?);
    let mut seen = HashSet::new();
    all.retain(|one| seen.insert(one.clone()));
    println!("{} attentions", all.len());
    if words.has("--list") {
        all.iter().for_each(|one| println!("{one}\n"));
        return Ok(());
    }
    compile(&runtime, &all, words.text("--target").unwrap_or("h200"))
}

/// What `candle_flash_attn::flash_attn` is asked for: heads outside rows, keys repeated for every head.
fn transformers(prompts: &[usize]) -> Result<Vec<Valid>> {
    let make = |rows: usize| Tensor::zeros((1, 32, rows, 64), DType::BF16, &Device::Cpu)?.transpose(1, 2);
    let options = |causal| Options::new().share_plans(true).causal(causal).softmax_scale(0.125);
    let mut all = Vec::new();
    // A prompt, tokens after it, and what checks the logits.
    for (rows, keys) in prompts.iter().flat_map(|n| [(*n, *n), (1, *n + 1)]).chain([(100, 100), (1, 140)]) {
        let (q, k) = (make(rows)?, make(keys)?);
        all.extend(descriptions(&q, &k, &k, None, &options(rows > 1), false)?);
    }
    Ok(all)
}

fn compile(runtime: &RawRuntime, all: &[Valid], target: &str) -> std::result::Result<(), Failure> {
    let target = runtime.compile_target(target)?;
    for one in all {
        match runtime.warm(one, &target) {
            Ok(made) => match made.outcome {
                Ok(plan) => println!("{}: {}", plan.facts.by, plan.facts.what),
                Err(refusal) => println!("refused: {refusal}\n{one}"),
            },
            Err(error) => println!("no plan: {error}\n{one}"),
        }
    }
    Ok(())
}
