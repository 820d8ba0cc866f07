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


def flex_parts(w):
    """The score modification and the mask of a case, as FlexAttention has them."""
    from torch.nn.attention.flex_attention import create_block_mask
    s, kind, document = w["s"], w["modification"], w["document"]
    slopes = 2.0 ** (-8.0 * torch.arange(1, w["h"] + 1, device="cuda") / w["h"])
    mods = {
        "softcap": lambda x, b, h, i, j: 50.0 * torch.tanh(x / 50.0),
        "alibi": lambda x, b, h, i, j: x + slopes[h] * (j - i),
    }
    masks = []
    if w["causal"]:
        masks.append(lambda b, h, i, j: i >= j)
    if w["window"]:
        masks.append(lambda b, h, i, j: i - j < w["window"])
    if "documents" in kind:
        ids = torch.arange(s, device="cuda") // document
        masks.append(lambda b, h, i, j: ids[i] == ids[j])

    def mask(b, h, i, j):
        seen = masks[0](b, h, i, j)
        for more in masks[1:]:
            seen = seen & more(b, h, i, j)
        return seen

    block_mask = create_block_mask(mask, None, None, s, s, device="cuda") if masks else None
    return mods.get(kind.replace("documents", "").strip()), block_mask


def attends(w):
    """The ways of PyTorch to compute a case, by name."""
    from torch.nn.attention.flex_attention import flex_attention
    ways = {}
    if not w["modification"] and not w["window"]:
        def sdpa(backend):
            def run(q, k, v):
                with sdpa_kernel(backend):
                    return attention(w, q, k, v)
            return run
        ways["torch sdpa cudnn"] = sdpa(SDPBackend.CUDNN_ATTENTION)
        ways["torch sdpa flash"] = sdpa(SDPBackend.FLASH_ATTENTION)
    else:
        score_mod, block_mask = flex_parts(w)
        run = torch.compile(flex_attention, dynamic=False)
        grouped = w["h"] != w["hk"]
        ways["torch flex"] = lambda q, k, v: run(
            q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=grouped)
    return ways


def case(w):
    """Prepares every way to compute a case, each as a graph of about two milliseconds."""
    torch._dynamo.reset()
    lost, peers = [], []
    for name, attend in attends(w).items():
        try:
            backward = w["direction"] == "backward"
            q, k, v = operands(w, backward)
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            if backward:
                d_o = torch.randn_like(q)
                # A backward runs on the stream of its forward.
                with torch.cuda.stream(stream):
                    out = attend(q, k, v)

                def f(out=out, inputs=(q, k, v), d_o=d_o):
                    return torch.autograd.grad(out, inputs, d_o, retain_graph=True)
            else:
                def f(inputs=(q, k, v), attend=attend):
                    with torch.no_grad():
                        return attend(*inputs)

            with torch.cuda.stream(stream):
                f()
                torch.cuda.synchronize()
                launches = max(2, min(200, int(2.0 / events(f, 3, 1))))
                torch.cuda.synchronize()
                try:
                    made = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(made, stream=stream):
                        for _ in range(launches):
                            f()
                    run = made.replay
                except Exception as problem:
                    torch.cuda.synchronize()
                    lost.append(f"{name} as a graph: {type(problem).__name__}: {problem}"[:200])
                    run = lambda f=f, n=launches: [f() for _ in range(n)]
            KEPT[name] = (run, launches, f)
            peers.append(name)
        except Exception as problem:
            lost.append(f"{name}: {type(problem).__name__}: {problem}"[:200])
    return {"peers": peers, "lost": lost}


def answer(w):
    do = w["do"]
    if do == "case":
        return case(w)
    if do == "turn":
        run, launches, _ = KEPT[w["peer"]]
        return {"ms": events(run, 1, 0) / launches}
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
            if request["do"] in ("kernel", "time", "case", "turn"):
                say(answer(request))
            else:
                with torch.no_grad():
                    say(answer(request))
        except Exception as problem:
            say({"error": f"{type(problem).__name__}: {problem}"[:300]})
