"""PyTorch's attention for the other benches: one call, many small ones, many shapes, and the first of a process."""
import time

import torch
import torch.nn.functional as F

from measure import KEPT, events


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


def first(mode):
    w = {"b": 1, "h": 32, "hk": 8, "s": 1024, "d": 128, "causal": True}
    q, k, v = operands(w)
    run = flex(w) if mode == "flex" else lambda q, k, v: attention(w, q, k, v)
    run(q, k, v)
    torch.cuda.synchronize()


def kernel(w):
    q, k, v = operands(w, True)
    d_o = torch.randn_like(q)
    out = attention(w, q, k, v)
    KEPT["forward"] = lambda: attention(w, q, k, v)
    KEPT["backward"] = lambda: torch.autograd.grad(out, (q, k, v), d_o, retain_graph=True)
    return {}


def timed(w):
    return {"ms": events(KEPT[w["direction"]], w["launches"], w["before"])}


@torch.no_grad()
def small(w):
    q, k, v = operands(w)
    KEPT["small"] = lambda: attention(w, q, k, v)
    KEPT["small"]()
    return {}


@torch.no_grad()
def host(w):
    torch.cuda.synchronize()
    f, start = KEPT["small"], time.perf_counter()
    for _ in range(w["launches"]):
        f()
    us = (time.perf_counter() - start) / w["launches"] * 1e6
    torch.cuda.synchronize()
    return {"us": us}


@torch.no_grad()
def shapes(w):
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
