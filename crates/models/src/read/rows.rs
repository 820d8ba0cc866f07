//! What the code of a family decides and its config does not say.
//!
//! Every row was compared with what transformers' own model does: `tests/zoo.rs`.

use super::row::{FamilyRow, Scale, Sink, USUAL, Windows};

const SCALED_BEFORE: &str =
    "the code scales the queries by 1 / sqrt(head dim) before the attention, whose own scale is 1";

const NORMALIZED: &str = "the code normalizes queries and keys, and its scale is 1";

const ROWS: &[FamilyRow] = &[
    FamilyRow { families: &["gpt_oss"], sink: Sink::All, period: "sf", ..USUAL },
    FamilyRow { families: &["granite_swa", "granitemoe_swa"], sink: Sink::All, period: "fsss", ..USUAL },
    FamilyRow { families: &["flint"], sink: Sink::All, period: "sfss", first: "ff", last_full: true, ..USUAL },
    FamilyRow { families: &["hy_v4"], sink: Sink::All, period: "i", ..USUAL },
    FamilyRow {
        families: &["mimo_v2_flash"],
        sink: Sink::Sliding,
        period: "sssssf",
        first: "f",
        sliding_kv: 2,
        ..USUAL
    },
    FamilyRow { families: &["openai_privacy_filter"], sink: Sink::All, scale: Scale::One, ..USUAL },
    FamilyRow { families: &["gemma2", "vaultgemma", "t5_gemma_module"], period: "sf", ..USUAL },
    FamilyRow { families: &["gemma3_text"], period: "sssssf", no_softcap: true, ..USUAL },
    FamilyRow {
        families: &["t5gemma2_text", "t5gemma2_encoder", "t5gemma2_decoder"],
        period: "sssssf",
        no_softcap: true,
        ..USUAL
    },
    FamilyRow { families: &["qwen3_moe", "qwen3_vl_moe_text"], windows: Windows::All, ..USUAL },
    FamilyRow { families: &["qwen2_moe"], windows: Windows::EarlyEven, ..USUAL },
    FamilyRow { families: &["smollm3"], windows: Windows::NoRope, ..USUAL },
    FamilyRow {
        families: &["gemma4_text", "gemma4_unified_text", "diffusion_gemma_text"],
        scale: Scale::One,
        period: "sssssf",
        last_full: true,
        full_dims: Some((512, 0)),
        note: NORMALIZED,
        ..USUAL
    },
    FamilyRow {
        families: &["embedding_gemma2_text"],
        scale: Scale::One,
        period: "sssssf",
        last_full: true,
        full_dims: Some((512, 1)),
        note: NORMALIZED,
        ..USUAL
    },
    FamilyRow { families: &["minicpm3"], v_from_width: true, ..USUAL },
    FamilyRow {
        families: &["deepseek_v4"],
        undescribed: "keys of a window stand beside sums of older keys, some of which the layer chooses",
        ..USUAL
    },
    FamilyRow { families: &["gemma3n_text"], scale: Scale::One, period: "ssssf", ..USUAL },
    FamilyRow { families: &["beam"], period: "sssssf", last_full: true, ..USUAL },
    FamilyRow { families: &["cohere2", "olmo3", "exaone4", "exaone_moe"], period: "sssf", ..USUAL },
    FamilyRow { families: &["cohere2_moe"], period: "sssf", dense_first: true, ..USUAL },
    FamilyRow { families: &["cwm"], period: "fsss", ..USUAL },
    FamilyRow { families: &["kolibri1"], period: "ssssf", ..USUAL },
    FamilyRow { families: &["lfm3"], period: "svfv", first: "vv", ..USUAL },
    FamilyRow { families: &["llama4_text"], period: "cccf", ..USUAL },
    FamilyRow { families: &["minimax"], period: "fm", ..USUAL },
    FamilyRow { families: &["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"], period: "mmmf", ..USUAL },
    FamilyRow { families: &["kimi_linear"], period: "fmmm", first: "m", no_yarn: true, ..USUAL },
    FamilyRow { families: &["dots3_note_text"], no_yarn: true, ..USUAL },
    FamilyRow { families: &["qwen2_vl_vision"], width: "embed_dim", ..USUAL },
    FamilyRow { families: &["mobilebert"], width: "true_hidden_size", ..USUAL },
    FamilyRow { families: &["granitemoehybrid", "bamba"], period: "m", ..USUAL },
    FamilyRow {
        families: &["modernbert", "modernbert-decoder", "modernvbert"],
        global_first: true,
        period: "fss",
        ..USUAL
    },
    FamilyRow { families: &["inkling_text"], scale: Scale::Inverse, period: "sssssf", position_bias: true, ..USUAL },
    FamilyRow { families: &["inkling2_text"], period: "sssssf", position_bias: true, ..USUAL },
    FamilyRow {
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
    FamilyRow { families: &["gpt_neo"], scale: Scale::One, note: "the code does not scale the scores", ..USUAL },
    FamilyRow {
        families: &["t5", "mt5", "umt5", "switch_transformers", "pop2piano", "udop"],
        scale: Scale::One,
        position_bias: true,
        ..USUAL
    },
    FamilyRow {
        families: &["longt5"],
        scale: Scale::One,
        position_bias: true,
        undescribed_encoder: "a query sees a window of blocks, and sums of the others",
        ..USUAL
    },
    FamilyRow { families: &["mpnet", "cpmant"], position_bias: true, ..USUAL },
    FamilyRow { families: &["bloom"], alibi: true, ..USUAL },
    FamilyRow { families: &["falcon"], kv_heads_only_if_grouped: true, alibi_scaled: true, ..USUAL },
    FamilyRow { families: &["RefinedWeb", "RefinedWebModel"], alibi_scaled: true, ..USUAL },
    FamilyRow { families: &["glm4_moe", "glm4v_moe_text", "qwen3_omni_moe_text"], floors: true, ..USUAL },
    FamilyRow { families: &["moshi"], no_window: true, ..USUAL },
    FamilyRow { families: &["recurrent_gemma"], attention_slides: true, ..USUAL },
    FamilyRow { families: &["zamba", "zamba2"], scale: Scale::HalfDim, widths: 2, ..USUAL },
    FamilyRow {
        families: &["diffllama"],
        per_layer: 2,
        note: "differential attention: each layer subtracts the output of its second attention from that of its first",
        ..USUAL
    },
    FamilyRow { families: &["longcat_flash"], per_layer: 2, ..USUAL },
    FamilyRow { families: &["falcon_h1"], beside: "mamba", ..USUAL },
    FamilyRow {
        families: &["longformer", "led", "bigbird_pegasus", "pegasus_x"],
        undescribed_encoder: "a query sees a window, global tokens and sometimes random ones",
        ..USUAL
    },
    FamilyRow {
        families: &["nystromformer", "yoso", "funnel", "convbert"],
        undescribed: "its code approximates or pools attention in a way of its own",
        ..USUAL
    },
    FamilyRow {
        families: &["doge"],
        undescribed: "dynamic mask attention chooses the keys of each head from the values at run time",
        ..USUAL
    },
    FamilyRow {
        families: &["xlnet", "deberta", "deberta-v2", "reformer", "transfo-xl"],
        undescribed: "the scores depend on distances through projections that attention does not describe",
        ..USUAL
    },
    FamilyRow {
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
pub(super) fn for_family(family: &str) -> Option<&'static FamilyRow> {
    ROWS.iter().find(|row| row.families.contains(&family))
}
