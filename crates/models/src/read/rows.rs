//! What the code of a family decides and its config does not say.
//!
//! Every row was compared with what transformers' own model does: `tests/zoo.rs`.

/// How the softmax scale follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// From the fields of the config; without any, 1 / sqrt(head dim).
    Fields,
    /// 1: the code scales the queries before, or not at all.
    One,
    /// 1 / head dim.
    Inverse,
    /// 1 / sqrt(head dim / 2).
    HalfDim,
}

/// Which layers have the window, if no list says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Windows {
    /// What the fields of the config say: those from `max_window_layers` on.
    Fields,
    /// All, whatever `max_window_layers` says.
    All,
    /// Every second one before `max_window_layers`.
    EarlyEven,
    /// Those without rotary positions.
    NoRope,
}

/// Which layers have sinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sink {
    None,
    All,
    /// Only layers with a sliding window.
    Sliding,
}

/// What the code of some families decides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// The values of `model_type`.
    pub(super) families: &'static [&'static str],
    pub(super) scale: Scale,
    pub(super) sink: Sink,
    /// The sorts of layers if the config lists none, repeated: see [`super::pattern`].
    pub(super) period: &'static str,
    /// Sorts of the first layers, instead of the period's.
    pub(super) first: &'static str,
    /// Whether the last layer is full in any case.
    pub(super) last_full: bool,
    /// Whether the period is counted from the last layer.
    pub(super) from_end: bool,
    /// Whether the first of every n layers is the global one, not the last.
    pub(super) global_first: bool,
    /// Added to the window of the config.
    pub(super) wider: i64,
    pub(super) windows: Windows,
    /// Whether a config with `attn_logit_softcapping` has no softcap all the same.
    pub(super) no_softcap: bool,
    /// Whether YaRN does not change the scale of latent attention.
    pub(super) no_yarn: bool,
    /// Whether the period of the windows begins anew behind the first dense layers, which have one of their own.
    pub(super) dense_first: bool,
    /// Whether the window of the config is never used.
    pub(super) no_window: bool,
    /// How many times more key/value heads layers with a sliding window have.
    pub(super) sliding_kv: i64,
    /// Whether the number of key/value heads counts only if `new_decoder_architecture` is set.
    pub(super) kv_heads_only_if_grouped: bool,
    /// Whether a width that is no multiple of the heads is rounded down.
    pub(super) floors: bool,
    /// The field that the heads have together, if it is another than the model's width.
    pub(super) width: &'static str,
    /// How many times the model's width the heads have together, if the config has no head dim.
    pub(super) widths: i64,
    /// Head dim and key/value heads (0: those of the others) of full layers, if the config does not say.
    pub(super) full_dims: Option<(i64, i64)>,
    /// Whether latent attention without a `v_head_dim` has that of the model's width.
    pub(super) v_from_width: bool,
    /// Whether layers that the config calls attention have the window.
    pub(super) attention_slides: bool,
    /// How many attentions each layer has.
    pub(super) per_layer: usize,
    pub(super) position_bias: bool,
    /// Whether the code uses ALiBi whatever the config says.
    pub(super) alibi: bool,
    /// Whether the code multiplies ALiBi by the softmax scale.
    pub(super) alibi_scaled: bool,
    /// Whether the model has no softmax attention.
    pub(super) no_attention: bool,
    /// Why the attention of the family cannot be described; empty if it can.
    pub(super) undescribed: &'static str,
    /// The same of its encoder alone.
    pub(super) undescribed_encoder: &'static str,
    /// What every layer has besides.
    pub(super) beside: &'static str,
    /// What a user should know.
    pub(super) note: &'static str,
}

const USUAL: Row = Row {
    families: &[],
    scale: Scale::Fields,
    sink: Sink::None,
    period: "",
    first: "",
    last_full: false,
    from_end: false,
    global_first: false,
    wider: 0,
    windows: Windows::Fields,
    no_softcap: false,
    no_yarn: false,
    dense_first: false,
    no_window: false,
    sliding_kv: 1,
    kv_heads_only_if_grouped: false,
    floors: false,
    width: "",
    widths: 1,
    full_dims: None,
    v_from_width: false,
    attention_slides: false,
    per_layer: 1,
    position_bias: false,
    alibi: false,
    alibi_scaled: false,
    no_attention: false,
    undescribed: "",
    undescribed_encoder: "",
    beside: "",
    note: "",
};

const SCALED_BEFORE: &str =
    "the code scales the queries by 1 / sqrt(head dim) before the attention, whose own scale is 1";

const NORMALIZED: &str = "the code normalizes queries and keys, and its scale is 1";

const ROWS: &[Row] = &[
    Row { families: &["gpt_oss"], sink: Sink::All, period: "sf", ..USUAL },
    Row { families: &["granite_swa", "granitemoe_swa"], sink: Sink::All, period: "fsss", ..USUAL },
    Row { families: &["flint"], sink: Sink::All, period: "sfss", first: "ff", last_full: true, ..USUAL },
    Row { families: &["hy_v4"], sink: Sink::All, period: "i", ..USUAL },
    Row { families: &["mimo_v2_flash"], sink: Sink::Sliding, period: "sssssf", first: "f", sliding_kv: 2, ..USUAL },
    Row { families: &["openai_privacy_filter"], sink: Sink::All, scale: Scale::One, ..USUAL },
    Row { families: &["gemma2", "vaultgemma", "t5_gemma_module"], period: "sf", ..USUAL },
    Row { families: &["gemma3_text"], period: "sssssf", no_softcap: true, ..USUAL },
    Row {
        families: &["t5gemma2_text", "t5gemma2_encoder", "t5gemma2_decoder"],
        period: "sssssf",
        no_softcap: true,
        ..USUAL
    },
    Row { families: &["qwen3_moe", "qwen3_vl_moe_text"], windows: Windows::All, ..USUAL },
    Row { families: &["qwen2_moe"], windows: Windows::EarlyEven, ..USUAL },
    Row { families: &["smollm3"], windows: Windows::NoRope, ..USUAL },
    Row {
        families: &["gemma4_text", "gemma4_unified_text", "diffusion_gemma_text"],
        scale: Scale::One,
        period: "sssssf",
        last_full: true,
        full_dims: Some((512, 0)),
        note: NORMALIZED,
        ..USUAL
    },
    Row {
        families: &["embedding_gemma2_text"],
        scale: Scale::One,
        period: "sssssf",
        last_full: true,
        full_dims: Some((512, 1)),
        note: NORMALIZED,
        ..USUAL
    },
    Row { families: &["minicpm3"], v_from_width: true, ..USUAL },
    Row {
        families: &["deepseek_v4"],
        undescribed: "keys of a window stand beside sums of older keys, some of which the layer chooses",
        ..USUAL
    },
    Row { families: &["gemma3n_text"], scale: Scale::One, period: "ssssf", ..USUAL },
    Row { families: &["beam"], period: "sssssf", last_full: true, ..USUAL },
    Row { families: &["cohere2", "olmo3", "exaone4", "exaone_moe"], period: "sssf", ..USUAL },
    Row { families: &["cohere2_moe"], period: "sssf", dense_first: true, ..USUAL },
    Row { families: &["cwm"], period: "fsss", ..USUAL },
    Row { families: &["kolibri1"], period: "ssssf", ..USUAL },
    Row { families: &["lfm3"], period: "svfv", first: "vv", ..USUAL },
    Row { families: &["llama4_text"], period: "cccf", ..USUAL },
    Row { families: &["minimax"], period: "fm", ..USUAL },
    Row { families: &["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"], period: "mmmf", ..USUAL },
    Row { families: &["kimi_linear"], period: "fmmm", first: "m", no_yarn: true, ..USUAL },
    Row { families: &["dots3_note_text"], no_yarn: true, ..USUAL },
    Row { families: &["qwen2_vl_vision"], width: "embed_dim", ..USUAL },
    Row { families: &["mobilebert"], width: "true_hidden_size", ..USUAL },
    Row { families: &["granitemoehybrid", "bamba"], period: "m", ..USUAL },
    Row { families: &["modernbert", "modernbert-decoder", "modernvbert"], global_first: true, period: "fss", ..USUAL },
    Row { families: &["inkling_text"], scale: Scale::Inverse, period: "sssssf", position_bias: true, ..USUAL },
    Row { families: &["inkling2_text"], period: "sssssf", position_bias: true, ..USUAL },
    Row {
        families: &[
            "opt",
            "whisper",
            "qwen2_audio_encoder",
            "voxtral_encoder",
            "moss_transcribe_diarize_audio",
            "kosmos_2_5_text_model",
            "dia_encoder",
            "dia_decoder",
        ],
        scale: Scale::One,
        note: SCALED_BEFORE,
        ..USUAL
    },
    Row { families: &["gpt_neo"], scale: Scale::One, note: "the code does not scale the scores", ..USUAL },
    Row {
        families: &["t5", "mt5", "umt5", "switch_transformers", "pop2piano", "udop"],
        scale: Scale::One,
        position_bias: true,
        ..USUAL
    },
    Row {
        families: &["longt5"],
        scale: Scale::One,
        position_bias: true,
        undescribed_encoder: "a query sees a window of blocks, and sums of the others",
        ..USUAL
    },
    Row { families: &["mpnet", "cpmant"], position_bias: true, ..USUAL },
    Row { families: &["bloom"], alibi: true, ..USUAL },
    Row { families: &["falcon"], kv_heads_only_if_grouped: true, alibi_scaled: true, ..USUAL },
    Row { families: &["RefinedWeb", "RefinedWebModel"], alibi_scaled: true, ..USUAL },
    Row { families: &["glm4_moe", "glm4v_moe_text", "qwen3_omni_moe_text"], floors: true, ..USUAL },
    Row { families: &["moshi"], no_window: true, ..USUAL },
    Row { families: &["recurrent_gemma"], attention_slides: true, ..USUAL },
    Row { families: &["zamba", "zamba2"], scale: Scale::HalfDim, widths: 2, ..USUAL },
    Row {
        families: &["diffllama"],
        per_layer: 2,
        note: "differential attention: each layer subtracts the output of its second attention from that of its first",
        ..USUAL
    },
    Row { families: &["longcat_flash"], per_layer: 2, ..USUAL },
    Row { families: &["falcon_h1"], beside: "mamba", ..USUAL },
    Row {
        families: &["longformer", "led", "bigbird_pegasus", "pegasus_x"],
        undescribed_encoder: "a query sees a window, global tokens and sometimes random ones",
        ..USUAL
    },
    Row {
        families: &["nystromformer", "yoso", "funnel", "convbert"],
        undescribed: "its code approximates or pools attention in a way of its own",
        ..USUAL
    },
    Row {
        families: &["doge"],
        undescribed: "dynamic mask attention chooses the keys of each head from the values at run time",
        ..USUAL
    },
    Row {
        families: &["xlnet", "deberta", "deberta-v2", "reformer", "transfo-xl"],
        undescribed: "the scores depend on distances through projections that attention does not describe",
        ..USUAL
    },
    Row {
        families: &["mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm", "fnet", "bit", "convnext", "resnet"],
        no_attention: true,
        ..USUAL
    },
];

/// Families whose code lets the tokens of an image, or of a prompt, see each other if the caller marks them.
pub(super) const TWO_WAYS: &[&str] = &[
    "gemma3",
    "gemma4",
    "gemma4_unified",
    "diffusion_gemma",
    "paligemma",
    "molmo2",
    "git",
    "deepseek_ocr2",
    "unlimited_ocr",
    "hrm_text",
];

/// What the code of a family decides, if it decides something.
pub(super) fn of(family: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.families.contains(&family))
}

/// The usual row.
pub(super) const fn usual() -> &'static Row {
    &USUAL
}
