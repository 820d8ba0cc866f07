//! Recipes, descriptions, manifests, configs and GGUF files.

use qkvault_graph::{arbitrary, text, validate};
use qkvault_kernels::recipe::testing as recipes;
use qkvault_models::{Manifest, Model, Phase};

use super::{FuzzOutcome, FuzzTarget, none};

/// A launch recipe out of a plan.
pub(super) const RECIPE: FuzzTarget = FuzzTarget {
    name: "recipe",
    about: "a launch recipe of a stored plan",
    seeds: || vec![recipes::encoded()],
    words: &["Address", "Scratch", "Number", "Map", "Product", "Clear", "Launch"],
    check: |bytes| {
        recipes::read(bytes).map_or_else(|error| FuzzOutcome::refused(&error), |()| FuzzOutcome::taken("inside"))
    },
};

/// Every stored or sent type of descriptions.
pub(super) const BYTES: FuzzTarget = FuzzTarget {
    name: "read_bytes",
    about: "MessagePack and JSON of descriptions, refusals, profiles, options and op graphs",
    seeds: none,
    words: &["null", "\"q\"", "\"dtype\"", "\"mask\"", "bf16"],
    check: |bytes| {
        let read = arbitrary::read_bytes(bytes);
        if read.is_empty() { FuzzOutcome::refused("nothing reads it") } else { FuzzOutcome::taken(&read.join(" ")) }
    },
};

/// The text form of a description.
pub(super) const TEXT: FuzzTarget = FuzzTarget {
    name: "read_text",
    about: "the text form of a description",
    seeds: none,
    words: &[
        "q: ",
        "k: ",
        "v: ",
        "mask: causal",
        "window ",
        "bottom-right",
        "score_mod: ",
        "mask_mod: ",
        "scalar $a: float;",
        "tensor $t: ",
        "varlen ",
        "paged ",
        "dropout: philox ",
        "outputs: stats",
        "lengths: per-sequence",
        "fp8",
        "sink",
        "tanh(",
        "exp(",
        "where(",
        "score",
        "q_idx",
        "kv_idx",
        "//",
        "%",
        "(",
        ")",
        "\n",
    ],
    check: |bytes| {
        let Ok(given) = std::str::from_utf8(bytes) else { return FuzzOutcome::refused("no text") };
        arbitrary::read_text(given);
        match text::parse(given) {
            Err(error) => FuzzOutcome::refused(&error.to_string()),
            Ok(attention) => match validate(attention) {
                Err(refusal) => FuzzOutcome::refused(&refusal.to_string()),
                Ok(valid) => FuzzOutcome::taken(&valid.to_string()),
            },
        }
    },
};

/// A manifest.
pub(super) const MANIFEST: FuzzTarget = FuzzTarget {
    name: "manifest",
    about: "a list of attentions, TOML or JSON",
    seeds: none,
    words: &[
        "qkvault-manifest = 1",
        "[[attention]]",
        "text = '''",
        "'''",
        "batch = [",
        "seq = [",
        "$batch",
        "$seq",
        "scale = ",
        "phase = \"train\"",
        "notes = [",
        "layers = ",
        "\"\"\"",
        "q: bf16 [",
        "\n",
    ],
    check: |bytes| {
        let Ok(given) = std::str::from_utf8(bytes) else { return FuzzOutcome::refused("no text") };
        let listed = Manifest::parse(given).and_then(|manifest| Ok((manifest.attentions()?, manifest)));
        match listed {
            Err(refusal) => FuzzOutcome::refused(&refusal.to_string()),
            Ok((attentions, manifest)) => {
                let written = manifest.to_toml();
                let again = Manifest::parse(&written).expect("a manifest that was written is read");
                assert_eq!(again.attentions().expect("it was right before"), attentions);
                assert_eq!(again.to_toml(), written, "there is one form of a manifest");
                FuzzOutcome::taken(&attentions.first().map(|one| one.attention.to_string()).unwrap_or_default())
            }
        }
    },
};

/// A model's config.json.
pub(super) const CONFIG: FuzzTarget = FuzzTarget {
    name: "config",
    about: "a model's config.json",
    seeds: none,
    words: &[
        "\"model_type\":",
        "\"num_attention_heads\":",
        "\"num_key_value_heads\":",
        "\"head_dim\":",
        "\"hidden_size\":",
        "\"num_hidden_layers\":",
        "\"sliding_window\":",
        "\"layer_types\":",
        "\"full_attention\"",
        "\"text_config\":",
        "\"sliding_attention\"",
        "\"rope_scaling\":",
        "\"kv_lora_rank\":",
        "null",
        "true",
        "[",
        "]",
        "{",
        "}",
        ",",
    ],
    check: |bytes| {
        let Ok(given) = std::str::from_utf8(bytes) else { return FuzzOutcome::refused("no text") };
        Model::from_config(given)
            .map_or_else(|refusal| FuzzOutcome::refused(&refusal.to_string()), |model| planned(&model))
    },
};

/// A GGUF file.
pub(super) const GGUF: FuzzTarget = FuzzTarget {
    name: "gguf",
    about: "the metadata of a GGUF file",
    seeds: none,
    words: &[
        "GGUF",
        "general.architecture",
        "llama",
        "llama.block_count",
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.embedding_length",
        "gemma3.attention.sliding_window",
        "attention.sliding_window_pattern",
        "deepseek2.attention.kv_lora_rank",
    ],
    check: |bytes| {
        thread_local! {
            static FOLDER: tempfile::TempDir = tempfile::tempdir().expect("a folder");
        }
        let file = FOLDER.with(|folder| folder.path().join("model.gguf"));
        std::fs::write(&file, bytes).expect("the file is written");
        let found = Model::find(&file);
        found.map_or_else(|refusal| FuzzOutcome::refused(&refusal.to_string()), |(_, model)| planned(&model))
    },
};

/// What a model that was read must be.
fn planned(model: &Model) -> FuzzOutcome {
    assert!(!(model.layers.is_empty() && model.skipped.is_empty()), "nothing, and no reason");
    for layer in &model.layers {
        assert_eq!(layer.count, layer.indices.len());
        assert!(layer.kv_heads > 0 && layer.heads % layer.kv_heads == 0 && layer.scale.is_finite(), "{layer:?}");
        for phase in [Phase::Prefill, Phase::Decode] {
            if let Ok(attention) = layer.attention(phase, 1, 64) {
                // Sizes beyond what a description can have are refused by validation.
                let _ = validate(attention);
            }
        }
    }
    let _ = (model.sharded(2, 1), model.sharded(3, 0));
    assert!(model.report()["layers"].is_array());
    let kinds = model.layers.iter().map(|layer| format!("{:?}", layer.kind)).collect::<Vec<_>>().join(" ");
    FuzzOutcome::taken(&kinds)
}
