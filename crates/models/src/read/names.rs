//! The names of sizes in configs.

use super::masks::Sort;
use crate::fields::FieldNames;

pub(super) const HEADS: FieldNames<'_> =
    &["num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "num_query_heads", "heads"];
pub(super) const HEADS_BY_LAYER: FieldNames<'_> = &["num_attention_heads_per_layer"];
pub(super) const KV_HEADS_BY_LAYER: FieldNames<'_> = &["num_key_value_heads_per_layer"];
pub(super) const LAYERS: FieldNames<'_> = &[
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_transformer_layers",
    "depth",
    "layers",
    "num_blocks",
];
pub(super) const DEPTHS: FieldNames<'_> = &["depths"];
pub(super) const KV_HEADS: FieldNames<'_> = &[
    "num_key_value_heads",
    "num_kv_heads",
    "n_kv_heads",
    "n_head_kv",
    "n_kv_head",
    "kv_n_heads",
    "attn_config.kv_n_heads",
    "multi_query_group_num",
    "num_query_groups",
    "num_attention_groups",
];
pub(super) const WIDTH: FieldNames<'_> =
    &["hidden_size", "d_model", "n_embd", "dim", "embed_dim", "model_dim", "emb_dim", "n_embed", "width"];
pub(super) const HEAD_DIM: FieldNames<'_> =
    &["head_dim", "attention_head_dim", "d_kv", "kv_channels", "attention_head_size", "d_head", "size_per_head"];

/// Names of one thing: a config that has several of them gives them one value.
pub(super) const ONE_VALUE: &[FieldNames<'_>] = &[
    &["num_attention_heads", "n_head", "n_heads", "num_heads"],
    &["num_hidden_layers", "n_layer", "n_layers", "num_layers"],
    &["num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv"],
    &["hidden_size", "n_embd"],
];

/// Which part of a config's names a stack reads before the usual ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameSide {
    Encoder,
    Decoder,
}

impl NameSide {
    pub(super) const fn heads(self) -> FieldNames<'static> {
        match self {
            NameSide::Encoder => {
                &["encoder_attention_heads", "encoder_num_attention_heads", "num_encoder_attention_heads"]
            }
            NameSide::Decoder => {
                &["decoder_attention_heads", "decoder_num_attention_heads", "num_decoder_attention_heads"]
            }
        }
    }

    pub(super) const fn layers(self) -> FieldNames<'static> {
        match self {
            NameSide::Encoder => &["encoder_layers", "num_encoder_layers", "encoder_num_hidden_layers"],
            NameSide::Decoder => &["decoder_layers", "num_decoder_layers", "decoder_num_hidden_layers"],
        }
    }
}

/// The names of a field in a layer of this sort: those of the sort alone, those of the side, the usual ones.
pub(super) fn names(sort: &Sort, side: NameSide, usual: FieldNames<'static>) -> Vec<&'static str> {
    let field = usual.first().copied().unwrap_or_default();
    let of_sort: &[&str] = match (sort, field) {
        (Sort::Sliding, "num_attention_heads") => &["swa_num_attention_heads", "num_sliding_attention_heads"],
        (Sort::Sliding, "num_key_value_heads") => &["swa_num_key_value_heads"],
        (Sort::Sliding, "head_dim") => &["swa_head_dim"],
        (Sort::Sliding, "v_head_dim") => &["swa_v_head_dim"],
        (Sort::Sliding, "qk_nope_head_dim") => &["swa_qk_nope_head_dim"],
        (Sort::Sliding, "qk_rope_head_dim") => &["swa_qk_rope_head_dim"],
        (Sort::Sliding, "kv_lora_rank") => &["swa_kv_lora_rank"],
        (Sort::Full, "head_dim") => &["global_head_dim"],
        (Sort::Full, "num_key_value_heads") => &["num_global_key_value_heads"],
        (Sort::Cross, "num_attention_heads") => &["cross_num_attention_heads"],
        (Sort::Cross, "num_key_value_heads") => &["cross_num_key_value_heads"],
        (Sort::Cross, "head_dim") => &["cross_head_dim"],
        _ => &[],
    };
    let of_side: &[&str] = match (side, field) {
        (_, "num_attention_heads") => side.heads(),
        (NameSide::Encoder, "num_key_value_heads") => &["encoder_num_key_value_heads"],
        (NameSide::Decoder, "num_key_value_heads") => &["decoder_num_key_value_heads"],
        (NameSide::Encoder, "hidden_size") => &["encoder_hidden_size"],
        (NameSide::Decoder, "hidden_size") => &["decoder_hidden_size"],
        _ => &[],
    };
    // A width beside the usual one is that of the other side.
    if field == "hidden_size" { [of_sort, usual, of_side].concat() } else { [of_sort, of_side, usual].concat() }
}
