#!/usr/bin/env python3
"""Times serving steps in other libraries: PyTorch, and FlashInfer and vLLM's kernels if they are installed.

    python3 serving_peer.py [--limit SECONDS] [--out FILE] [--flashinfer KERNELS] [--quick]

The shapes are those of docs/results/serving.md: 32 query heads and 8 KV heads of head dim 128, bf16,
pages of 64 tokens in random order. PyTorch's scaled_dot_product_attention does not support pages, so its keys and
values are contiguous, which is easier. FlashInfer plans a batch on the host before the launch; the times do not include
this. Times are medians over rounds of CUDA events around a captured graph of launches, so that the time of Python does
not count. If a library cannot be captured, the events are around plain launches, and `eager` lists it. Small decodes
use several copies of the cache, like the layers of a model, so that it does not stay in L2. First the script compares
each library with float32, for one small decode and one small chunk; `checked` has the relative errors. It writes the
file after each row.
"""
import argparse, json, statistics, sys, time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

H, HK, D, PAGE, DTYPE = 32, 8, 128, 64, torch.bfloat16
SPREAD = 256 << 20


EAGER = set()


def timed(f, name=None, rounds=7):
    def once(run, n):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        run()
        b.record()
        b.synchronize()
        return a.elapsed_time(b) * 1e3 / n

    def calls(n):
        for _ in range(n):
            f()

    once(lambda: calls(3), 3)
    n = max(5, min(200, int(2000 / max(once(lambda: calls(3), 3), 1))))
    try:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            calls(n)
        run = graph.replay
        once(run, n)
    except Exception:
        EAGER.add(name)
        torch.cuda.synchronize()
        run = lambda: calls(n)
    return statistics.median(once(run, n) for _ in range(rounds))


def exact(q, k, v, new, kv):
    """Attention of one sequence in float32: q (new, H, D), k and v (kv, HK, D); the last query attends to all keys."""
    q, k, v = q.float().transpose(0, 1), *(t.float().repeat_interleave(H // HK, 1).transpose(0, 1) for t in (k, v))
    s = q @ k.transpose(1, 2) / D**0.5
    hidden = torch.ones(new, kv, device=s.device).tril(kv - new) == 0
    return (s.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(0, 1)


def far(a, b):
    return float((a.float() - b).norm() / b.norm())


def cycle(list_):
    state = {"i": 0}

    def next_():
        state["i"] = (state["i"] + 1) % len(list_)
        return list_[state["i"]]

    return next_


def copy_bandwidth():
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    # The best of several: the first ones run before the clocks are up, and a median was once 2.7 instead of 4.2 TB/s.
    return max(2 * a.numel() / (timed(lambda: b.copy_(a)) * 1e-6) for _ in range(5))


def layers_for(b, kv):
    return max(1, min(48, -(-SPREAD // (2 * b * kv * HK * D * 2))))


def torch_decode(b, kv, backend, check=False):
    n = 1 if check else layers_for(b, kv)
    q = torch.randn(b, H, 1, D, device="cuda", dtype=DTYPE)
    caches = [[torch.randn(b, kv, HK, D, device="cuda", dtype=DTYPE).transpose(1, 2) for _ in range(2)] for _ in range(n)]
    pick = cycle(caches)

    def f():
        k, v = pick()
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    with torch.no_grad(), sdpa_kernel(backend):
        if check:
            (k, v), o = caches[0], f()
            return max(far(o[i].transpose(0, 1), exact(q[i].transpose(0, 1), k[i].transpose(0, 1), v[i].transpose(0, 1), 1, kv)) for i in range(b))
        return timed(f, "torch_decode")


def torch_prefill(new, context, backend):
    from torch.nn.attention.bias import causal_lower_right

    q = torch.randn(1, H, new, D, device="cuda", dtype=DTYPE)
    k, v = (torch.randn(1, context + new, HK, D, device="cuda", dtype=DTYPE).transpose(1, 2) for _ in range(2))
    # This bias does not support grouped heads, so the heads are repeated before the timing.
    k, v = (t.repeat_interleave(H // HK, 1) for t in (k, v))
    bias = causal_lower_right(new, context + new)
    with torch.no_grad(), sdpa_kernel(backend):
        return timed(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=bias), "torch_prefill")


def pages_of(b, kv):
    per = -(-kv // PAGE)
    order = torch.randperm(b * per, device="cuda", dtype=torch.int32)
    return per, order


def gathered(pool, order, sequence, per, kv):
    """The keys and values of a sequence from a pool of (pages, 2, tokens, heads, head_dim)."""
    pages = pool[order[sequence * per : (sequence + 1) * per].long()]
    return (pages[:, i].reshape(-1, HK, D)[:kv] for i in range(2))


def flashinfer_decode(b, kv, backend, check=False):
    import flashinfer

    per, order = pages_of(b, kv)
    n = 1 if check else layers_for(b, kv)
    pools = [torch.randn(b * per, 2, PAGE, HK, D, device="cuda", dtype=DTYPE) for _ in range(n)]
    q = torch.randn(b, H, D, device="cuda", dtype=DTYPE)
    workspace = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    more = {} if backend == "cuda_cores" else {"use_tensor_cores": True, "backend": backend}
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", **more)
    indptr = torch.arange(b + 1, device="cuda", dtype=torch.int32) * per
    last = torch.full((b,), (kv - 1) % PAGE + 1, device="cuda", dtype=torch.int32)
    wrapper.plan(indptr, order, last, H, HK, D, PAGE, q_data_type=DTYPE, kv_data_type=DTYPE)
    if check:
        o = wrapper.run(q, pools[0])
        return max(far(o[i : i + 1], exact(q[i : i + 1], *gathered(pools[0], order, i, per, kv), 1, kv)) for i in range(b))
    pick = cycle(pools)
    return timed(lambda: wrapper.run(q, pick()), f"flashinfer_{backend}")


def flashinfer_prefill(new, context, backend, check=False):
    import flashinfer

    kv = context + new
    per, order = pages_of(1, kv)
    pool = torch.randn(per, 2, PAGE, HK, D, device="cuda", dtype=DTYPE)
    q = torch.randn(new, H, D, device="cuda", dtype=DTYPE)
    workspace = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=backend)
    ints = lambda *x: torch.tensor(x, device="cuda", dtype=torch.int32)
    wrapper.plan(
        ints(0, new), ints(0, per), order, ints((kv - 1) % PAGE + 1), H, HK, D, PAGE, causal=True, q_data_type=DTYPE, kv_data_type=DTYPE
    )
    if check:
        return far(wrapper.run(q, pool), exact(q, *gathered(pool, order, 0, per, kv), new, kv))
    return timed(lambda: wrapper.run(q, pool), f"flashinfer_{backend}")


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

    return timed(f, "vllm")


def attempt(f, *args):
    try:
        return f(*args)
    except Exception as e:  # an unsupported case is a row, not an error
        return f"{type(e).__name__}: {e}"[:300]
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
    parser.add_argument("--out")
    # Decodes without tensor cores, or with one of the prefill kernels. Kernels that are not compiled yet take minutes.
    parser.add_argument("--flashinfer", default="cuda_cores,fa2,fa3", help="FlashInfer kernels, separated by commas")
    parser.add_argument("--quick", action="store_true", help="only the checks, and one row of each kind")
    args = parser.parse_args()
    started = time.time()
    over = lambda: time.time() - started > args.limit
    copy = copy_bandwidth()
    there = {name: importable(name) for name in ("flashinfer", "vllm")}
    out = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), **there,
        "copy_tb_per_s": copy / 1e12, "checked": {}, "decode": [], "prefill": [],
    }

    def save():
        out.update(eager=sorted(map(str, EAGER)), seconds=round(time.time() - started, 1))
        if args.out:
            with open(args.out, "w") as file:
                json.dump(out, file, indent=1)

    backends = {"torch_cudnn": SDPBackend.CUDNN_ATTENTION, "torch_flash": SDPBackend.FLASH_ATTENTION}
    decodes = {name: lambda b, kv, check=False, it=it: torch_decode(b, kv, it, check) for name, it in backends.items()}
    chunks = {name: lambda new, context, it=it: torch_prefill(new, context, it) for name, it in backends.items()}
    if there["flashinfer"]:
        kernels = args.flashinfer.split(",")
        for it in kernels:
            decodes[f"flashinfer_{it}"] = lambda b, kv, check=False, it=it: flashinfer_decode(b, kv, it, check)
        for it in [it for it in kernels if it != "cuda_cores"]:
            chunks[f"flashinfer_{it}"] = lambda new, context, check=False, it=it: flashinfer_prefill(new, context, it, check)
    # A library with a wrong result is not measured.
    for list_, shape, what in ((decodes, (3, 1000), "decode"), (chunks, (130, 300), "chunk")):
        for name in [name for name in list_ if what == "decode" or "flashinfer" in name]:
            error = attempt(list_[name], *shape, True)
            out["checked"][f"{name} {what}"] = error
            if not isinstance(error, float) or not error < 0.02:
                del list_[name]
            print(name, what, error, file=sys.stderr, flush=True)
    save()
    if there["vllm"]:
        decodes["vllm_flash_attn"] = lambda b, kv: vllm_flash(1, kv, b)
        chunks["vllm_flash_attn"] = lambda new, context: vllm_flash(new, context + new, 1)
    for b in (8,) if args.quick else (1, 8, 64, 256):
        for kv in (8192,) if args.quick else (1024, 8192, 32768):
            if over():
                continue
            row = {"b": b, "kv": kv, **{name: attempt(f, b, kv) for name, f in decodes.items()}}
            floor = 2 * b * kv * HK * D * 2 / copy * 1e6
            row["share_of_copy"] = {k: round(floor / v, 3) for k, v in row.items() if isinstance(v, float)}
            out["decode"].append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
            save()
    for new in (512,) if args.quick else (512, 1024, 2048, 4096, 8192):
        if over():
            continue
        row = {"new": new, "context": 32768, **{name: attempt(f, new, 32768) for name, f in chunks.items()}}
        flops = 4 * H * D * new * (32768 + (new + 1) / 2)
        row["tflops"] = {k: round(flops / v / 1e6) for k, v in row.items() if isinstance(v, float)}
        out["prefill"].append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        save()
    save()
    if not args.out:
        print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
