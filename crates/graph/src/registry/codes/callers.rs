//! Models, profiles, serving policies and commands.

use crate::registry::Entry;
use crate::registry::entry::entries;

/// The fix for most faults of a model config.
const PUBLISHED: &str = "give the config.json that the model was published with";

entries![
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
    PROFILE_PARSE = Entry {
        code: "profile.parse",
        cause: "The profile file cannot be read.",
        needed: "a JSON object with name, source, verified and properties; properties are as cuDNN reports them",
        fix: "capture it again with `qkvault profile capture` on the GPU host",
        ..Entry::description()
    },
    PROFILE_FIELD = Entry {
        code: "profile.field",
        cause: "The profile lacks a field that this cuDNN version needs.",
        fix: "capture the profile again with this cuDNN, or add the field by hand",
        ..Entry::description()
    },
    TARGET_UNKNOWN = Entry {
        code: "target.unknown",
        cause: "No GPU with this name is known.",
        field: "target",
        fix: "use one of these names, or give the path of a profile file, which `qkvault profile capture` writes on a \
              GPU host",
        ..Entry::description()
    },
    SERVE_RANGE = Entry {
        code: "serve.range",
        cause: "A range of serving steps is empty or too large.",
        fix: "give sizes from 1 to 2^30; they count sequences, new tokens and keys",
        ..Entry::description()
    },
    SERVE_GROWTH = Entry {
        code: "serve.growth",
        cause: "A growth is below 2, so the plans of a serving set would not grow.",
        needed: "2 or more, or none for one plan",
        fix: "give a growth of 2 or more (the factor from one plan to the next), or none",
        ..Entry::description()
    },
    SERVE_QUERIES = Entry {
        code: "serve.queries",
        cause: "A sequence has more new tokens than keys.",
        field: "serve.queries",
        fix: "raise `keys` or lower `queries`: the keys of a sequence include its new tokens",
        ..Entry::description()
    },
    SERVE_TOKENS = Entry {
        code: "serve.tokens",
        cause: "A step has room for fewer tokens than there are sequences, or than one sequence may have new tokens.",
        field: "serve.tokens",
        fix: "raise `tokens` to at least `batch` and `queries`, or lower these",
        ..Entry::description()
    },
    SERVE_SCORE_MOD = Entry {
        code: "serve.score-mod",
        cause: "The score expression becomes too large when it counts queries by position.",
        field: "score_mod",
        needed: "an expression that fits when it counts queries by position",
        fix: "write it with `position`",
        ..Entry::description()
    },
    WARM_NOTHING = Entry {
        code: "warm.nothing",
        cause: "No attention is left to compile.",
        field: "--seq",
        needed: "at least one attention",
        fix: "give --phase, --batch and --seq that the model supports; the notes tell what was left out",
        ..Entry::description()
    },
    RUN_TRAIN = Entry {
        code: "run.train",
        cause: "A training step is requested, but this command runs only inference.",
        field: "--phase",
        needed: "prefill or decode",
        fix: "`qkvault-lab bench attentions` times both passes of a step, and `qkvault-lab selftest` checks them",
        ..Entry::description()
    },
    RUN_SERVE = Entry {
        code: "run.serve",
        cause: "Serving steps are requested, but this command runs only whole batches.",
        field: "--phase",
        needed: "prefill or decode",
        fix: "`qkvault-lab bench engines` times steps, and `qkvault-lab selftest --serving` checks them",
        ..Entry::description()
    },
    TRAINING_BACKWARD = Entry {
        code: "training.backward",
        cause: "The attention given for a training pair is a backward.",
        field: "pass",
        needed: "a forward, from which the backward is derived",
        fix: "give the forward, and put the formats of the gradients into the options",
        ..Entry::description()
    },
];
