"""Models of transformers with random weights through `attn_implementation="qkvault"`, beside eager and SDPA.

    python3 card_transformers.py --out FOLDER [--only NAMES] [--cpu] [--seconds 500]

For each model: logits without padding, with padding in front of the tokens and behind them, against eager in float32;
gradients with checkpointing against eager; greedy tokens with a dynamic and a static cache, tokens per second, and how
many plans were built while they were generated. Writes transformers.json; the exit code is 1 if a number is wrong.
"""

import argparse
import json
import logging
import os
import pathlib
import sys
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
warnings.filterwarnings("ignore")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers

import qkvault.torch as qt

#: What all configurations are given, as far as they know the words.
SMALL = {
    "vocab_size": 96, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": None, "tie_word_embeddings": False, "use_cache": True, "attention_dropout": 0.0, "attn_pdrop": 0.0,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "dropout": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_experts": 4, "moe_intermediate_size": 64}
LATENT = {
    "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64,
    "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "num_key_value_heads": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
}  # fmt: skip
#: Classes, and what else their configurations are given.
MODELS = {
    "Llama": {}, "Mistral": {"sliding_window": 9}, "Mixtral": EXPERTS, "Qwen2": {}, "Qwen2Moe": EXPERTS, "Qwen3": {},
    "Qwen3Moe": EXPERTS, "Gemma": {}, "Gemma2": {"sliding_window": 9, "query_pre_attn_scalar": 32},
    "Gemma3": {"sliding_window": 9, "config": "Gemma3TextConfig"}, "Phi": {}, "Phi3": {}, "Phimoe": EXPERTS,
    "Cohere": {}, "Cohere2": {"sliding_window": 9}, "Olmo": {}, "Olmo2": {}, "Olmo3": {"sliding_window": 9},
    "Olmoe": EXPERTS, "StableLm": {}, "Starcoder2": {}, "GPTNeoX": {}, "Granite": {}, "GraniteMoe": EXPERTS,
    "GptOss": {**EXPERTS, "sliding_window": 9}, "Glm": {}, "Glm4": {}, "SmolLM3": {}, "Nemotron": {}, "Helium": {},
    "Persimmon": {}, "Exaone4": {"sliding_window": 9, "sliding_window_pattern": 2}, "Ernie4_5": {}, "Arcee": {},
    "Apertus": {}, "SeedOss": {}, "Dots1": {**EXPERTS, **LATENT, "num_key_value_heads": 2},
    "HunYuanDenseV1": {}, "DeepseekV3": LATENT, "DeepseekV2": LATENT,
    "GPTNeo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 9},
    "Llama4": {
        **EXPERTS, "config": "Llama4TextConfig", "intermediate_size_mlp": 128, "attention_chunk_size": 8,
        "interleave_moe_layer_step": 2, "no_rope_layers": [1, 1],
    },
    "Ministral": {"sliding_window": 9}, "MiniMax": EXPERTS, "Lfm2": {}, "Jais2": {}, "Doge": {}, "OPT": {}, "GPT2": {},
    "GPTBigCode": {}, "Bloom": {}, "VaultGemma": {"sliding_window": 9},
}  # fmt: skip
TOKENS, NEW = 40, 24


def made(name, more):
    """A model with random weights; the same for the same name."""
    more = dict(more)
    config = getattr(transformers, more.pop("config", f"{name}Config"))
    words = {**SMALL, **more}
    known = config(**{k: v for k, v in words.items() if v is not None})
    known.eos_token_id = None
    torch.manual_seed(5)
    known._attn_implementation = "eager"
    kind = getattr(transformers, f"{name}ForCausalLM", None) or getattr(transformers, f"{name}LMHeadModel")
    return kind(known)


def off(a, b):
    """The median over tokens: where a router is near a tie, one token takes another expert."""
    a, b = a.detach().double().flatten(0, -2), b.detach().double().flatten(0, -2)
    if not torch.isfinite(a).all():
        return float("inf")
    return ((a - b).norm(dim=-1) / b.norm(dim=-1).clamp(min=1e-9)).median().item()


class Built(logging.Handler):
    """Counts the plans that calls build, which the door logs."""

    def __init__(self):
        super().__init__()
        self.count, self.told = 0, []

    def emit(self, record):
        text = record.getMessage()
        if text.startswith("built the plan"):
            self.count += 1
        else:
            self.told.append(text[:160])


BUILT = Built()
#: Calls of the attention function by models.
CALLS = [0]


def counting():
    """Counts the calls that reach qkvault: a model that has its own attention makes none."""
    from qkvault.torch import _transformers

    attend = _transformers.attention

    def attention(*given, **options):
        if not torch.compiler.is_compiling():  # It would be a new program for each number.
            CALLS[0] += 1
        return attend(*given, **options)

    _transformers.attention = attention


def logits(model, device, row):
    """Logits of three kinds of padding beside eager in float32."""
    torch.manual_seed(6)
    tokens = torch.randint(2, 90, (2, TOKENS), device=device)
    exact = model.float()
    masks = {"none": torch.ones_like(tokens), "left": torch.ones_like(tokens), "right": torch.ones_like(tokens)}
    masks["left"][0, :7], masks["right"][0, -7:] = 0, 0
    for kind, mask in masks.items():
        given = {} if kind == "none" else {"attention_mask": mask}
        exact.set_attn_implementation("eager")
        wanted = exact.float()(tokens, **given).logits[mask.bool()]
        half, errors = model.to(torch.bfloat16), {}
        for way in ("eager", "sdpa", "qkvault"):
            try:
                half.set_attn_implementation(way)
                errors[way] = round(off(half(tokens, **given).logits[mask.bool()], wanted), 5)
            except Exception as error:
                errors[way] = f"{type(error).__name__}: {str(error)[:120]}"
        row[f"logits, {kind} padded"] = errors
        exact = model.float()


def gradients(model, device, row):
    """Gradients with checkpointing, beside eager."""
    tokens = torch.randint(2, 90, (2, TOKENS), device=device)
    found = {}
    model.to(torch.bfloat16).train()
    for way, reentrant in (("eager", None), ("sdpa", None), ("qkvault", None), ("qkvault", False), ("qkvault", True)):
        try:
            model.set_attn_implementation(way)
        except ValueError:
            continue
        model.gradient_checkpointing_disable()
        if reentrant is not None:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.zero_grad()
        torch.manual_seed(7)
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        found[way, reentrant] = torch.cat([
            p.grad.flatten() for n, p in model.named_parameters()
            if p.grad is not None and ("attn" in n or "attention" in n)
        ])  # fmt: skip
    wanted = found.pop(("eager", None)).double()
    row["gradients"] = {
        way if way == "sdpa" else {None: "plain", False: "checkpointed", True: "reentrant"}[reentrant]:
            round(((g.double() - wanted).norm() / wanted.norm()).item(), 5) for (way, reentrant), g in found.items()
    }  # fmt: skip
    model.gradient_checkpointing_disable()
    model.eval()


def generated(model, device, row):
    """Greedy tokens, their speed, and plans built in a second generation of other lengths."""
    tokens = torch.randint(2, 90, (2, TOKENS), device=device)
    rows, wanted = {}, None
    for way in ("sdpa", "qkvault"):
        try:
            model.set_attn_implementation(way)
        except ValueError:
            model.set_attn_implementation("eager")
        for cache in ("dynamic", "static"):
            given = {"cache_implementation": "static"} if cache == "static" else {}
            try:
                run = lambda n=TOKENS: model.generate(  # noqa: E731
                    tokens[:, :n], max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0, **given
                )
                out = run()
                before, start = BUILT.count, time.perf_counter()
                run()
                if device.type == "cuda":
                    torch.cuda.synchronize()
                took, again = time.perf_counter() - start, BUILT.count - before
                before = BUILT.count
                run(TOKENS - 3)
                wanted = out if wanted is None else wanted
                same = (out[:, TOKENS:] == wanted[:, TOKENS:]).float().mean().item()
                rows[f"{way}, {cache}"] = {
                    "tokens per second": round(2 * NEW / took, 1), "as sdpa": round(same, 3),
                    "built again": again, "built for another length": BUILT.count - before,
                }  # fmt: skip
            except Exception as error:
                rows[f"{way}, {cache}"] = f"{type(error).__name__}: {str(error)[:120]}"
    row["generation"] = rows


def wrong(row):
    """What is wrong in the numbers of a model."""
    faults = [f"{name}: {row[name]}" for name in ("logits", "gradients") if isinstance(row.get(name), str)]
    for name, errors in row.items():
        if isinstance(errors, str):
            continue
        if name.startswith("logits"):
            mine = errors["qkvault"]
            known = [e for e in (errors["eager"], errors["sdpa"]) if isinstance(e, float)]
            if not isinstance(mine, float) or not known or not mine <= 1.5 * max(known) + 2e-3:
                faults.append(f"{name}: {errors}")
        if name == "gradients" and max(errors.values()) > max(0.08, 1.5 * errors.get("sdpa", 0.0)):
            faults.append(f"{name}: {errors}")
    return faults


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--seconds", type=float, default=500)
    words = parser.parse_args()
    device = torch.device("cpu" if words.cpu else "cuda")
    if words.cpu:
        qt.configure(cpu=True)
    logging.getLogger("qkvault").addHandler(BUILT)
    logging.getLogger("qkvault").propagate = False
    counting()
    qt.register_transformers()
    begin, report, faults = time.time(), {}, {}
    for name, more in MODELS.items():
        if words.only and name not in words.only.split(","):
            continue
        if time.time() - begin > words.seconds:
            report[name] = {"not run": "no time was left"}
            continue
        row, before = {}, CALLS[0]
        try:
            model = made(name, more).to(device).eval()
        except Exception as error:
            report[name] = {"not made": f"{type(error).__name__}: {str(error)[:160]}"}
            continue
        for part in (torch.no_grad()(logits), gradients, generated):
            try:
                part(model, device, row)
            except Exception as error:
                row[part.__name__] = f"{type(error).__name__}: {str(error)[:160]}"
        row["told"], row["calls"] = sorted(set(BUILT.told)), CALLS[0] - before
        BUILT.told.clear()
        report[name] = row
        if wrong(row):
            faults[name] = wrong(row)
        print(name, "WRONG" if name in faults else "right", row.get("gradients"), flush=True)
    words.out.mkdir(parents=True, exist_ok=True)
    gpu = "cpu" if words.cpu else torch.cuda.get_device_name()
    record = {
        "gpu": gpu, "torch": torch.__version__, "transformers": transformers.__version__,
        "seconds": round(time.time() - begin, 1),
        "models": report, "wrong": faults,
    }  # fmt: skip
    (words.out / "transformers.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(faults, indent=1))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
