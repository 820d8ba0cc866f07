"""Continuous batching (`generate_batch`) and caches of transformers on a card, from a vault that is empty at first.

    python3 card_batches.py --out FOLDER [--only NAMES] [--cpu]

For each model: tokens of a batch beside one sequence after another, their speed, how many calls read pages, and the
plans built by a batch of other prompts; then each cache, and the plans that one more prompt of another length builds: of
the prompt itself alone, none of a token. Writes batches.json; the exit code is 1 if a number is wrong.
"""

import argparse
import json
import logging
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers
from card_transformers import BUILT, MODELS, NEW, made

import qkvault.torch as qt
from qkvault.torch import _batching

NAMES = ("Llama", "Mistral", "Gemma2", "GptOss", "Qwen3", "GPTNeoX", "Phi3")
PAGES = [0]


def counting():
    """Counts calls over pages."""
    attend = _batching.paged_attention

    def paged_attention(*given, **options):
        PAGES[0] += 1
        return attend(*given, **options)

    _batching.paged_attention = paged_attention


def batch(model, prompts, way):
    model.set_attn_implementation(way)
    given = transformers.GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)
    sizes = transformers.ContinuousBatchingConfig(
        num_blocks=256, page_size=256 if model.device.type == "cuda" else 16, max_batch_tokens=256,
        max_requests_per_batch=8, max_blocks_per_request=4, max_memory_percent=0.5,
        use_cuda_graph=False,
    )  # fmt: skip
    start = time.perf_counter()
    found = model.generate_batch(inputs=prompts, generation_config=given, continuous_batching_config=sizes)
    rows = [found[f"req_{at}"].generated_tokens for at in range(len(prompts))]
    return rows, len(prompts) * NEW / (time.perf_counter() - start)


def agreed(a, b):
    """The part of tokens before the first that differs: near a tie, the rest follows another token."""
    same = [next((at for at, (x, y) in enumerate(zip(p, q)) if x != y), len(q)) / len(q) for p, q in zip(a, b)]
    return round(sum(same) / len(same), 3)


def batches(model, row):
    """Batches beside one sequence after another."""
    prompts = [torch.randint(2, 90, (n,)).tolist() for n in (5, 40, 17, 3, 28, 11, 60, 9, 33, 21)]
    model.set_attn_implementation("eager")
    given = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    alone = [model.generate(torch.tensor([p], device=model.device), **given)[0, len(p) :].tolist() for p in prompts]
    before = PAGES[0]
    found, _ = batch(model, prompts, "qkvault")
    row["as alone"], row["calls over pages"], built = agreed(found, alone), PAGES[0] - before, BUILT.count
    _, row["tokens per second"] = batch(model, [p[1:] for p in prompts], "qkvault")
    row["built by other prompts"] = BUILT.count - built
    try:
        again, row["tokens per second of sdpa"] = batch(model, prompts, "sdpa")
        row["sdpa as alone"] = agreed(again, alone)
    except Exception as error:
        row["tokens per second of sdpa"] = f"{type(error).__name__}: {str(error)[:120]}"


def caches(model, row):
    """Each cache beside the same with eager, and plans that another length builds."""
    tokens = torch.randint(2, 90, (2, 40), device=model.device)
    for cache in ("dynamic", "static", "offloaded", "offloaded_static"):
        given = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0,
                 "disable_compile": True, **({} if cache == "dynamic" else {"cache_implementation": cache})}  # fmt: skip
        try:
            model.set_attn_implementation("eager")
            wanted = model.generate(tokens, **given)[:, 40:].tolist()
            model.set_attn_implementation("qkvault")
            start = BUILT.count
            found, first = model.generate(tokens, **given)[:, 40:].tolist(), BUILT.count
            model.generate(tokens[:, :37], **given)
            row[f"cache, {cache}"] = [agreed(found, wanted), first - start, BUILT.count - first]
        except Exception as error:
            row[f"cache, {cache}"] = f"{type(error).__name__}: {str(error)[:120]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only")
    parser.add_argument("--cpu", action="store_true")
    words = parser.parse_args()
    logging.getLogger("qkvault").addHandler(BUILT)
    logging.getLogger("qkvault").propagate = False
    report, faults = {}, []
    counting()
    with tempfile.TemporaryDirectory() as vault:
        qt.configure(vault, cpu=words.cpu)
        qt.register_transformers()
        for name in words.only.split(",") if words.only else NAMES:
            row = report[name] = {}
            for part in (batches, caches):
                try:
                    model = made(name, MODELS[name]).to("cpu" if words.cpu else "cuda", torch.bfloat16).eval()
                    part(model, row)
                except Exception as error:
                    row[part.__name__] = f"{type(error).__name__}: {str(error)[:160]}"
            row["told"] = sorted(set(BUILT.told))
            BUILT.told.clear()
            # Ties of random weights end a comparison early; wrong attention ends nearly all at the first tokens.
            if "batches" in row or "caches" in row or row["as alone"] < 0.5:
                faults.append(name)
            print(name, "WRONG" if name in faults else "right", row, flush=True)
    words.out.mkdir(parents=True, exist_ok=True)
    gpu = "cpu" if words.cpu else torch.cuda.get_device_name()
    record = {"gpu": gpu, "torch": torch.__version__, "transformers": transformers.__version__, "models": report}
    (words.out / "batches.json").write_text(json.dumps({**record, "wrong": faults}, indent=1) + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
