//! Architectures of GGUF files: their names in Hugging Face configs, and what llama.cpp's code decides for them.

use serde_json::{Map, Value, json};

/// From keys of the metadata, without the architecture before them, to fields of a config.
pub(super) const FIELDS: &[(&str, &str)] = &[
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("embedding_length", "hidden_size"),
    ("block_count", "num_hidden_layers"),
    ("context_length", "max_position_embeddings"),
    ("attention.key_length", "head_dim"),
    ("attention.value_length", "v_head_dim"),
    ("attention.key_length_swa", "swa_head_dim"),
    ("attention.value_length_swa", "swa_v_head_dim"),
    ("attention.sliding_window", "sliding_window"),
    ("attention.sliding_window_pattern", "sliding_window_pattern"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("attention.scale", "attention_multiplier"),
    ("attention.chunk_size", "attention_chunk_size"),
    ("full_attention_interval", "full_attention_interval"),
];

/// The `model_type` of an architecture whose name is another.
const NAMES: &[(&str, &str)] = &[
    ("gemma3", "gemma3_text"),
    ("gemma3n", "gemma3n_text"),
    ("gemma4", "gemma4_text"),
    ("gpt-oss", "gpt_oss"),
    ("command-r", "cohere"),
    ("deepseek2", "deepseek_v3"),
    ("qwen2moe", "qwen2_moe"),
    ("qwen3moe", "qwen3_moe"),
    ("qwen3next", "qwen3_next"),
    ("llama4", "llama4_text"),
    ("gptneox", "gpt_neox"),
    ("phi2", "phi"),
    ("nemotron_h", "nemotron_h"),
    ("falcon-h1", "falcon_h1"),
    ("glm4moe", "glm4_moe"),
    ("granitehybrid", "granitemoehybrid"),
    ("modern-bert", "modernbert"),
    ("nomic-bert", "nomic_bert"),
];

pub(super) fn model_type(architecture: &str) -> &str {
    NAMES.iter().find(|(name, _)| *name == architecture).map_or(architecture, |(_, model_type)| *model_type)
}

/// Adds what llama.cpp's code decides for an architecture.
pub(super) fn decided(architecture: &str, config: &mut Map<String, Value>) {
    let int = |config: &Map<String, Value>, name: &str| config.get(name).and_then(Value::as_i64);
    // Models without an entry have no window, whatever the default of the class is in transformers.
    if !config.contains_key("sliding_window") {
        config.insert("sliding_window".to_owned(), Value::Null);
    }
    match architecture {
        // The 27B models scale by width over heads, the others by the head dim.
        "gemma2" | "gemma3" => {
            let largest = if architecture == "gemma2" { 46 } else { 62 };
            let by_width = int(config, "num_hidden_layers") == Some(largest);
            let (width, heads) = (int(config, "hidden_size"), int(config, "num_attention_heads"));
            let scalar = match (by_width, width, heads) {
                (true, Some(width), Some(heads)) if heads > 0 => Some(width / heads),
                _ => int(config, "head_dim"),
            };
            if let Some(scalar) = scalar {
                config.insert("query_pre_attn_scalar".to_owned(), json!(scalar));
            }
        }
        // Chunks and their period are not in the metadata.
        "llama4" => {
            config.entry("attention_chunk_size").or_insert(json!(8192));
            config.insert("sliding_window".to_owned(), Value::Null);
        }
        "granitehybrid" | "jamba" | "nemotron_h" => {
            let count = int(config, "num_hidden_layers").unwrap_or(0).clamp(0, 1 << 16);
            config.entry("layer_types").or_insert_with(|| vec!["full_attention"; count as usize].into());
        }
        // These use the usual slopes.
        "bloom" | "mpt" | "refact" | "jais" if !config.contains_key("alibi") => {
            config.insert("alibi".to_owned(), json!(true));
        }
        _ => {}
    }
}
