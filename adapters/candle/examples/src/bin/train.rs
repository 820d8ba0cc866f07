//! Trains two layers, once with qkvault's attention and once with candle's plain one, from the same weights.
//!
//! ```text
//! train [--cpu] [--build] [--steps 60] [--batch 8] [--seq 64] [--heads 4]
//! ```
//!
//! The first layer has a softcap, the second ALiBi; both are causal. `--cpu` computes with the oracle. `--build`
//! compiles plans that the vault lacks. It prints both losses, and fails if they part.

#![allow(clippy::print_stdout, reason = "this is a program's output")]

use candle_core::{DType, Tensor};
use candle_qkvault::{Options, attention};
use candle_qkvault_examples::plain::{Plain, plain};
use candle_qkvault_examples::toy::{Sizes, train};
use candle_qkvault_examples::{Words, device, runtime};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words = Words::of_process();
    let device = device(&words)?;
    let of = Sizes {
        batch: words.value("--batch", 8)?,
        seq: words.value("--seq", 64)?,
        heads: words.value("--heads", 4)?,
        d: 16,
        steps: words.value("--steps", 60)?,
    };
    let runtime = runtime(&words, &device)?;
    let slopes: Vec<f32> = (1..=of.heads).map(|at| 0.5f32.powi(at as i32)).collect();
    let slopes = Tensor::new(slopes, &device)?;
    let causal = || Options::new().causal(true).cpu_oracle(true).runtime(&runtime);
    let options = [causal().softcap(20.0), causal().alibi_slopes(&slopes)];
    let ours = |at: usize, tensors: [&Tensor; 3]| {
        let [q, k, v] = tensors.map(|own| own.to_dtype(DType::BF16));
        attention(&q?, &k?, &v?, &options[at])?.to_dtype(DType::F32)
    };
    let causal = || Plain { right: Some(0), ..Plain::default() };
    let plains = [Plain { softcap: Some(20.0), ..causal() }, Plain { slopes: Some(slopes.clone()), ..causal() }];
    let theirs = |at: usize, [q, k, v]: [&Tensor; 3]| plain(q, k, v, &plains[at]);
    let (ours, theirs) = (train(of, &device, &ours)?, train(of, &device, &theirs)?);
    for (step, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        if step.is_multiple_of(10) || step + 1 == of.steps {
            println!("step {step:3}: loss {ours:.4}, with candle's plain attention {theirs:.4}");
        }
    }
    let (first, last, plain) = (ours[0], ours[of.steps - 1], theirs[of.steps - 1]);
    if !(last < 0.9 * first && (last - plain).abs() < 0.05 * first) {
        return Err(format!("the loss fell from {first} to {last}, and with plain attention to {plain}").into());
    }
    Ok(())
}
