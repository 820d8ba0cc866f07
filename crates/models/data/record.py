#!/usr/bin/env python3
"""Records what attention transformers' models make, for tests/data/zoo.json.

    pip install torch transformers && python3 record.py FAMILIES.json ../tests/data/zoo.json

FAMILIES.json is a recording of causal language models by other means, which the tests hold apart ("zoo"); every other family that
AutoModelForCausalLM and AutoModel make from the default config of its class is recorded here ("more"). Each model runs once on the meta
device, with an attention function that writes down its arguments; masks are sampled from the model's own mask function.

    python3 record.py ../tests/data/variants.json

records the configs of that file anew.
"""
import json, re, sys, warnings

warnings.filterwarnings("ignore")
import torch
import transformers
import transformers.masking_utils as masking
from transformers import AutoModel, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

transformers.logging.set_verbosity_error()
torch.set_default_dtype(torch.bfloat16)
TOKENS = 16
calls, masks_are_tensors = [], False


def number(x):
    return x if x is None or isinstance(x, (int, float, bool)) else "tensor"


def attention(module, query, key, value, attention_mask, scaling=None, sliding_window=None, softcap=None, s_aux=None, **rest):
    mask = attention_mask if isinstance(attention_mask, dict) else None
    calls.append(({"q": list(query.shape), "k": list(key.shape), "v": list(value.shape), "scaling": number(scaling), "softcap": number(softcap),
                   "sliding_window": number(sliding_window), "sinks": None if s_aux is None else list(s_aux.shape), "mask": mask},
                  getattr(module, "layer_idx", None)))
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None


def mask(mask_function=None, **rest):
    if masks_are_tensors:
        return torch.zeros(1, 1, TOKENS, TOKENS, device="meta")
    local, pairs = rest.get("local_size"), []
    at = sorted({0, 1, 7, 100, 500} | ({local - 1, local, local + 1, 2 * local + 3} if local else set()))
    with torch.device("cpu"):
        for q in at:
            near = {max(q - local, 0), max(q - local + 1, 0)} if local else set()
            for k in sorted(set(at) | {max(q - 1, 0), q + 1} | near):
                try:
                    seen = mask_function(*map(torch.tensor, (0, 0, q, k))) if mask_function else True
                    pairs.append([q, k, bool(seen)])
                except Exception:
                    return {"unknown": True, "local_size": local}
    return {"local_size": local, "pairs": pairs}


transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS.register("written_down", attention)
masking.ALL_MASK_ATTENTION_FUNCTIONS.register("written_down", mask)
masking.find_packed_sequence_indices = lambda positions: None


def inputs(model, config, causal):
    tokens = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
    main = getattr(model, "main_input_name", "input_ids")
    if causal or main not in ("pixel_values", "input_features", "input_values"):
        given = {"input_ids": tokens} | ({"use_cache": False} if causal else {})
    elif main == "pixel_values":
        vision = next((getattr(config, n) for n in ("vision_config", "vit_config") if hasattr(config, n)), config)
        size = getattr(vision, "image_size", 224)
        size = size if isinstance(size, (list, tuple)) else [size, size]
        given = {main: torch.zeros(1, getattr(vision, "num_channels", 3) or 3, *size[:2], device="meta")}
    elif main == "input_features":
        frames = 2 * getattr(config, "max_source_positions", 1500)
        given = {main: torch.zeros(1, getattr(config, "num_mel_bins", 80), frames, device="meta")}
    else:
        given = {main: torch.zeros(1, 32000, device="meta")}
    if not causal and getattr(config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = tokens
    if not causal and main == "pixel_values" and hasattr(config, "text_config"):
        given["input_ids"] = tokens
    return given


def record(config, causal):
    global masks_are_tensors
    saved = json.loads(json.dumps(config.to_dict(), default=str))
    try:
        text = config.get_text_config()
    except Exception:
        text = config
    if isinstance(getattr(text, "vocab_size", None), int):
        text.vocab_size = min(text.vocab_size, 1000)
    for token in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if isinstance(getattr(text, token, None), int) and getattr(text, token) >= getattr(text, "vocab_size", 1000):
            setattr(text, token, 0)
    # Some models add the mask to something before the attention function has it.
    for masks_are_tensors in (False, True):
        calls.clear()
        try:
            with torch.device("meta"), torch.no_grad():
                model = (AutoModelForCausalLM if causal else AutoModel).from_config(config, attn_implementation="written_down")
                model(**inputs(model, config, causal))
            break
        except Exception:
            if masks_are_tensors:
                raise
    kinds = {}
    for call, layer in calls:
        kinds.setdefault(json.dumps(call, sort_keys=True), []).append(layer)
    return {"config": saved, "calls": [{"times": len(at), "at": at, **json.loads(call)} for call, at in kinds.items()]}


# Fields that no attention depends on, left out to keep the file small.
DROP = re.compile(
    r"token|dropout|drop_rate|eps$|epsilon|initializer|id2label|label2id|(^|_)act$|act_fn|activation|^_|^architectures$|^output_|return_dict"
    r"|chunk_size_feed_forward|problem_type|^torch|^transformers|use_cache|tie_|vocab|intermediate|expert|^moe|moe_|router|_loss|_index$"
    r"|norm(_|$)|mamba_|bias$|^dtype$|layerdrop|mlp_layer_types|mlp_only|_std$|^is_gated|image_|patch|projector|projection|codebook"
    r"|mask_(time|feature)|num_labels|classifier|conv_|kernel|ffn|^prompt|speaker|audio_.*_id|time_step|label")
masks = []


def slim(config):
    return {k: slim(v) for k, v in config.items() if not DROP.search(k)} if isinstance(config, dict) else config


def short(call):
    out = {"times": call["times"], "q": call["q"][1::2], "k": call["k"][1::2], "v": call["v"][3], "scaling": call["scaling"]}
    out |= {to: call[of] for of, to in (("sliding_window", "window"), ("softcap", "softcap")) if call[of]}
    if call["sinks"]:
        out["sinks"] = call["sinks"][0]
    mask = call["mask"]
    if isinstance(mask, dict):
        mask = {"local_size": mask["local_size"], "unknown": True} if "unknown" in mask else mask
        if mask not in masks:
            masks.append(mask)
        out["mask"] = masks.index(mask)
    at = call.get("at", [])
    if at and all(isinstance(i, int) and i >= 0 for i in at) and len(set(at)) == len(at) and at != list(range(len(at))):
        out["at"] = at
    return out


def family(found):
    return {"calls": [short(call) for call in found["calls"]], "config": slim(found["config"])}


def lines(found):
    return "{\n" + ",\n".join(f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in sorted(found.items())) + "\n}"


given = json.load(open(sys.argv[1]))
if "variants" in given:
    for name, variant in given["variants"].items():
        said = dict(variant["config"])
        found = record(CONFIG_MAPPING[said.pop("model_type")](**said), True)
        given["variants"][name] = {"calls": [short(call) for call in found["calls"]], "config": variant["config"]}
    with open(sys.argv[1], "w") as file:
        dense = json.dumps(masks, separators=(",", ":"))
        file.write(f'{{"masks":{dense},\n"variants":{lines(given["variants"])}}}\n')
    sys.exit(f"{len(given['variants'])} variants")
zoo = {name: family(found) for name, found in given["families"].items()}
more = {}
for causal, names in ((True, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES), (False, CONFIG_MAPPING)):
    for name in names:
        if name in zoo and not causal or name in more:
            continue
        try:
            found = record(CONFIG_MAPPING[name](), causal)
        except BaseException as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
            continue
        if not found["calls"] or any(not isinstance(call["scaling"], (int, float)) for call in found["calls"]):
            continue
        if name not in zoo:
            more[name] = family(found)
            continue
        # The recording of the zoo does not say which layers make a call.
        for call in zoo[name]["calls"]:
            same = [c for c in map(short, found["calls"]) if all(c.get(k) == call.get(k) for k in ("times", "q", "k", "v", "window", "mask"))]
            call |= {"at": c["at"] for c in same if "at" in c}
with open(sys.argv[2], "w") as file:
    dense = json.dumps(masks, separators=(",", ":"))
    file.write(f'{{"transformers":{json.dumps(given["transformers"])},\n"masks":{dense},\n"zoo":{lines(zoo)},\n"more":{lines(more)}}}\n')
print(f"{len(zoo)} and {len(more)} families")
