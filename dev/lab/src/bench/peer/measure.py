"""Prepares each way to compute a case: checks its numbers, and captures it as a graph of about two milliseconds."""
import contextlib
import importlib

import torch

from cases import Case, Refused

# What is replayed, by the name of a peer.
KEPT = {}
# Each module has `ways(case)`, which gives functions by the names of peers. Such a function prepares the computation
# and gives a function without arguments, which computes the attention or its gradients, and the layout of its results.
MODULES = ("ways_torch", "ways_flex", "ways_flash_attn", "ways_flashinfer")
TOLD = set()
# Milliseconds of launches that a graph has, about, and how often slower than the fastest a peer is timed once.
GRAPH_MS, FAR = 2.0, 3.0
# Failures after which a process computes nothing more.
BROKEN = ("illegal memory access", "misaligned address", "unspecified launch failure", "device-side assert")


def shaped(t, layout):
    """A result as (rows, heads, head dim)."""
    t = t.transpose(1, 2) if layout == "bhsd" else t
    return t.reshape(-1, *t.shape[-2:])


def inputs(case, tensors):
    """Operands that a backward differentiates: no view lies between them and the attention."""
    return [t.detach().requires_grad_(case.backward) for t in tensors]


def computed(case, layout, attend, operands):
    """The function of a way: the attention of operands, or its gradients."""
    if not case.backward:
        return (lambda: (attend(*operands),)), layout
    out = attend(*operands)
    by_head = layout == "bhsd"
    d_o = case.d_o.view(out.shape[0], -1, case.h, case.dv).transpose(1, 2) if by_head else case.d_o.view(out.shape)
    wanted = [*operands, case.sinks] if case.d_sink else operands
    return (lambda: torch.autograd.grad(out, wanted, d_o, retain_graph=True)), layout


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


def all_ways(case):
    """Every way of every library that is there, and why others are not."""
    ways, lost = {}, {}
    for name in MODULES:
        try:
            module = importlib.import_module(name)
            if hasattr(module, "compile_nothing"):
                module.compile_nothing()
            ways |= module.ways(case)
        except Exception as problem:
            if name not in TOLD:
                lost[name.removeprefix("ways_").replace("_", "-")] = words(problem)
            TOLD.add(name)
    return ways, lost


def words(problem):
    text = " ".join(str(problem).split())
    return (text if isinstance(problem, Refused) else f"{type(problem).__name__}: {text}")[:200]


@contextlib.contextmanager
def one_order(case):
    """PyTorch sums in one order, and does not fill what it allocates for that."""
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(case.deterministic)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = before


def prepare(case, name, make, told):
    """Keeps a way for its turns, and gives its milliseconds. What stands between it and a graph is told."""
    from exact import check

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    # A backward runs on the stream of its forward.
    with torch.cuda.stream(stream), torch.set_grad_enabled(case.backward), one_order(case):
        f, layout = make()
        check(case, [shaped(t, layout) for t in f()[:3]])
        torch.cuda.synchronize()
        once = events(f, 2, 1)
        launches = max(1, min(200, int(GRAPH_MS / max(once, 1e-3))))
        try:
            made = torch.cuda.CUDAGraph()
            with torch.cuda.graph(made, stream=stream):
                for _ in range(launches):
                    f()
            run = made.replay
        except Exception as problem:
            torch.cuda.synchronize()
            told[f"{name} as a graph"] = words(problem)
            run = lambda: [f() for _ in range(launches)]
    KEPT[name] = (run, launches, f)
    return once


def prepared(w):
    """Prepares every way to compute a case: those that do, the time of those far from the fastest, and why others do
    not compute it."""
    case = Case(w)
    ways, told = all_ways(case)
    times, broken = {}, False
    for name, make in ways.items():
        try:
            times[name] = prepare(case, name, make, told)
        except Exception as problem:
            KEPT.pop(name, None)
            told[name] = words(problem)
            broken = any(word in str(problem) for word in BROKEN)
            if broken:
                times = {}
                break
    least = min(times.values(), default=0)
    far = {name: ms for name, ms in times.items() if ms > GRAPH_MS and ms > FAR * least}
    return {"peers": [name for name in times if name not in far], "far": far, "refused": told, "broken": broken}


def turn(w):
    run, launches, _ = KEPT[w["peer"]]
    return {"ms": events(run, 1, 0) / launches}


def free(_):
    KEPT.clear()
    torch.cuda.empty_cache()
    return {}
