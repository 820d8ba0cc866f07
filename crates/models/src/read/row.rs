//! What the code of a family can decide.

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
pub(super) struct FamilyRow {
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

/// The row of a family whose code decides nothing.
pub(super) const USUAL: FamilyRow = FamilyRow {
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

/// The row of a family without one.
pub(super) const fn usual() -> &'static FamilyRow {
    &USUAL
}
