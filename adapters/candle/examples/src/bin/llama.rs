//! A small Llama of candle-transformers with random weights: the logits with its own attention, and with qkvault's.
//!
//! ```text
//! llama [--cpu] [--build] [--tokens 48]
//! ```
//!
//! On the CPU the oracle computes the attention of a copy of the model that reads the same weights. With the feature
//! `cuda` the model is candle-transformers' own in both runs: `use_flash_attn` is all that differs. `--build` compiles
//! plans that the vault lacks. It prints how far the logits are apart, and fails if that is much.

#![allow(clippy::print_stdout, reason = "this is a program's output")]

use candle_core::{DType, Device, Result, Tensor};
use candle_qkvault::{Options, set_defaults};
use candle_qkvault_examples::llama::{Llama, config, weights};
use candle_qkvault_examples::{Words, device, runtime};
use candle_transformers::models::llama::{Cache, Llama as Theirs};

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let words = Words::of_process();
    let device = device(&words)?;
    let tokens: usize = words.value("--tokens", 48)?;
    let runtime = runtime(&words, &device)?;
    let options = Options::new().inference(true).cpu_oracle(true).runtime(&runtime);
    set_defaults(options.clone());
    let dtype = if device.is_cpu() { DType::F32 } else { DType::BF16 };
    let config = config(128, 2, (4, 2), false);
    let vb = weights(&config, dtype, &device)?;
    let model = Theirs::load(vb.clone(), &config)?;
    let ids = (0..tokens as u32).map(|at| at * 37 % 512);
    let ids = Tensor::from_iter(ids, &device)?.reshape((1, tokens))?;
    let logits = |model: &Theirs| model.forward(&ids, 0, &mut Cache::new(false, dtype, &config, &device)?);
    let theirs = logits(&model)?;
    let ours = match &device {
        Device::Cpu => Llama::load(&vb, &config, options)?.forward(&ids)?,
        _ => {
            let mut flash = config.clone();
            flash.use_flash_attn = true;
            logits(&Theirs::load(vb, &flash)?)?
        }
    };
    let (far, size) = apart(&ours, &theirs)?;
    println!("logits of {tokens} tokens: off by {far:.2e} at most, of {size:.2}");
    match far < 0.05 * size {
        true => Ok(()),
        false => Err("the logits are not the same".into()),
    }
}

/// The largest difference, and the largest number.
fn apart(a: &Tensor, b: &Tensor) -> Result<(f32, f32)> {
    let largest = |t: Tensor| t.to_dtype(DType::F32)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>();
    Ok((largest((a - b)?)?, largest(b.clone())?))
}
