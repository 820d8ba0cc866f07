#!/usr/bin/env python3
"""Times the attentions of a `qkvault run --json` record in PyTorch's cuDNN backend on the same GPU.

    python3 sdpa_peer.py run.json > peer.json

Times are medians over rounds of CUDA events, as in `qkvault run`. The cuDNN backend of scaled_dot_product_attention
does not support windows and score modifications; their rows have an error.
"""
import json, re, statistics, sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPE = re.compile(r"fwd (\w+) b(\d+) h(\d+)(?:/(\d+))? q(\d+) kv(\d+) d(\d+)(?:/(\d+))?(.*)")


def timed(f, n):
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record()
    for _ in range(n):
        f()
    b.record()
    b.synchronize()
    return a.elapsed_time(b) / n


def one(run):
    m = SHAPE.match(run["attention"] or "")
    rest = (m and m.group(9) or "").replace(" stats", "").strip()
    if not m or rest not in ("", "causal"):
        return {"error": f"scaled_dot_product_attention does not support '{rest}'"}
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[m.group(1)]
    b, h, hk, sq, skv, d, dv = (int(g) if g else None for g in m.groups()[1:8])
    hk, dv = hk or h, dv or d
    make = lambda heads, s, w: torch.randn(b, s, heads, w, device="cuda", dtype=dtype).transpose(1, 2)
    q, k, v = make(h, sq, d), make(hk, skv, d), make(hk, skv, dv)

    def f():
        return F.scaled_dot_product_attention(q, k, v, is_causal=rest == "causal", scale=run["scale"], enable_gqa=h != hk)

    with torch.no_grad(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        n = max(3, min(100, int(2.0 / max(run["device_ms"], 1e-3))))
        timed(f, n)
        return {"device_ms": statistics.median(timed(f, n) for _ in range(9))}


def main():
    record = json.load(open(sys.argv[1]))
    rows = []
    for run in record["runs"]:
        if run["status"] != "right":
            continue
        row = {"what": run["what"], "attention": run["attention"], "qkvault_ms": run["device_ms"]}
        try:
            row.update(one(run))
        except Exception as e:  # an unsupported case is a row, not an error
            row["error"] = f"{type(e).__name__}: {e}"[:200]
        if "device_ms" in row:
            row["torch_ms"] = row.pop("device_ms")
            row["torch_over_qkvault"] = round(row["torch_ms"] / row["qkvault_ms"], 3)
        rows.append(row)
        torch.cuda.empty_cache()
    out = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "gpu": torch.cuda.get_device_name(), "rows": rows}
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
