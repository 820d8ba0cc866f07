"""Times PyTorch's attention for `qkvault-lab bench`: answers each line of JSON with a line of JSON.

    python3 peer.py serve|first|flex GPU

`first` and `flex` compute one attention before the first answer, with PyTorch's cuDNN backend or compiled
FlexAttention: the caller measures the time from the start of the process to that answer.
"""
import json
import sys
import time

MODE, GPU = sys.argv[1], int(sys.argv[2])


def say(value):
    print(json.dumps(value), flush=True)


try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.cuda.set_device(GPU)
    MACHINE = {
        "torch": torch.__version__, "torch_cudnn": torch.backends.cudnn.version(), "gpu": torch.cuda.get_device_name(),
    }
except Exception as problem:
    say({"error": f"{type(problem).__name__}: {problem}"[:300]})
    sys.exit(1)


def operands(w, grad=False):
    """BSHD tensors as [b, h, s, d] views."""
    make = lambda h, d: torch.randn(w["b"], w["s"], h, d, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    d = w["d"]
    return [make(h, d).detach().requires_grad_(grad) for h in (w["h"], w["hk"], w["hk"])]


def attention(w, q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=w["causal"], enable_gqa=w["h"] != w["hk"])


def flex(w):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    run = torch.compile(flex_attention, dynamic=False)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, w["s"], w["s"], device="cuda")
    return lambda q, k, v: run(q, k, v, block_mask=mask if w["causal"] else None, enable_gqa=w["h"] != w["hk"])


def events(f, launches, before):
    """Milliseconds of one call on the GPU."""
    for _ in range(before):
        f()
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record()
    for _ in range(launches):
        f()
    b.record()
    b.synchronize()
    return a.elapsed_time(b) / launches


KEPT = {}


def answer(w):
    do = w["do"]
    if do == "free":
        KEPT.clear()
        torch.cuda.empty_cache()
        return {}
    if do == "kernel":
        q, k, v = operands(w, True)
        d_o = torch.randn_like(q)
        out = attention(w, q, k, v)
        KEPT["forward"] = lambda: attention(w, q, k, v)
        KEPT["backward"] = lambda: torch.autograd.grad(out, (q, k, v), d_o, retain_graph=True)
        return {}
    if do == "time":
        return {"ms": events(KEPT[w["direction"]], w["launches"], w["before"])}
    if do == "small":
        q, k, v = operands(w)
        KEPT["small"] = lambda: attention(w, q, k, v)
        KEPT["small"]()
        return {}
    if do == "host":
        torch.cuda.synchronize()
        f, start = KEPT["small"], time.perf_counter()
        for _ in range(w["launches"]):
            f()
        us = (time.perf_counter() - start) / w["launches"] * 1e6
        torch.cuda.synchronize()
        return {"us": us}
    if do == "shapes":
        # Data first: only the attentions count.
        data = [(s, operands(s)) for s in w["shapes"]]
        torch.cuda.synchronize()
        each, begun = [], time.perf_counter()
        for s, (q, k, v) in data:
            start = time.perf_counter()
            attention(s, q, k, v)
            torch.cuda.synchronize()
            each.append((time.perf_counter() - start) * 1e3)
        return {"ms": each, "seconds": time.perf_counter() - begun}
    raise ValueError(f"unknown request {do!r}")


def first():
    w = {"b": 1, "h": 32, "hk": 8, "s": 1024, "d": 128, "causal": True}
    q, k, v = operands(w)
    run = flex(w) if MODE == "flex" else lambda q, k, v: attention(w, q, k, v)
    run(q, k, v)
    torch.cuda.synchronize()


with torch.nn.attention.sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
    if MODE in ("first", "flex"):
        with torch.no_grad():
            first()
    say(MACHINE)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "kernel" or request["do"] == "time":
                say(answer(request))
            else:
                with torch.no_grad():
                    say(answer(request))
        except Exception as problem:
            say({"error": f"{type(problem).__name__}: {problem}"[:300]})
