//! A loop of one's own over `KvCache`: prompts, single tokens, and both in one step.
//!
//! ```text
//! generate [--cpu] [--build] [--vault DIR] [--speed] [--note 'KEY=VALUE']... [--out FILE]
//! ```
//!
//! It fails if the logits of steps over the cache are not those of whole texts. `--speed` writes down how fast a model
//! of the sizes of Llama-3.2-1B generates.

#![allow(clippy::print_stdout, reason = "this is a program's output")]

use std::fmt::Write as _;
use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor};
use candle_qkvault::Options;
use candle_qkvault_examples::llama::{Llama, config, weights};
use candle_qkvault_examples::paged::{self, CHUNK, Loop};
use candle_qkvault_examples::{Words, device, runtime};

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let words = Words::of_process();
    let device = device(&words)?;
    let runtime = runtime(&words, &device)?;
    let options = Options::new().inference(true).cpu_oracle(true).runtime(&runtime);
    let off = steps(&options, &device)?;
    println!("logits over the cache are off by {off:.2e} of their size");
    if off.is_nan() || off > 0.05 {
        return Err("the logits are not those of whole texts".into());
    }
    if words.has("--speed") {
        let record = speed(&options, &device, &words)?;
        println!("{record}");
        if let Some(file) = words.text("--out") {
            std::fs::write(file, record)?;
        }
    }
    Ok(())
}

/// Tokens of a text, from a place on.
fn text(from: usize, tokens: usize, device: &Device) -> Result<Tensor> {
    Tensor::from_iter((from..from + tokens).map(|at| (at * 37 % 512) as u32), device)
}

/// Two sequences of which one is a chunk behind, in steps of one token and of more: the largest difference from the
/// logits of the whole text, over the largest of those.
fn steps(options: &Options, device: &Device) -> Result<f32> {
    let dtype = if device.is_cpu() { DType::F16 } else { DType::BF16 };
    let config = config(128, 2, (4, 2), false);
    let model = Llama::load(&weights(&config, dtype, device)?, &config, options.clone().share_plans(true))?;
    let mut own = Loop::new(&model, &config, dtype, device)?;
    let (a, b) = (own.cache.add(), own.cache.add());
    let mut worst = 0f32;
    for new in [&[(a, 21)][..], &[(a, 1), (b, 14)], &[(a, 1), (b, 1)], &[(b, 3), (a, 1)], &[(a, 1), (b, 1)]] {
        let parts = new.iter().map(|(sequence, tokens)| text(own.cache.len(*sequence), *tokens, device));
        let logits = own.step(new, &Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)?)?;
        for (at, (sequence, _)) in new.iter().enumerate() {
            let whole = model.forward(&text(0, own.cache.len(*sequence), device)?.unsqueeze(0)?)?;
            let largest = |t: Tensor| t.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>();
            let off = largest((logits.narrow(0, at, 1)? - &whole)?)? / largest(whole)?;
            worst = if off.is_nan() { off } else { worst.max(off) };
        }
    }
    Ok(worst)
}

fn speed(options: &Options, device: &Device, words: &Words) -> std::result::Result<String, Box<dyn std::error::Error>> {
    let config = paged::config();
    let model = Llama::load(&weights(&config, DType::BF16, device)?, &config, options.clone())?;
    let mut record = String::from("{\n  \"attention\": \"candle-qkvault, KvCache\",\n  \"candle\": \"0.11.1\",\n");
    for (key, value) in words.pairs("--note") {
        writeln!(record, "  {key:?}: {value:?},")?;
    }
    let mut rows = Vec::new();
    for (sequences, prompt) in [(1, 512), (1, 2048), (1, 8192), (8, 2048)] {
        let mut own = Loop::new(&model, &config, DType::BF16, device)?;
        let (mut prefill, mut token, mut host) = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
        for _ in 0..4 {
            let all: Vec<usize> = (0..sequences).map(|_| own.cache.add()).collect();
            let new: Vec<(usize, usize)> = all.iter().map(|own| (*own, 1)).collect();
            let ids = text(0, prompt, device)?;
            device.synchronize()?;
            let began = Instant::now();
            let mut logits = None;
            for sequence in &all {
                logits = Some(own.step(&[(*sequence, prompt)], &ids)?);
            }
            device.synchronize()?;
            prefill = prefill.min(began.elapsed().as_secs_f64());
            let mut ids = logits.ok_or("no sequence")?.argmax(1)?.broadcast_as(sequences)?.contiguous()?;
            let began = Instant::now();
            for _ in 0..64 {
                ids = own.step(&new, &ids)?.argmax(1)?;
            }
            host = host.min(began.elapsed().as_secs_f64() / 64.0);
            device.synchronize()?;
            token = token.min(began.elapsed().as_secs_f64() / 64.0);
            all.iter().for_each(|sequence| own.cache.remove(*sequence));
        }
        let tokens = (sequences * prompt) as f64;
        let row = format!(
            "{{ \"sequences\": {sequences}, \"prompt\": {prompt}, \"prefill_ms\": {:.3}, \"prefill_tokens_per_s\": {:.0}, \
             \"decoded\": 64, \"token_ms\": {:.3}, \"tokens_per_s\": {:.1}, \"host_ms_per_token\": {:.3} }}",
            prefill * 1e3,
            tokens / prefill,
            token * 1e3,
            sequences as f64 / token,
            host * 1e3,
        );
        println!("{row}");
        rows.push(row);
    }
    let mixed = mixed(&mut Loop::new(&model, &config, DType::BF16, device)?, device)?;
    write!(record, "  \"generations\": [\n    {}\n  ],\n  \"mixed_step_ms\": {mixed:.3}\n}}\n", rows.join(",\n    "))?;
    Ok(record)
}

/// Milliseconds of a step of 7 tokens after 2,048 each and a chunk of a prompt.
fn mixed(own: &mut Loop<'_>, device: &Device) -> Result<f64> {
    let all: Vec<usize> = (0..8).map(|_| own.cache.add()).collect();
    let (ids, mut least) = (text(0, 2048, device)?, f64::INFINITY);
    for sequence in &all[..7] {
        own.step(&[(*sequence, 2048)], &ids)?;
    }
    for _ in 0..4 {
        let new: Vec<_> = all[..7].iter().map(|own| (*own, 1)).chain([(all[7], CHUNK)]).collect();
        device.synchronize()?;
        let began = Instant::now();
        own.step(&new, &text(0, 7 + CHUNK, device)?)?;
        device.synchronize()?;
        least = least.min(began.elapsed().as_secs_f64() * 1e3);
        own.cache.remove(all[7]);
        own.cache.add();
    }
    Ok(least)
}
