//! A Llama of the sizes of Llama-3.2-1B, with random weights.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::llama::{Config, Llama};

pub(crate) fn config() -> Config {
    Config {
        hidden_size: 2048,
        intermediate_size: 8192,
        vocab_size: 128_256,
        num_hidden_layers: 16,
        num_attention_heads: 32,
        num_key_value_heads: 8,
        use_flash_attn: true,
        rms_norm_eps: 1e-5,
        rope_theta: 500_000.0,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: 16_384,
        tie_word_embeddings: true,
    }
}

/// To try the program.
pub(crate) fn small() -> Config {
    Config {
        hidden_size: 256,
        intermediate_size: 512,
        vocab_size: 512,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        ..config()
    }
}

/// candle has random numbers of 16 bits on CPUs alone, so these are rounded.
pub(crate) fn weights(config: &Config, device: &Device) -> Result<VarBuilder<'static>> {
    let variables = VarMap::new();
    Llama::load(VarBuilder::from_varmap(&variables, DType::F32, device), config)?;
    let all = variables.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let rounded = all.iter().map(|(name, own)| Ok((name.clone(), own.as_tensor().detach().to_dtype(DType::BF16)?)));
    Ok(VarBuilder::from_tensors(rounded.collect::<Result<_>>()?, DType::BF16, device))
}

/// Tokens of a text, from a place on.
pub(crate) fn ids(from: usize, tokens: usize, device: &Device) -> Result<Tensor> {
    let of = |at: usize| ((at * 37) % 512) as u32;
    Tensor::from_iter((from..from + tokens).map(of), device)?.reshape((1, tokens))
}
