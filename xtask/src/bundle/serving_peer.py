#!/usr/bin/env python3
"""Steps of serving in what else there is on this machine: PyTorch always, FlashInfer and vLLM's kernels where they import.

    python3 serving_peer.py [--limit SECONDS] > peer.json

The same shapes as `qkvault bench-serving decode prefill`: 32 query and 8 key/value heads of 128, bf16, pages of 64. PyTorch's
scaled_dot_product_attention has no pages: its keys and values are contiguous, which is easier. Times are medians over rounds of
CUDA events; small decodes go over several copies of the cache, as the layers of a model do, so that it does not stay in L2.
"""
import argparse, json, statistics, sys, time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

H, HK, D, PAGE, DTYPE = 32, 8, 128, 64, torch.bfloat16
SPREAD = 256 << 20


def timed(f, rounds=7):
    def once(n):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(n):
            f()
        b.record()
        b.synchronize()
        return a.elapsed_time(b) * 1e3 / n

    once(3)
    n = max(5, min(200, int(2000 / max(once(3), 1))))
    return statistics.median(once(n) for _ in range(rounds))


def cycle(list_):
    state = {"i": 0}

    def next_():
        state["i"] = (state["i"] + 1) % len(list_)
        return list_[state["i"]]

    return next_


def copy_bandwidth():
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.numel() / (timed(lambda: b.copy_(a)) * 1e-6)


def layers_for(b, kv):
    return max(1, min(48, -(-SPREAD // (2 * b * kv * HK * D * 2))))


def torch_decode(b, kv, backend):
    n = layers_for(b, kv)
    q = torch.randn(b, H, 1, D, device="cuda", dtype=DTYPE)
    caches = [[torch.randn(b, kv, HK, D, device="cuda", dtype=DTYPE).transpose(1, 2) for _ in range(2)] for _ in range(n)]
    pick = cycle(caches)

    def f():
        k, v = pick()
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    with torch.no_grad(), sdpa_kernel(backend):
        return timed(f)


def torch_prefill(new, context, backend):
    from torch.nn.attention.bias import causal_lower_right

    q = torch.randn(1, H, new, D, device="cuda", dtype=DTYPE)
    k, v = (torch.randn(1, context + new, HK, D, device="cuda", dtype=DTYPE).transpose(1, 2) for _ in range(2))
    # The bias's own path has no grouped heads: they are repeated before, outside of what is timed.
    k, v = (t.repeat_interleave(H // HK, 1) for t in (k, v))
    bias = causal_lower_right(new, context + new)
    with torch.no_grad(), sdpa_kernel(backend):
        return timed(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=bias))


def pages_of(b, kv):
    per = -(-kv // PAGE)
    order = torch.randperm(b * per, device="cuda", dtype=torch.int32)
    return per, order


def flashinfer_decode(b, kv):
    import flashinfer

    per, order = pages_of(b, kv)
    n = layers_for(b, kv)
    pools = [torch.randn(b * per, 2, PAGE, HK, D, device="cuda", dtype=DTYPE) for _ in range(n)]
    q = torch.randn(b, H, D, device="cuda", dtype=DTYPE)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), "NHD", use_tensor_cores=True
    )
    indptr = torch.arange(b + 1, device="cuda", dtype=torch.int32) * per
    last = torch.full((b,), (kv - 1) % PAGE + 1, device="cuda", dtype=torch.int32)
    wrapper.plan(indptr, order, last, H, HK, D, PAGE, q_data_type=DTYPE, kv_data_type=DTYPE)
    pick = cycle(pools)
    return timed(lambda: wrapper.run(q, pick()))


def flashinfer_prefill(new, context):
    import flashinfer

    kv = context + new
    per, order = pages_of(1, kv)
    pool = torch.randn(per, 2, PAGE, HK, D, device="cuda", dtype=DTYPE)
    q = torch.randn(new, H, D, device="cuda", dtype=DTYPE)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), "NHD")
    ints = lambda *x: torch.tensor(x, device="cuda", dtype=torch.int32)
    wrapper.plan(
        ints(0, new), ints(0, per), order, ints((kv - 1) % PAGE + 1), H, HK, D, PAGE, causal=True, q_data_type=DTYPE, kv_data_type=DTYPE
    )
    return timed(lambda: wrapper.run(q, pool))


def vllm_flash(new, kv, b):
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    per, order = pages_of(b, kv)
    n = layers_for(b, kv)
    pools = [[torch.randn(b * per, PAGE, HK, D, device="cuda", dtype=DTYPE) for _ in range(2)] for _ in range(n)]
    q = torch.randn(b * new, H, D, device="cuda", dtype=DTYPE)
    cu = torch.arange(b + 1, device="cuda", dtype=torch.int32) * new
    used = torch.full((b,), kv, device="cuda", dtype=torch.int32)
    table = order.view(b, per)
    pick = cycle(pools)

    def f():
        k, v = pick()
        return flash_attn_varlen_func(
            q, k, v, max_seqlen_q=new, cu_seqlens_q=cu, max_seqlen_k=kv, seqused_k=used, causal=True, block_table=table
        )

    return timed(f)


def attempt(f, *args):
    try:
        return f(*args)
    except Exception as e:  # what cannot do a case is a row, not the end
        return f"{type(e).__name__}: {e}"[:160]
    finally:
        torch.cuda.empty_cache()


def importable(name):
    try:
        return __import__(name).__version__
    except Exception:
        return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=float, default=120)
    args = parser.parse_args()
    started = time.time()
    copy = copy_bandwidth()
    there = {name: importable(name) for name in ("flashinfer", "vllm")}
    out = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), **there,
        "copy_tb_per_s": copy / 1e12, "decode": [], "prefill": [],
    }
    backends = {"torch_cudnn": SDPBackend.CUDNN_ATTENTION, "torch_flash": SDPBackend.FLASH_ATTENTION}
    for b in (1, 8, 64, 256):
        for kv in (1024, 8192, 32768):
            if time.time() - started > args.limit:
                break
            row = {"b": b, "kv": kv}
            for name, backend in backends.items():
                row[name] = attempt(torch_decode, b, kv, backend)
            if there["flashinfer"]:
                row["flashinfer"] = attempt(flashinfer_decode, b, kv)
            if there["vllm"]:
                row["vllm_flash_attn"] = attempt(vllm_flash, 1, kv, b)
            floor = 2 * b * kv * HK * D * 2 / copy * 1e6
            row["share_of_copy"] = {k: round(floor / v, 3) for k, v in row.items() if isinstance(v, float)}
            out["decode"].append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    for new in (512, 1024, 2048, 4096, 8192):
        if time.time() - started > args.limit:
            break
        row = {"new": new, "context": 32768}
        for name, backend in backends.items():
            row[name] = attempt(torch_prefill, new, 32768, backend)
        if there["flashinfer"]:
            row["flashinfer"] = attempt(flashinfer_prefill, new, 32768)
        if there["vllm"]:
            row["vllm_flash_attn"] = attempt(vllm_flash, new, 32768 + new, 1)
        flops = 4 * H * D * new * (32768 + (new + 1) / 2)
        row["tflops"] = {k: round(flops / v / 1e6) for k, v in row.items() if isinstance(v, float)}
        out["prefill"].append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
