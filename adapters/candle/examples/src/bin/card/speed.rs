//! Speed beside candle's plain attention: a Llama of candle-transformers over a prompt, one attention, and training.

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_qkvault::{Options, attention, set_defaults};
use candle_qkvault_examples::Words;
use candle_qkvault_examples::llama::{config, weights};
use candle_qkvault_examples::plain::{Plain, plain};
use candle_qkvault_examples::toy::{Sizes, train};
use candle_transformers::models::llama::{Cache, Llama};

use crate::cases::relative;

/// The last fields of the record.
pub(crate) fn run(
    base: &Options,
    device: &Device,
    words: &Words,
) -> std::result::Result<String, Box<dyn std::error::Error>> {
    let small = device.is_cpu();
    let tokens: usize = words.value("--tokens", if small { 16 } else { 2048 })?;
    let mut fields = Vec::new();
    set_defaults(base.clone().inference(true));
    let config = if small { config(64, 1, (2, 2), false) } else { config(2048, 8, (16, 8), false) };
    let dtype = if small { DType::F32 } else { DType::BF16 };
    let vb = weights(&config, dtype, device)?;
    let ids = Tensor::from_iter((0..tokens as u32).map(|at| at * 37 % 512), device)?.reshape((1, tokens))?;
    let mut all = Vec::new();
    // Without the feature there is nothing in the place of candle-flash-attn.
    for flash in [false, !small] {
        let mut config = config.clone();
        config.use_flash_attn = flash;
        let model = Llama::load(vb.clone(), &config)?;
        let mut cache = Cache::new(false, dtype, &config, device)?;
        let logits = model.forward(&ids, 0, &mut cache)?;
        let seconds = least(device, || model.forward(&ids, 0, &mut cache).map(drop))?;
        println!("Llama, {tokens} tokens, flash {flash}: {:.2} ms", seconds * 1e3);
        all.push((logits, tokens as f64 / seconds));
    }
    let off = relative(&all[1].0, &all[0].0, 0.0)?;
    fields.push(format!("  \"logits_apart\": {off:.5}"));
    fields.push(format!("  \"prompt\": {tokens}"));
    fields.push(format!("  \"tokens_per_s\": {:.0}", all[1].1));
    fields.push(format!("  \"peer_tokens_per_s\": {:.0}", all[0].1));
    fields.push("  \"peer\": \"candle's plain attention\"".to_owned());
    let (forward, both) = alone(base, device, tokens)?;
    fields.push(format!("  \"attention_ms\": [{:.4}, {:.4}]", forward.0, forward.1));
    fields.push(format!("  \"attention_and_backward_ms\": [{:.4}, {:.4}]", both.0, both.1));
    let of = match small {
        true => Sizes { batch: 2, seq: 16, heads: 2, d: 16, steps: 4 },
        false => Sizes { batch: 8, seq: 64, heads: 4, d: 16, steps: 80 },
    };
    let options = base.clone().causal(true);
    let ours = train(of, device, &|_, tensors: [&Tensor; 3]| {
        let [q, k, v] = tensors.map(|own| own.to_dtype(DType::BF16));
        attention(&q?, &k?, &v?, &options)?.to_dtype(DType::F32)
    })?;
    let causal = Plain { right: Some(0), ..Plain::default() };
    let theirs = train(of, device, &|_, [q, k, v]: [&Tensor; 3]| plain(q, k, v, &causal))?;
    let losses = |list: &[f32]| format!("[{:.4}, {:.4}]", list[0], list[list.len() - 1]);
    fields.push(format!("  \"loss\": {},\n  \"peer_loss\": {}", losses(&ours), losses(&theirs)));
    Ok(fields.join(",\n"))
}

/// Milliseconds of one attention and of its backward too, ours and candle's plain one's.
fn alone(base: &Options, device: &Device, tokens: usize) -> Result<((f64, f64), (f64, f64))> {
    let make = || Var::randn(0f32, 1.0, (1, tokens, 16, 128), device)?.to_dtype(DType::BF16)?.detach().contiguous();
    let [q, k, v] = [make()?, make()?, make()?];
    let options = base.clone().causal(true);
    // A mask that is made once: to make it takes longer than the attention.
    let hidden = |(row, key): (usize, usize)| if key > row { f32::NEG_INFINITY } else { 0.0 };
    let mask = (0..tokens).flat_map(|row| (0..tokens).map(move |key| (row, key))).map(hidden);
    let mask = Tensor::from_iter(mask, device)?.reshape((1, 1, tokens, tokens))?;
    let causal = Plain { bias: Some(mask), ..Plain::default() };
    let ms = |seconds: f64| seconds * 1e3;
    let ours = ms(least(device, || attention(&q, &k, &v, &options).map(drop))?);
    let theirs = ms(least(device, || plain(&q, &k, &v, &causal).map(drop))?);
    let tracked = [Var::from_tensor(&q)?, Var::from_tensor(&k)?, Var::from_tensor(&v)?];
    let [q, k, v] = &tracked;
    let ours_back = ms(least(device, || attention(q, k, v, &options)?.backward().map(drop))?);
    let theirs_back = ms(least(device, || plain(q, k, v, &causal)?.backward().map(drop))?);
    Ok(((ours, theirs), (ours_back, theirs_back)))
}

/// The least seconds of a call, of some runs; the device is waited for.
fn least(device: &Device, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let runs = if device.is_cpu() { 1 } else { 10 };
    call()?;
    device.synchronize()?;
    let mut least = f64::INFINITY;
    for _ in 0..runs {
        let began = Instant::now();
        call()?;
        device.synchronize()?;
        least = least.min(began.elapsed().as_secs_f64());
    }
    Ok(least)
}
