//! The Llama of candle-transformers with its attention replaced: the same weights by the same names, the same numbers.
//!
//! With the feature `cuda`, candle-transformers' own code runs on qkvault instead, through `use_flash_attn`.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::rotary_emb::{rope, rope_thd};
use candle_nn::{Embedding, Linear, Module, RmsNorm, VarBuilder, VarMap, embedding, linear_no_bias, rms_norm};
use candle_qkvault::{KvCache, Options, Order, attention};
use candle_transformers::models::llama::{Config, Llama as Theirs};

/// A small config.
#[must_use]
pub fn config(hidden: usize, layers: usize, (heads, kv_heads): (usize, usize), flash: bool) -> Config {
    Config {
        hidden_size: hidden,
        intermediate_size: hidden * 2,
        vocab_size: 512,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: kv_heads,
        use_flash_attn: flash,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: 2048,
        tie_word_embeddings: false,
    }
}

/// Random weights of a config. candle has random numbers of 16 bits on CPUs alone, so these are rounded.
///
/// # Errors
///
/// As candle's operations.
pub fn weights(config: &Config, dtype: DType, device: &Device) -> Result<VarBuilder<'static>> {
    let variables = VarMap::new();
    Theirs::load(VarBuilder::from_varmap(&variables, DType::F32, device), config)?;
    let all = variables.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let rounded = all.iter().map(|(name, own)| Ok((name.clone(), own.as_tensor().detach().to_dtype(dtype)?)));
    Ok(VarBuilder::from_tensors(rounded.collect::<Result<_>>()?, dtype, device))
}

struct Layer {
    norms: [RmsNorm; 2],
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// A Llama whose attention is qkvault's.
pub struct Llama {
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    turns: (Tensor, Tensor),
    config: Config,
    options: Options,
}

impl Llama {
    /// Loads the weights that candle-transformers' Llama has by the same names.
    ///
    /// # Errors
    ///
    /// A weight that is missing.
    pub fn load(vb: &VarBuilder<'_>, config: &Config, options: Options) -> Result<Llama> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let d = hidden / config.num_attention_heads;
        let keys = d * config.num_key_value_heads;
        let layer = |at: usize| {
            let (vb, eps) = (vb.pp(format!("model.layers.{at}")), config.rms_norm_eps);
            let (own, mlp) = (vb.pp("self_attn"), vb.pp("mlp"));
            Ok(Layer {
                norms: [
                    rms_norm(hidden, eps, vb.pp("input_layernorm"))?,
                    rms_norm(hidden, eps, vb.pp("post_attention_layernorm"))?,
                ],
                q: linear_no_bias(hidden, hidden, own.pp("q_proj"))?,
                k: linear_no_bias(hidden, keys, own.pp("k_proj"))?,
                v: linear_no_bias(hidden, keys, own.pp("v_proj"))?,
                o: linear_no_bias(hidden, hidden, own.pp("o_proj"))?,
                gate: linear_no_bias(hidden, inner, mlp.pp("gate_proj"))?,
                up: linear_no_bias(hidden, inner, mlp.pp("up_proj"))?,
                down: linear_no_bias(inner, hidden, mlp.pp("down_proj"))?,
            })
        };
        Ok(Llama {
            embedding: embedding(config.vocab_size, hidden, vb.pp("model.embed_tokens"))?,
            layers: (0..config.num_hidden_layers).map(layer).collect::<Result<_>>()?,
            norm: rms_norm(hidden, config.rms_norm_eps, vb.pp("model.norm"))?,
            head: linear_no_bias(hidden, config.vocab_size, vb.pp("lm_head"))?,
            turns: turns(d, config, vb.dtype(), vb.device())?,
            config: config.clone(),
            options: options.causal(true).order(Order::Bhsd),
        })
    }

    /// The logits of the last token of each row of ids.
    ///
    /// # Errors
    ///
    /// As candle's operations, and qkvault's refusals.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let (b, s) = ids.dims2()?;
        let mut x = self.embedding.forward(ids)?;
        for layer in &self.layers {
            let within = layer.norms[0].forward(&x)?;
            let heads = |linear: &Linear, n: usize| {
                let d = self.config.hidden_size / self.config.num_attention_heads;
                linear.forward(&within)?.reshape((b, s, n, d))?.transpose(1, 2)
            };
            let turn =
                |t: &Tensor| rope(&t.contiguous()?, &self.turns.0.narrow(0, 0, s)?, &self.turns.1.narrow(0, 0, s)?);
            let q = turn(&heads(&layer.q, self.config.num_attention_heads)?)?;
            let k = turn(&heads(&layer.k, self.config.num_key_value_heads)?)?;
            let v = heads(&layer.v, self.config.num_key_value_heads)?;
            // This is the replaced part. cuDNN computes 16 bits; a model in 16 bits needs no conversion.
            let half = |t: &Tensor| if t.dtype() == DType::F32 { t.to_dtype(DType::F16) } else { Ok(t.clone()) };
            let o = attention(&half(&q)?, &half(&k)?, &half(&v)?, &self.options)?.to_dtype(x.dtype())?;
            let o = o.transpose(1, 2)?.reshape((b, s, self.config.hidden_size))?;
            x = (x + layer.o.forward(&o)?)?;
            let within = layer.norms[1].forward(&x)?;
            let inner = (candle_nn::ops::silu(&layer.gate.forward(&within)?)? * layer.up.forward(&within)?)?;
            x = (x + layer.down.forward(&inner)?)?;
        }
        let last = self.norm.forward(&x)?.narrow(1, s - 1, 1)?.squeeze(1)?;
        self.head.forward(&last)?.to_dtype(DType::F32)
    }
}

impl Llama {
    /// The logits of some rows of a step that [`KvCache::step`] began: its tokens, their places in their sequences, and
    /// the rows whose logits are wanted.
    ///
    /// # Errors
    ///
    /// As candle's operations, and qkvault's refusals.
    pub fn forward_step(&self, ids: &Tensor, places: &Tensor, wanted: &Tensor, cache: &KvCache) -> Result<Tensor> {
        let tokens = ids.dims1()?;
        let (heads, kv) = (self.config.num_attention_heads, self.config.num_key_value_heads);
        let d = self.config.hidden_size / heads;
        let turns = (self.turns.0.index_select(places, 0)?, self.turns.1.index_select(places, 0)?);
        let mut x = self.embedding.forward(ids)?;
        for (at, layer) in self.layers.iter().enumerate() {
            let within = layer.norms[0].forward(&x)?;
            let turned = |linear: &Linear, n: usize| {
                rope_thd(&linear.forward(&within)?.reshape((1, tokens, n, d))?, &turns.0, &turns.1)?.squeeze(0)
            };
            let (q, k) = (turned(&layer.q, heads)?, turned(&layer.k, kv)?);
            cache.append(at, &k, &layer.v.forward(&within)?.reshape((tokens, kv, d))?)?;
            let o = cache.attention(at, &q, &self.options)?;
            x = (x + layer.o.forward(&o.reshape((tokens, heads * d))?)?)?;
            let within = layer.norms[1].forward(&x)?;
            let inner = (candle_nn::ops::silu(&layer.gate.forward(&within)?)? * layer.up.forward(&within)?)?;
            x = (x + layer.down.forward(&inner)?)?;
        }
        self.head.forward(&self.norm.forward(&x.index_select(wanted, 0)?)?)?.to_dtype(DType::F32)
    }
}

/// Cosines and sines of rotary embeddings.
fn turns(d: usize, config: &Config, dtype: DType, device: &Device) -> Result<(Tensor, Tensor)> {
    let rates = (0..d).step_by(2).map(|at| 1f32 / config.rope_theta.powf(at as f32 / d as f32));
    let rates = Tensor::from_iter(rates, device)?.reshape((1, d / 2))?;
    let most = config.max_position_embeddings;
    let places = Tensor::arange(0, most as u32, device)?.to_dtype(DType::F32)?.reshape((most, 1))?;
    let angles = places.matmul(&rates)?;
    Ok((angles.cos()?.to_dtype(dtype)?, angles.sin()?.to_dtype(dtype)?))
}
