//! Models, profiles, serving policies and commands: what is given beside a description.

use crate::registry::Entry;
use crate::registry::entry::entries;

/// The fix for most of what is wrong with a model config.
const PUBLISHED: &str = "give the config.json that the model was published with";

/// What the numbers of a serving policy mean.
const SIZES: &str =
    "sizes are counts of sequences, tokens and keys, and a growth is how many times larger the next plan is";

entries![
    CONFIG_JSON = Entry {
        code: "config.json",
        cause: "A model config is no JSON object.",
        field: "config",
        needed: "a JSON object with a model_type",
        fix: PUBLISHED,
        ..Entry::description()
    },
    CONFIG_FAMILY = Entry {
        code: "config.family",
        cause: "The family of the model is not known.",
        field: "model_type",
        fix: "describe the attentions in a manifest instead, or ask for the family to be added",
        ..Entry::description()
    },
    CONFIG_MISSING = Entry {
        code: "config.missing",
        cause: "A model config lacks a field.",
        fix: PUBLISHED,
        ..Entry::description()
    },
    CONFIG_FIELD = Entry {
        code: "config.field",
        cause: "A field of a model config makes no sense.",
        fix: PUBLISHED,
        ..Entry::description()
    },
    CONFIG_DTYPE = Entry {
        code: "config.dtype",
        cause: "A model config names an element type that attention has not.",
        needed: "bfloat16, float16 or float32",
        fix: PUBLISHED,
        ..Entry::description()
    },
    CONFIG_PREFIX_LM = Entry {
        code: "config.prefix-lm",
        cause: "A model config asks for prefix attention, and does not say how long prefixes are.",
        field: "attn_config.prefix_lm",
        needed: "causal attention; how long the prefix of each sequence is, a config does not say",
        fix: "describe the attentions yourself, with the predicate library::prefix_lm and the lengths of the prefixes \
              as a tensor",
        ..Entry::description()
    },
    CONFIG_HEAD_DIM = Entry {
        code: "config.head-dim",
        cause: "The width of a model is no multiple of its heads.",
        needed: "a width that the heads share evenly, or a head_dim",
        fix: "give head_dim in the config",
        ..Entry::description()
    },
    MODEL_PHASE = Entry {
        code: "model.phase",
        cause: "The model does not have the phase.",
        field: "phase",
        needed: "only models that generate one token at a time decode and keep their keys",
        fix: "use --phase prefill",
        ..Entry::description()
    },
    MODEL_SERVE = Entry {
        code: "model.serve",
        cause: "A set of plans for serving is asked for with one batch and one length.",
        field: "phase",
        needed: "a set of plans: sizes follow from the ranges of an engine's steps",
        fix: "use LayerKind::serving and serving::Buckets",
        ..Entry::description()
    },
    MODEL_SCORE_MOD = Entry {
        code: "model.score-mod",
        cause: "The score expression of a model is not well typed.",
        field: "score_mod",
        needed: "a well-typed expression",
        fix: "correct the field of the config that the expression is made of",
        ..Entry::description()
    },
    PROFILE_PARSE = Entry {
        code: "profile.parse",
        cause: "A profile file cannot be read.",
        needed: "a profile is a JSON object with name, source, verified and properties, the last as cuDNN reports them",
        fix: "capture it again with `qkvault profile capture` on the GPU host",
        ..Entry::description()
    },
    PROFILE_FIELD = Entry {
        code: "profile.field",
        cause: "A profile lacks a field that the cuDNN version needs.",
        fix: "capture the profile again with this cuDNN, or add the field by hand",
        ..Entry::description()
    },
    TARGET_UNKNOWN = Entry {
        code: "target.unknown",
        cause: "No GPU of that name is known.",
        field: "target",
        fix: "or give the path of a profile file; `qkvault profile capture` writes one on a GPU host",
        ..Entry::description()
    },
    SERVE_RANGE = Entry {
        code: "serve.range",
        cause: "A range of serving steps is empty or too large.",
        fix: SIZES,
        ..Entry::description()
    },
    SERVE_GROWTH = Entry {
        code: "serve.growth",
        cause: "The plans of a serving set would not grow.",
        needed: "2 or more, or none for one plan",
        fix: SIZES,
        ..Entry::description()
    },
    SERVE_QUERIES = Entry {
        code: "serve.queries",
        cause: "A sequence has more new tokens than keys.",
        field: "serve.queries",
        fix: SIZES,
        ..Entry::description()
    },
    SERVE_TOKENS = Entry {
        code: "serve.tokens",
        cause: "A step has fewer tokens than sequences, or more than they can have.",
        field: "serve.tokens",
        fix: SIZES,
        ..Entry::description()
    },
    SERVE_SCORE_MOD = Entry {
        code: "serve.score-mod",
        cause: "A score expression is too large when queries are counted by position.",
        field: "score_mod",
        needed: "an expression that fits when queries are counted by position",
        fix: "write it with `position`",
        ..Entry::description()
    },
    WARM_NOTHING = Entry {
        code: "warm.nothing",
        cause: "Nothing is left to compile.",
        field: "--seq",
        needed: "at least one attention",
        fix: "give --phase, --batch and --seq that the model is made for; the notes say what was left out",
        ..Entry::description()
    },
    RUN_TRAIN = Entry {
        code: "run.train",
        cause: "A training step is asked for where only inference is run.",
        field: "--phase",
        needed: "prefill or decode",
        fix: "`qkvault-lab bench` times both passes of a step, and `qkvault-lab selftest` checks them",
        ..Entry::description()
    },
    RUN_SERVE = Entry {
        code: "run.serve",
        cause: "Steps of an engine are asked for where only whole batches are run.",
        field: "--phase",
        needed: "prefill or decode",
        fix: "`qkvault-lab bench-serving` times steps, and `qkvault-lab selftest --serving` checks them",
        ..Entry::description()
    },
    TRAINING_BACKWARD = Entry {
        code: "training.backward",
        cause: "A pair for training was given a backward.",
        field: "pass",
        needed: "a forward, from which the backward follows",
        fix: "give the forward; the gradients' formats go into the options",
        ..Entry::description()
    },
];
