//! What is timed: prompts, tokens after them, and calls of the attention alone.

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor};
use candle_transformers::models::llama::{Cache, Config, Llama};

use crate::model::ids;

/// Runs of which the least time counts.
const RUNS: usize = 5;

/// The name of the GPU.
pub(crate) fn name(device: &Device) -> Result<String> {
    device.as_cuda_device()?.cuda_stream().context().name().map_err(candle_core::Error::wrap)
}

/// A prompt, and tokens after it with the KV cache: each is the likeliest after the one before. Nothing is copied to
/// the host, so the host's time is what it takes to queue a step.
pub(crate) fn generation(
    model: &Llama,
    config: &Config,
    prompt: usize,
    decode: usize,
    device: &Device,
) -> Result<String> {
    let text = ids(0, prompt, device)?;
    let (mut prefill, mut first) = (f64::INFINITY, f64::INFINITY);
    let mut steps = (f64::INFINITY, f64::INFINITY);
    for run in 0..RUNS {
        let mut cache = Cache::new(true, DType::BF16, config, device)?;
        device.synchronize()?;
        let began = Instant::now();
        let mut logits = model.forward(&text, 0, &mut cache)?;
        device.synchronize()?;
        let seconds = began.elapsed().as_secs_f64();
        prefill = prefill.min(seconds);
        // The first has what is made once: plans that are loaded, kernels that the driver loads.
        if run == 0 {
            first = seconds;
        }
        let began = Instant::now();
        for at in 0..decode {
            let next = logits.argmax(1)?.reshape((1, 1))?;
            logits = model.forward(&next, prompt + at, &mut cache)?;
        }
        let queued = began.elapsed().as_secs_f64();
        device.synchronize()?;
        let seconds = began.elapsed().as_secs_f64();
        if seconds < steps.1 {
            steps = (queued, seconds);
        }
    }
    let each = decode as f64;
    Ok(format!(
        "{{ \"prompt\": {prompt}, \"first_prefill_ms\": {:.2}, \"prefill_ms\": {:.3}, \"prefill_tokens_per_s\": {:.0}, \
         \"decoded\": {decode}, \"token_ms\": {:.3}, \"tokens_per_s\": {:.1}, \"host_ms_per_token\": {:.3} }}",
        first * 1e3,
        prefill * 1e3,
        prompt as f64 / prefill,
        steps.1 / each * 1e3,
        each / steps.1,
        steps.0 / each * 1e3,
    ))
}

/// One attention as the model calls it, for a prompt and for a token: microseconds of the host to queue a call, and of
/// a call when many are queued.
pub(crate) fn calls(config: &Config, keys: usize, device: &Device) -> Result<String> {
    let (heads, d) = (config.num_attention_heads, config.hidden_size / config.num_attention_heads);
    let make = |rows: usize| {
        let random = Tensor::randn(0f32, 1.0, (1, heads, rows, d), device)?.to_dtype(DType::BF16)?;
        random.transpose(1, 2)
    };
    let scale = 1.0 / (d as f32).sqrt();
    // A number of keys that no prompt has: one in the middle of a generation.
    let (one, grown) = (make(1)?, make(keys + 37)?);
    let (prompt, own) = (make(keys)?, make(keys)?);
    let mut parts = Vec::new();
    for (what, q, k, causal, times) in [("token", &one, &grown, false, 400), ("prompt", &prompt, &own, true, 20)] {
        let call = || candle_flash_attn::flash_attn(q, k, k, scale, causal);
        call()?;
        device.synchronize()?;
        let mut least = (f64::INFINITY, f64::INFINITY);
        for _ in 0..RUNS {
            // Few enough that the queue never fills.
            let began = Instant::now();
            for _ in 0..20 {
                call()?;
            }
            least.0 = f64::min(least.0, began.elapsed().as_secs_f64() / 20.0);
            device.synchronize()?;
            let began = Instant::now();
            for _ in 0..times {
                call()?;
            }
            device.synchronize()?;
            least.1 = f64::min(least.1, began.elapsed().as_secs_f64() / f64::from(times));
        }
        parts.push(format!("\"{what}_host_us\": {:.2}, \"{what}_us\": {:.2}", least.0 * 1e6, least.1 * 1e6));
    }
    Ok(format!("{{ \"keys\": {keys}, {} }}", parts.join(", ")))
}
