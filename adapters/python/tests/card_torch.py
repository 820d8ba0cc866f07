"""PyTorch's door on a GPU: right numbers, and time beside PyTorch's own attention. Writes adapter-torch.json.

    python3 card_torch.py --out FOLDER [--quick] [--seconds 230]

`QKVAULT_LIBRARY` names libqkvault.so; the package `qkvault` and `qkvault_record.py` must be importable. A part that
fails is in the record with its error, and the others go on; the exit code is 1 if a number is wrong or a part failed.
"""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections import Counter

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
warnings.filterwarnings("ignore")

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import card_torch_forms as forms
import qkvault
import qkvault.torch as qt
from families import FAMILIES, family, roundings, shaped

DEVICE = torch.device("cuda", 0)


def exact(q, k, v, score_mod=None, mask_mod=None, scale=None, sinks=None, dtype=torch.float64, more=0.0, whole=False):
    """The definition, differentiable: `more` is added to the scaled products; with `whole`, probabilities too."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = q.to(dtype), k.to(dtype).repeat_interleave(groups, 1), v.to(dtype).repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5) + more
    at = [torch.arange(n, device=q.device) for n in scores.shape]
    b, h, i, j = at[0][:, None, None, None], at[1][:, None, None], at[2][:, None], at[3]
    if score_mod is not None:
        scores = score_mod(scores, b, h, i, j)
    if mask_mod is not None:
        scores = scores.masked_fill(~mask_mod(b, h, i, j), -math.inf)
    if sinks is not None:
        logits = sinks.to(dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, logits], -1)
    weights = scores.softmax(-1)[..., : k.shape[2]]
    return (weights @ v, weights) if whole else weights @ v


def off(a, b, least=1e-9):
    """The norm of a difference, relative to the exact numbers, or to `least` if they are nothing but rounding."""
    a, b = a.detach().double(), b.detach().double()
    return ((a - b).norm() / b.norm().clamp(min=least)).item() if torch.isfinite(a).all() else math.inf


def case(rng, kind_of_data="normal"):
    """A random case: sizes, options of the call, and what they mean."""
    half = rng.choice([torch.bfloat16, torch.float16])
    d = rng.choice([64, 128])
    keys = rng.choice([1, 2, 4])
    heads = keys * rng.choice([1, 1, 2, 4])
    b, s = rng.choice([1, 2, 3]), rng.choice([64, 96, 127, 128, 200, 256, 333, 512])
    make = lambda h: (  # noqa: E731
        torch.randn(b, h, s, d, device=DEVICE, dtype=half) if outside
        else torch.randn(b, s, h, d, device=DEVICE, dtype=half).transpose(1, 2)
    )  # fmt: skip
    outside = rng.random() < 0.5
    tensors = shaped(kind_of_data, *(make(h) for h in (heads, keys, keys)), d**-0.5, 2)
    tensors = [tensor.requires_grad_() for tensor in tensors]
    kind = rng.choice("plain causal window softcap alibi bias d_bias sinks mod mask both".split())
    options, score_mod, mask_mod, more = {}, None, None, []
    causal = lambda b, h, i, j: j <= i  # noqa: E731
    if kind in ("causal", "softcap", "alibi", "sinks") and rng.random() < 0.8 or kind == "causal":
        options["is_causal"], mask_mod = True, causal
    if kind == "window":
        w = rng.choice([0, 16, 63, 99])
        options, mask_mod = {"is_causal": True, "window": w}, lambda b, h, i, j: (j <= i) & (i - j <= w)
    elif kind == "softcap":
        cap = rng.choice([5.0, 30.0, 50.0])
        options["softcap"], score_mod = cap, lambda s, *_: cap * torch.tanh(s / cap)
    elif kind == "alibi":
        slopes = 2.0 ** -torch.arange(1, heads + 1, device=DEVICE).float()
        options["alibi_slopes"] = slopes
        away = (lambda i, j: j - i) if mask_mod else (lambda i, j: -(i - j).abs())
        score_mod = lambda s, b, h, i, j: s + slopes.to(s.dtype)[h] * away(i, j)  # noqa: E731
    elif kind in ("bias", "d_bias"):
        one = 1 if kind == "d_bias" else rng.choice([1, b])
        bias = torch.randn(one, heads, s, s, device=DEVICE, dtype=half).requires_grad_(kind == "d_bias")
        more = [bias] if kind == "d_bias" else []
        options["bias"], score_mod = bias, lambda s, *_: s + bias.to(s.dtype)
    elif kind == "sinks":
        sinks = torch.randn(heads, device=DEVICE).requires_grad_()
        options["sinks"] = sinks
        more = [sinks]
    if kind in ("mod", "both"):
        a, cap = rng.uniform(0.01, 0.1), rng.choice([4.0, 20.0])

        def score_mod(s, b, h, i, j):
            return cap * torch.tanh(s / cap) - a * torch.abs(i - j)

        options["score_mod"] = score_mod
    if kind in ("mask", "both"):
        documents = torch.arange(s, device=DEVICE) // rng.choice([16, 40, 77])

        def mask_mod(b, h, i, j):
            return (documents[i] == documents[j]) & (j <= i)

        options["mask_mod"] = mask_mod
    what = f"{kind} {kind_of_data} {str(half)[6:]} b{b} h{heads}/{keys} s{s} d{d} {'bhsd' if outside else 'bshd'}"
    what += " causal" if options.get("is_causal") else ""
    return what, tensors, options, (score_mod, mask_mod, options.get("sinks")), more


def correct(report, seconds, count, seed):
    """Random cases, forward and backward, beside the definition in float64. Their plans are built ahead by threads."""
    rng, started = random.Random(seed), time.time()
    torch.manual_seed(seed)
    right, refused, wrong, worst = {"forward": 0, "backward": 0}, [], [], 0.0
    cases = [case(rng, family(at)) for at in range(count)]
    families = {name: Counter() for name in FAMILIES}

    def ahead(found):
        try:
            return len(qt.prepare(*found[1], **found[2]))
        except (qkvault.Error, qt.Untraceable):
            return 0

    # Tracing is Python's work, and builds are the library's, which leaves the interpreter meanwhile.
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        prepared = sum(pool.map(ahead, cases))
    ready = round(time.time() - started, 1)
    print(f"{prepared} plans were prepared in {ready} s", flush=True)
    at = -1
    for at, (what, (q, k, v), options, (score_mod, mask_mod, sinks), more) in enumerate(cases):
        if time.time() - started > seconds:
            at -= 1
            break
        inputs, counts = [q, k, v, *more], families[family(at)]
        products = torch.zeros(*q.shape[:3], k.shape[2], device=DEVICE, dtype=torch.float64, requires_grad=True)
        wanted, weights = exact(q, k, v, score_mod, mask_mod, None, sinks, more=products, whole=True)
        try:
            o = qt.attention(q, k, v, **options)
        except (qkvault.Error, qt.Untraceable) as error:
            refused.append(f"{what}: {str(error)[:160]}")
            counts["refused"] += 1
            continue
        limit = 0.02 if q.dtype is torch.bfloat16 else 0.004
        error = off(o, wanted)
        worst = max(worst, error / limit)
        counts["right" if error < limit else "wrong"] += 1
        if error < limit:
            right["forward"] += 1
        else:
            wrong.append(f"forward {what}: {error:.2e}")
        d_o = torch.randn_like(o)
        try:
            mine = torch.autograd.grad(o, inputs, d_o)
        except (qkvault.Error, qt.Untraceable) as error:
            refused.append(f"backward {what}: {str(error)[:160]}")
            counts["refused"] += 1
            continue
        # A query that sees one key has gradients of zero, as the difference of equal numbers that kernels round.
        least = 1e-3 * d_o.double().norm().item()
        *true, d_products = torch.autograd.grad(wanted, [*inputs, products], d_o.double())
        of_keys = k.detach().double().repeat_interleave(q.shape[1] // k.shape[1], 1)
        given = [t.detach().double() for t in (weights, d_products, wanted, d_o, q)]
        rounded = roundings(*given, of_keys, q.shape[-1] ** -0.5, 7 if q.dtype is torch.bfloat16 else 10)
        # Where terms cancel, as much as their roundings explain is nothing.
        leasts = [max(least, rounded[at] / (2 * limit)) if at < 2 else least for at in range(len(true))]
        errors = [off(a, b, nothing) for a, b, nothing in zip(mine, true, leasts)]
        worst = max(worst, max(errors) / (2 * limit))
        counts["right" if max(errors) < 2 * limit else "wrong"] += 1
        if max(errors) < 2 * limit:
            right["backward"] += 1
        else:
            wrong.append(f"backward {what}: {' '.join(f'{e:.1e}' for e in errors)}")
    took = round(time.time() - started, 1)
    kinds = dict(Counter(str(q.dtype)[6:] for _, (q, _, _), *_ in cases[: at + 1]))
    report["correct"] = {
        "cases": at + 1, "of": kinds, "plans prepared": prepared, "seconds": took, "of these to prepare": ready,
        "worst of the bound": round(worst, 3), "families": {name: dict(of) for name, of in families.items()},
    }  # fmt: skip
    assert at + 1 == count, f"{at + 1} of {count} cases in {seconds:.0f} s"
    report |= {"right": right, "refused": refused, "wrong": wrong}


def host(make, n=200):
    """Host time of a call in microseconds: least and median of batches, with the GPU's queue emptied between."""
    for _ in range(10):
        make()
    rows = []
    for _ in range(15):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            make()
        rows.append((time.perf_counter() - start) / 20 * 1e6)
    torch.cuda.synchronize()
    rows.sort()
    return {"least": round(rows[0], 2), "median": round(rows[len(rows) // 2], 2)}


def device(make, n=20):
    """Time on the GPU in microseconds, replayed as a graph where that works."""
    for _ in range(3):
        make()
    torch.cuda.synchronize()
    rows = []
    for _ in range(5):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(n):
            make()
        b.record()
        torch.cuda.synchronize()
        rows.append(a.elapsed_time(b) / n * 1e3)
    return round(sorted(rows)[2], 1)


def three(b, h, keys, s, d, grad=False, dtype=torch.bfloat16):
    made = (torch.randn(b, s, n, d, device=DEVICE, dtype=dtype).transpose(1, 2) for n in (h, keys, keys))
    return tuple(t.requires_grad_(grad) for t in made)


def cudnn_sdpa(q, k, v):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def calls(report, flex):
    """Host time of a call beside SDPA on cuDNN and compiled FlexAttention, eager and in training."""
    q, k, v = three(1, 8, 8, 256, 64)
    own = lambda: qt.attention(q, k, v, is_causal=True)  # noqa: E731
    blocks = create_block_mask(lambda b, h, i, j: j <= i, None, None, 256, 256, device=DEVICE)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        theirs = host(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    rows = {"qkvault": host(own), "sdpa cudnn": theirs}
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        rows["sdpa flash"] = host(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    alone, spec = torch.ops.qkvault.attend.default, "numbers: scale :: mask: causal"
    rows["operator alone"] = host(lambda: alone(q, k, v, [], spec, [0.125]))
    rows["qkvault softcap"] = host(lambda: qt.attention(q, k, v, is_causal=True, softcap=30.0))
    if flex:
        rows["flex compiled"] = host(lambda: flex(q, k, v, block_mask=blocks))
    qg, kg, vg = three(1, 8, 8, 256, 64, grad=True)
    g = torch.randn_like(qg)

    def train(attend):
        return lambda: torch.autograd.grad(attend(), (qg, kg, vg), g)

    rows["qkvault training"] = host(train(lambda: qt.attention(qg, kg, vg, is_causal=True)))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        rows["sdpa cudnn training"] = host(train(lambda: F.scaled_dot_product_attention(qg, kg, vg, is_causal=True)))
    rows["ratio to sdpa cudnn"] = round(rows["qkvault"]["median"] / theirs["median"], 3)
    trained = rows["qkvault training"]["median"] / rows["sdpa cudnn training"]["median"]
    rows["ratio to sdpa cudnn, training"] = round(trained, 3)
    report["host us"] = rows


def graphs(report):
    """CUDA graphs: the same numbers on other data, and time beside SDPA's graph."""
    q, k, v = three(2, 16, 16, 1024, 128)
    rows = {}
    own = lambda: qt.attention(q, k, v, is_causal=True)  # noqa: E731
    for name, attend in (("qkvault", own), ("sdpa cudnn", lambda: cudnn_sdpa(q, k, v))):
        attend()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = attend()
        q.normal_()
        graph.replay()
        rows[f"{name} off"] = off(o, exact(q, k, v, None, lambda b, h, i, j: j <= i, dtype=torch.float32))
        rows[f"{name} us"] = device(graph.replay)
    trained = three(1, 3, 3, 192, 64, grad=True)
    qt.attention(*trained, is_causal=True).sum().backward()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        o = qt.attention(*trained, is_causal=True)
    graph.replay()
    wanted = exact(*(t.detach() for t in trained), None, lambda b, h, i, j: j <= i)
    rows["captured without gradients after a training call, off"] = off(o, wanted)
    assert off(o, wanted) < 0.02
    cold = three(1, 2, 2, 192, 64)
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            qt.attention(*cold)
        rows["cold capture"] = "was not refused"
    except Exception as error:
        rows["cold capture"] = f"{type(error).__name__}: {str(error)[:120]}"
    torch.cuda.synchronize()
    rows["after a refused capture"] = off(qt.attention(*cold), exact(*cold))
    assert rows["qkvault off"] < 0.02 and rows["after a refused capture"] < 0.02, rows
    report["graphs"] = rows


def graphed(report):
    """make_graphed_callables: forward and backward in graphs."""

    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return qt.attention(q, k, v, is_causal=True, softcap=20.0)

    cap = lambda s, *_: 20.0 * torch.tanh(s / 20.0)  # noqa: E731
    given = three(1, 4, 2, 256, 64, grad=True)
    layer = torch.cuda.make_graphed_callables(Layer(), given)
    q, k, v = three(1, 4, 2, 256, 64, grad=True)
    o, d_o = layer(q, k, v), None
    d_o = torch.randn_like(o)
    wanted = exact(q, k, v, cap, lambda b, h, i, j: j <= i)
    errors = [off(o, wanted)]
    right = torch.autograd.grad(wanted, (q, k, v), d_o.double())
    errors += [off(a, b) for a, b in zip(torch.autograd.grad(o, (q, k, v), d_o), right)]
    assert max(errors) < 0.03, errors
    report["make_graphed_callables"] = [round(e, 5) for e in errors]


def streams(report):
    """A side stream, and many threads, each with forward and backward."""
    q, k, v = three(1, 4, 4, 512, 64, grad=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        big = torch.randn(4096, 4096, device=DEVICE)
        for _ in range(20):
            big = big @ big * 1e-4
        q2 = (q.float() + big.sum() * 0).to(q.dtype)
        o = qt.attention(q2, k, v, is_causal=True)
    torch.cuda.current_stream().wait_stream(side)
    wanted = exact(q, k, v, None, lambda b, h, i, j: j <= i)
    assert off(o, wanted) < 0.02, off(o, wanted)
    found, bad = [], []

    def work():
        try:
            for _ in range(20):
                with torch.cuda.stream(torch.cuda.Stream()):
                    a, b, c = (t.detach().requires_grad_() for t in (q, k, v))
                    qt.attention(a, b, c, is_causal=True).float().square().sum().backward()
                    torch.cuda.current_stream().synchronize()
                    found.append((a.grad, b.grad, c.grad))
        except Exception as error:
            bad.append(repr(error))

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    right = torch.autograd.grad(wanted.square().sum(), (q, k, v))
    worst = max((max(off(a, b) for a, b in zip(mine, right)) for mine in found), default=math.inf)
    assert not bad and len(found) == 160 and worst < 0.04, (bad[:3], len(found), worst)
    report["threads"] = {"gradients": len(found), "worst": round(worst, 5)}


def dropout(report):
    """Dropout: the mask follows the generator, is the same in the backward, and is drawn anew by a graph's replay."""
    q, k, v = three(1, 2, 2, 256, 64, grad=True)
    ones = torch.ones_like(v).requires_grad_()
    outs, grads = [], []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(qt.attention(q, k, ones, dropout_p=0.5))
        grads.append(torch.autograd.grad(outs[-1].sum(), ones)[0])
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2]), "seeds"
    sums = (outs[0].float().sum().item(), grads[0].float().sum().item())
    assert abs(sums[0] - sums[1]) < 0.01 * abs(sums[0]), sums
    assert abs(outs[0].float().mean().item() - 1) < 0.05, outs[0].float().mean()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        o = qt.attention(q, k, ones, dropout_p=0.5)
    graph.replay()
    first = o.clone()
    graph.replay()
    assert not torch.equal(first, o), "a replay repeats the mask"
    report["dropout"] = {"mean of O": round(outs[0].float().mean().item(), 4), "sums": [round(x, 1) for x in sums]}


def compiled(report):
    """torch.compile with Inductor, whole, and with its CUDA graphs."""
    rows = {}

    def step(q, k, v):
        return qt.attention(q * 1.0, k, v, is_causal=True, softcap=20.0) * 2.0

    cap = lambda s, *_: 20.0 * torch.tanh(s / 20.0)  # noqa: E731
    for mode in ("default", "reduce-overhead"):
        q, k, v = three(1, 4, 4, 256, 64, grad=True)
        made = torch.compile(step, fullgraph=True, mode=mode)
        for _ in range(3):
            o = made(q, k, v)
            grads = torch.autograd.grad(o, (q, k, v), torch.ones_like(o))
        wanted = exact(q, k, v, cap, lambda b, h, i, j: j <= i) * 2.0
        right = torch.autograd.grad(wanted, (q, k, v), torch.ones_like(wanted))
        errors = [off(o, wanted)] + [off(a, b) for a, b in zip(grads, right)]
        assert max(errors[:1] + errors[3:]) < 0.03, (mode, errors)
        rows[mode] = [round(e, 5) for e in errors]
    bias = torch.randn(1, 4, 256, 256, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
    tables = torch.randn(256, device=DEVICE)

    def mod(s, b, h, i, j):
        return 20.0 * torch.tanh(s / 20.0) + tables[i] * 0.1

    biased = torch.compile(lambda q, k, v: qt.attention(q, k, v, bias=bias) * 2.0, fullgraph=True)
    traced = torch.compile(lambda q, k, v: qt.attention(q, k, v, score_mod=mod) * 2.0, fullgraph=True)
    q, k, v = three(1, 4, 4, 256, 64, grad=True)
    for name, made, score_mod, inputs in (
        ("bias with gradient", biased, lambda s, *_: s + bias.to(s.dtype), [q, k, v, bias]),
        ("traced function", traced, mod, [q, k, v]),
    ):  # fmt: skip
        wanted, o = exact(q, k, v, score_mod) * 2.0, made(q, k, v)
        d_o = torch.randn_like(o)
        right = torch.autograd.grad(wanted, inputs, d_o.double())
        errors = [off(o, wanted)] + [off(a, b) for a, b in zip(torch.autograd.grad(o, inputs, d_o), right)]
        assert max(errors) < 0.03, (name, errors)
        rows[name] = [round(e, 5) for e in errors]
    shapes = torch.compile(lambda q, k, v: qt.attention(q, k, v, is_causal=True) * 2.0, fullgraph=True, dynamic=True)
    for s in (192, 200, 264, 333):
        q, k, v = three(1, 4, 4, s, 64)
        error = off(shapes(q, k, v), exact(q, k, v, None, lambda b, h, i, j: j <= i) * 2.0)
        assert error < 0.02, (s, error)
        rows[f"dynamic, {s} tokens"] = round(error, 5)
    report["torch.compile"] = rows


def training(report, flex):
    """A training step with softcap and a causal mask beside compiled FlexAttention."""
    rows = []
    for b, h, keys, s, d in ((2, 16, 16, 4096, 128), (4, 32, 8, 2048, 128)):
        q, k, v = three(b, h, keys, s, d, grad=True)
        g = torch.randn_like(q)
        cap = lambda score, b, h, i, j: 30.0 * torch.tanh(score / 30.0)  # noqa: E731

        def own():
            return torch.autograd.grad(qt.attention(q, k, v, is_causal=True, softcap=30.0), (q, k, v), g)

        row = {"what": f"b{b} h{h}/{keys} s{s} d{d} causal softcap bf16", "qkvault us": device(own, 5)}
        if flex:
            blocks = create_block_mask(lambda b, h, i, j: j <= i, None, None, s, s, device=DEVICE)
            theirs = lambda: torch.autograd.grad(  # noqa: E731
                flex(q, k, v, score_mod=cap, block_mask=blocks, enable_gqa=h != keys), (q, k, v), g
            )
            row["flex us"] = device(theirs, 5)
            row["times faster"] = round(row["flex us"] / row["qkvault us"], 2)
        rows.append(row)
    report["training step"] = rows


SHAPES = (1111, 1213, 1315)


def timed(make):
    """Milliseconds of a call: until it returns, and until the GPU is done."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    make()
    host_ms = (time.perf_counter() - start) * 1e3
    torch.cuda.synchronize()
    return round(host_ms, 2), round((time.perf_counter() - start) * 1e3, 2)


def first(report, flex, vault):
    """The first call of new shapes: built, from the vault in a process of its own, and theirs."""
    rows = {"built ms": [], "flex compiled ms": []}
    for s in SHAPES:
        q, k, v = three(1, 8, 8, s, 64)
        rows["built ms"].append(timed(lambda: qt.attention(q, k, v, is_causal=True))[1])
        if flex:
            rows["flex compiled ms"].append(timed(lambda: flex(q, k, v))[1])
    for name in ("from the vault", "sdpa cudnn"):
        words = [sys.executable, __file__, "--out", str(vault), "--first", name]
        done = subprocess.run(words, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr[-2000:]
        rows[name] = json.loads(done.stdout.splitlines()[-1])
    report["first call of a shape"] = rows


def first_of_process(name, vault):
    """The first calls of a process whose vault has every plan: (host, until done) in ms."""
    torch.ones(8, device=DEVICE).sum().item()
    given = [three(1, 8, 8, s, 64) for s in SHAPES]
    if name == "sdpa cudnn":
        rows = [timed(lambda t=t: cudnn_sdpa(*t)) for t in given]
    else:
        qt.configure(vault, build=False)
        rows = [timed(lambda t=t: qt.attention(*t, is_causal=True)) for t in given]
    print(json.dumps({"host ms": [row[0] for row in rows], "ms": [row[1] for row in rows]}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--quick", action="store_true", help="few cases, and nothing compiled by Triton")
    parser.add_argument("--seconds", type=float, default=230)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parts", help="only these, with commas")
    parser.add_argument("--first", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.first:
        return first_of_process(words.first, words.out)
    words.out.mkdir(parents=True, exist_ok=True)
    started = time.time()
    context = qt.configure(words.out / "vault", handles=8)
    report = {
        "gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "cudnn": context.cudnn,
        "qkvault": qkvault.version(), "seed": words.seed,
    }  # fmt: skip
    failed = {}
    flex = None if words.quick else torch.compile(flex_attention, dynamic=False)
    left = lambda: words.seconds - (time.time() - started)  # noqa: E731
    parts = [
        ("graphs", lambda: graphs(report)), ("graphed", lambda: graphed(report)), ("streams", lambda: streams(report)),
        ("dropout", lambda: dropout(report)),
        ("calls", lambda: calls(report, flex)), ("training", lambda: training(report, flex)),
        ("first", lambda: first(report, flex, words.out / "vault")),
        ("compiled", lambda: None if words.quick else compiled(report)),
        ("lengths", lambda: forms.lengths(report, three, exact, off)),
        ("log-sum-exp", lambda: forms.lse(report, three, off)),
        ("origins", lambda: forms.origins(report, three, exact, off)),
        ("pages", lambda: forms.pages(report, three, exact, off, host)),
        ("background", lambda: forms.background(report, three, words.out / "vault")),
        ("missing", lambda: forms.missing(report, three, words.out / "vault")),
        ("guide", lambda: forms.guide(report)),
        ("correct", lambda: correct(report, max(20, left() - 10), 20 if words.quick else words.cases, words.seed)),
    ]  # fmt: skip
    if words.parts:
        parts = [row for row in parts if row[0] in words.parts.split(",")]
    for name, part in parts:
        start = time.time()
        if left() < 15:
            failed[name] = "no time was left"
            continue
        try:
            part()
        except Exception:
            failed[name] = traceback.format_exc(limit=4)
            print(name, failed[name], flush=True)
        print(f"{name}: {time.time() - start:.1f} s", flush=True)
        report["failed"] = failed
        (words.out / "adapter-torch.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    sys.exit(1 if failed or report.get("wrong") else 0)


if __name__ == "__main__":
    main()
