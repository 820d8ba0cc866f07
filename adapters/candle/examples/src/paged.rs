//! Generation over pages: the steps that a loop of one's own makes, at the sizes of Llama-3.2-1B.

use candle_core::{DType, Device, Result, Tensor};
use candle_qkvault::qkvault::graph::Valid;
use candle_qkvault::{KvCache, Options};
use candle_transformers::models::llama::Config;

use crate::llama::{Llama, config as small};

/// Pages of a layer's pool, and rows of one.
pub const POOL: (usize, usize) = (512, 64);

/// Tokens of the prompt whose chunk is mixed with decodes.
pub const CHUNK: usize = 512;

/// The sizes of Llama-3.2-1B, but for weights of its own in the last layer.
#[must_use]
pub fn config() -> Config {
    Config {
        intermediate_size: 8192,
        vocab_size: 128_256,
        rope_theta: 500_000.0,
        max_position_embeddings: 16_384,
        ..small(2048, 16, (32, 8), false)
    }
}

/// Sequences that generate.
pub struct Loop<'m> {
    model: &'m Llama,
    /// The cache of all layers.
    pub cache: KvCache,
    device: Device,
}

impl Loop<'_> {
    /// Nothing generates yet.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new<'m>(model: &'m Llama, config: &Config, dtype: DType, device: &Device) -> Result<Loop<'m>> {
        let (heads, kv) = (config.num_attention_heads, config.num_key_value_heads);
        let cache = KvCache::new(config.num_hidden_layers, POOL, kv, config.hidden_size / heads, dtype, device)?;
        Ok(Loop { model, cache, device: device.clone() })
    }

    /// One step of sequences with new tokens of each, which come one sequence after another: the logits of the last
    /// token of each.
    ///
    /// # Errors
    ///
    /// As candle's operations, and qkvault's refusals.
    pub fn step(&mut self, new: &[(usize, usize)], ids: &Tensor) -> Result<Tensor> {
        let (mut places, mut ends) = (Vec::new(), Vec::new());
        for (sequence, tokens) in new {
            let from = self.cache.len(*sequence);
            places.extend((from..from + tokens).map(|place| place as u32));
            ends.push(places.len() as u32 - 1);
        }
        self.cache.step(new)?;
        let (places, ends) = (Tensor::new(&*places, &self.device)?, Tensor::new(&*ends, &self.device)?);
        self.model.forward_step(ids, &places, &ends, &self.cache)
    }
}

/// What the steps of [`config`] compute: prompts with 64 tokens after each, 8 sequences of 2,048 tokens at once, and 7
/// of them with a chunk of a prompt.
///
/// # Errors
///
/// As the description.
pub fn plans(prompts: &[usize]) -> Result<Vec<Valid>> {
    let options = Options::new().causal(true).inference(true);
    let mut all = Vec::new();
    let mut add = |before: &[(usize, usize)], steps: &[&[(usize, usize)]]| {
        let mut cache = KvCache::new(1, POOL, 8, 64, DType::BF16, &Device::Cpu)?;
        for _ in 0..8 {
            cache.add();
        }
        if !before.is_empty() {
            cache.step(before)?;
        }
        for new in steps {
            let tokens = cache.step(new)?;
            let q = Tensor::zeros((tokens, 32, 64), DType::BF16, &Device::Cpu)?;
            all.extend(cache.descriptions(&q, &options)?);
        }
        Ok::<_, candle_core::Error>(())
    };
    for tokens in prompts {
        add(&[], &[&[(0, *tokens)], &[(0, 1)]])?;
    }
    let each = |from: usize, to: usize, tokens| (from..to).map(|at| (at, tokens)).collect::<Vec<_>>();
    let mixed = [each(0, 7, 1), vec![(7, CHUNK)]].concat();
    add(&each(0, 7, 2048), &[&mixed, &each(0, 8, 1)])?;
    Ok(all)
}
