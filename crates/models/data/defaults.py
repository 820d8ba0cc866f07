#!/usr/bin/env python3
"""Writes defaults.json: what transformers' configuration classes say of the fields that attention depends on.

    pip install transformers && python3 defaults.py defaults.json

For each model_type: `fields` are the defaults of its class (as declared; most null and false are left out), `names` other names of fields, `parts` nested
configs with the model_type that one without its own has. `role` says what the model is unless it is a decoder; the roles in the file that is
replaced are kept, because they were compared with what the models do (tests/zoo.rs), and a new family gets that of its auto classes.
"""
import dataclasses, json, os, re, sys

from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

HEADS = """num_attention_heads n_head n_heads num_heads attention_heads encoder_attention_heads decoder_attention_heads encoder_num_attention_heads
decoder_num_attention_heads""".split()
FIELDS = set(HEADS) | set("""
hidden_size d_model n_embd dim embed_dim emb_dim hidden_dim width true_hidden_size decoder_hidden_size encoder_hidden_size attention_hidden_size
num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers num_decoder_layers num_encoder_layers depth depths
decoder_num_hidden_layers encoder_num_hidden_layers num_attention_layers attn_layers
num_key_value_heads num_kv_heads num_key_value_groups encoder_num_key_value_heads decoder_num_key_value_heads multi_query new_decoder_architecture
num_attention_heads_per_layer num_key_value_heads_per_layer num_sliding_attention_heads num_global_key_value_heads swa_num_attention_heads
swa_num_key_value_heads cross_num_attention_heads cross_num_key_value_heads n_mamba_heads mamba_num_heads
head_dim d_kv attention_head_dim kv_channels d_head attention_head_size swa_head_dim swa_v_head_dim global_head_dim cross_head_dim
v_head_dim kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim qk_head_dim cross_hidden_size cross_attention_hidden_size
sliding_window use_sliding_window max_window_layers layer_types sliding_window_pattern global_attn_every_n_layers attention_chunk_size
no_rope_layers no_rope_layer_interval local_attention attention_window_size attention_types window_size sliding_window_size attention_type attn_type
local_layer_ids sliding_windows attention_window prefix_dense_sliding_window_pattern first_k_dense_replace num_first_full_attention_layers
num_last_full_attention_layers fullatt_block_indexes global_attn_indexes window_block_indices
query_pre_attn_scalar attention_multiplier attn_logit_softcapping scale_attn_weights scale_attn_by_inverse_layer_idx attn_scale
alibi attn_config position_embedding_type position_embeddings_type relative_attention_num_buckets has_relative_attention_bias
add_swa_attention_sink_bias add_full_attention_sink_bias attention_k_eq_v num_kv_shared_layers kv_source_layers per_layer_config
layers_block_type hybrid_override_pattern attn_layer_period attn_layer_offset attn_layer_indices full_attn_idxs full_attention_interval
layer_group_size block_types linear_attn_config hybrid_layer_ids full_attn_layers cross_attention_layers cross_layer_interval layer_type
is_decoder is_encoder_decoder add_cross_attention causal use_bidirectional_attention index_topk use_dsa sparse_attention_config
max_position_embeddings n_positions n_ctx max_seq_len vision_use_head qkv_bias
""".split())
SAID_FALSE = ("use_sliding_window", "scale_attn_weights", "attention_k_eq_v")
# A class without these does not use a window, whatever a config says.
SAID_NULL = ("sliding_window", "sliding_window_size", "attention_window_size", "window_size", "local_attention")


def names(*mappings):
    return set().union(*(getattr(auto, f"MODEL_FOR_{m}_MAPPING_NAMES") for m in mappings))


CAUSAL, MASKED, SOUND = names("CAUSAL_LM"), names("MASKED_LM"), names("AUDIO_CLASSIFICATION", "CTC")
VISION = names("IMAGE_CLASSIFICATION", "BACKBONE", "OBJECT_DETECTION", "VIDEO_CLASSIFICATION", "UNIVERSAL_SEGMENTATION")


def role(name):
    if name in VISION or re.search("vision|vit|image", name) and not re.search("^vision-|text", name):
        return "vision"
    if name in SOUND or re.search("audio|_encoder$", name) or name in MASKED and name not in CAUSAL:
        return "encoder"


def is_json(value):
    try:
        json.dumps(value)
        return True
    except TypeError:
        return False


def part(kind, name):
    usual = (getattr(kind, "sub_configs_defaults", None) or {}).get(name)
    usual = usual.get("model_type") if isinstance(usual, dict) else getattr(usual, "model_type", None)
    return usual or getattr(kind.sub_configs[name], "model_type", "") or ""


before = json.load(open(sys.argv[1])) if os.path.exists(sys.argv[1]) else {}
found = {}
for name in CONFIG_MAPPING_NAMES:
    kind, known = CONFIG_MAPPING[name], {}
    declared = ((f.name, list(f.default) if isinstance(f.default, tuple) else f.default) for f in dataclasses.fields(kind) if f.name in FIELDS)
    fields = {k: v for k, v in declared if v is not dataclasses.MISSING and (v is not None or k in SAID_NULL)
              and (v is not False or k in SAID_FALSE) and is_json(v)}
    other = {k: v for k, v in (getattr(kind, "attribute_map", None) or {}).items() if k in FIELDS and k != v}
    parts = {k: part(kind, k) for k in getattr(kind, "sub_configs", None) or {}}
    known |= {k: v for k, v in (("fields", fields), ("names", other), ("parts", parts)) if v}
    what = before[name].get("role") if name in before else role(name)
    if what:
        known["role"] = what
    if known and (parts or any(k in HEADS for k in (*fields, *other))):
        found[name] = known
lines = (f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'), sort_keys=True)}" for k, v in sorted(found.items()))
with open(sys.argv[1], "w") as file:
    file.write("{\n" + ",\n".join(lines) + "\n}\n")
print(f"{len(found)} families")
