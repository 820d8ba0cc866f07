//! Llama of candle-transformers generates with its KV cache, and how fast is written down.
//!
//! ```text
//! candle-user [--plain] [--name NAME] [--note 'KEY=VALUE']... [--out FILE] [--small] [--decode 64]
//! ```
//!
//! The sizes are those of Llama-3.2-1B, the weights random. `--plain` leaves `use_flash_attn` off. Nothing here names
//! qkvault: what answers to `candle-flash-attn` is decided by the workspace.

#![allow(clippy::print_stdout, reason = "this is a program's output")]

mod model;
mod times;

use std::fmt::Write as _;

use candle_core::{DType, Device, Result, Tensor};
use candle_transformers::models::llama::{Cache, Config, Llama};

/// Tokens of the prompts.
const PROMPTS: [usize; 3] = [512, 2048, 8192];

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let after = |word: &str| words.iter().position(|own| own == word).and_then(|at| words.get(at + 1)).cloned();
    let has = |word: &str| words.iter().any(|own| own == word);
    let device = Device::new_cuda(0)?;
    let (config, prompts) =
        if has("--small") { (model::small(), &[24, 100][..]) } else { (model::config(), &PROMPTS[..]) };
    let decode: usize = after("--decode").map_or(Ok(64), |text| text.parse())?;
    let weights = model::weights(&config, &device)?;
    let load = |flash: bool| Llama::load(weights.clone(), &Config { use_flash_attn: flash, ..config.clone() });
    let model = load(!has("--plain"))?;
    let mut record = String::from("{\n");
    writeln!(record, "  \"attention\": {:?},", after("--name").unwrap_or_else(|| "candle-flash-attn".to_owned()))?;
    writeln!(record, "  \"device\": {:?},", times::name(&device)?)?;
    writeln!(record, "  \"candle\": \"0.11.1\",")?;
    for pair in words.windows(2).filter(|pair| pair[0] == "--note") {
        if let Some((key, value)) = pair[1].split_once('=') {
            writeln!(record, "  {key:?}: {value:?},")?;
        }
    }
    if !has("--plain") {
        let off = apart(&model, &load(false)?, &config, &device)?;
        println!("logits are off by {off:.2e} of their norm");
        writeln!(record, "  \"logits_apart\": {off:.6},")?;
    }
    let mut rows = Vec::new();
    for tokens in prompts {
        let row = times::generation(&model, &config, *tokens, decode, &device);
        let row = row.unwrap_or_else(|error| format!("{{ \"prompt\": {tokens}, \"error\": {:?} }}", error.to_string()));
        println!("{row}");
        rows.push(row);
    }
    writeln!(record, "  \"generations\": [\n    {}\n  ],", rows.join(",\n    "))?;
    let mut rows = Vec::new();
    if !has("--plain") {
        for keys in prompts {
            rows.push(times::calls(&config, *keys, &device)?);
            println!("{}", rows[rows.len() - 1]);
        }
    }
    writeln!(record, "  \"calls\": [\n    {}\n  ]\n}}", rows.join(",\n    "))?;
    if let Some(file) = after("--out") {
        std::fs::write(file, &record)?;
    }
    println!("{record}");
    Ok(())
}

/// How far the logits of a prompt and of 40 tokens after it are from those of candle's plain attention: the largest
/// norm of a difference over the norm of the plain logits.
fn apart(ours: &Llama, plain: &Llama, config: &Config, device: &Device) -> Result<f32> {
    let caches = || Cache::new(true, DType::BF16, config, device);
    let (mut cache, mut theirs, mut worst) = (caches()?, caches()?, 0f32);
    let mut at = 0;
    for tokens in std::iter::once(100).chain([1; 40]) {
        let ids = model::ids(at, tokens, device)?;
        let (a, b) = (ours.forward(&ids, at, &mut cache)?, plain.forward(&ids, at, &mut theirs)?);
        let norm = |t: Tensor| t.sqr()?.sum_all()?.to_scalar::<f32>().map(f32::sqrt);
        let off = norm((&a - &b)?)? / norm(b)?;
        worst = if off.is_nan() { off } else { worst.max(off) };
        at += tokens;
    }
    Ok(worst)
}
