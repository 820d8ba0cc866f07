//! Reasons for which a model config, a manifest or a phase is refused.

use qkvault_graph::entries;
use qkvault_graph::registry::Entry;

/// The fix for most faults of a model config.
const PUBLISHED: &str = "give the config.json that the model was published with";

entries![
    pub;
    CONFIG_JSON = Entry {
        code: "config.json",
        cause: "The model config is not a JSON object.",
        field: "config",
        needed: "a JSON object with a model_type",
        fix: PUBLISHED,
        ..Entry::description()
    },
    CONFIG_FAMILY = Entry {
        code: "config.family",
        cause: "The model family is not known and the config lacks what attention depends on, or the family has no \
                softmax attention.",
        field: "model_type",
        fix: PUBLISHED,
        ..Entry::description()
    },
    CONFIG_MISSING = Entry {
        code: "config.missing",
        cause: "The model config lacks a required field.",
        fix: PUBLISHED,
        ..Entry::description()
    },
    CONFIG_FIELD = Entry {
        code: "config.field",
        cause: "A field of the model config has an invalid value.",
        fix: PUBLISHED,
        ..Entry::description()
    },
    CONFIG_DTYPE = Entry {
        code: "config.dtype",
        cause: "The model config names an element type that attention does not support.",
        needed: "bfloat16, float16 or float32",
        fix: PUBLISHED,
        ..Entry::description()
    },
    CONFIG_SIZE = Entry {
        code: "config.size",
        cause: "The file is too large for a model config.",
        field: "config",
        fix: "give the config.json, not the weights of the model",
        ..Entry::description()
    },
    CONFIG_PATH = Entry {
        code: "config.path",
        cause: "There is no model config where the command looks for it.",
        field: "--model",
        fix: "give a config.json, a GGUF file, a folder that has one, or the name of a model in the hub's cache, such as \
              Qwen/Qwen3-8B",
        ..Entry::description()
    },
    CONFIG_GGUF = Entry {
        code: "config.gguf",
        cause: "The metadata of the GGUF file cannot be read.",
        fix: "download the file again, or give the config.json that the model was published with",
        ..Entry::description()
    },
    MODEL_SHARD = Entry {
        code: "model.shard",
        cause: "The heads of the model cannot be shared among these GPUs.",
        field: "--tensor-parallel",
        fix: "give a number of GPUs that divides the query heads",
        ..Entry::description()
    },
    CONFIG_HEAD_DIM = Entry {
        code: "config.head-dim",
        cause: "The width of the model is not a multiple of its number of heads.",
        needed: "a width that is a multiple of the number of heads, or a head_dim",
        fix: "give head_dim in the config",
        ..Entry::description()
    },
    MODEL_PHASE = Entry {
        code: "model.phase",
        cause: "The model does not have this phase.",
        field: "phase",
        needed: "a model that generates one token at a time: only such models decode and have a KV cache",
        fix: "use --phase prefill",
        ..Entry::description()
    },
    MODEL_SERVE = Entry {
        code: "model.serve",
        cause: "One batch and one length are given for a set of serving plans.",
        field: "phase",
        needed: "a set of plans: their sizes follow from the ranges of the engine's steps",
        fix: "use LayerKind::serving and serving::Buckets",
        ..Entry::description()
    },
    MODEL_SERVE_LAYER = Entry {
        code: "model.serve-layer",
        cause: "A serving layer does not describe this attention.",
        field: "phase",
        needed: "a causal mask, a window, a softcap, ALiBi or a sink: nothing else",
        fix: "use --phase prefill and --phase decode, which describe it",
        ..Entry::description()
    },
    MODEL_SCORE_MOD = Entry {
        code: "model.score-mod",
        cause: "The score expression of the model is not well typed.",
        field: "score_mod",
        needed: "a well-typed expression",
        fix: "correct the config field that the expression is made from",
        ..Entry::description()
    },
    MANIFEST_PARSE = Entry {
        code: "manifest.parse",
        cause: "The manifest is neither TOML nor JSON, or lacks a field or has an unknown one.",
        field: "manifest",
        needed: "`qkvault-manifest = 1`, then `[[attention]]` with a `text` for each attention",
        fix: "correct the manifest, or write it again with `qkvault model --manifest`",
        ..Entry::description()
    },
    MANIFEST_VERSION = Entry {
        code: "manifest.version",
        cause: "The manifest has another version than this program reads.",
        field: "qkvault-manifest",
        ..Entry::description()
    },
    MANIFEST_FIELD = Entry {
        code: "manifest.field",
        cause: "A field of the manifest has an invalid value.",
        fix: "correct the manifest, or write it again with `qkvault model --manifest`",
        ..Entry::description()
    },
];
