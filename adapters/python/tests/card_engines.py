"""The default engine beside every engine by name, through the doors of PyTorch, C and JAX.

    python3 card_engines.py prepare VAULT [jax]       # on any machine: FlashAttention-4's plans, by its compiler
    python3 card_engines.py torch VAULT OUT.json      # on the GPU; C's door launches the same descriptions
    python3 card_engines.py jax VAULT OUT.json

Calls of PyTorch and of C are captured graphs of about two milliseconds that take turns. A program of JAX has N or 2 N
calls, and a call takes the difference; engines are timed one after the other. Each row has microseconds by engine,
`auto` (the default) among them, and of the framework's own attention; an engine that refuses has its reason.
"""

import json
import statistics
import sys
import time

ROUNDS = 9
# Sequences, query heads, heads of keys, tokens, head dim, options.
ROWS = {
    "causal b4 h16/16 s4096 d128": (4, 16, 16, 4096, 128, {"is_causal": True}),
    "causal b1 h32/8 s2048 d128": (1, 32, 8, 2048, 128, {"is_causal": True}),
    "full b4 h16/16 s4096 d128": (4, 16, 16, 4096, 128, {}),
    "causal b8 h16/16 s1024 d64": (8, 16, 16, 1024, 64, {"is_causal": True}),
    "softcap b2 h32/8 s4096 d128": (2, 32, 8, 4096, 128, {"is_causal": True, "softcap": 50.0}),
    "window b2 h32/8 s8192 d128": (2, 32, 8, 8192, 128, {"window": (511, 0)}),
    "sink b2 h64/8 s4096 d64": (2, 64, 8, 4096, 64, {"is_causal": True, "sinks": True}),
    "documents b1 h16/16 s8192 d128": (1, 16, 16, 8192, 128, {"is_causal": True, "documents": 1024}),
    "mask tensor b1 h16/16 s4096 d128": (1, 16, 16, 4096, 128, {"mask": 1024}),
}
# One query over pages, in PyTorch.
DECODES = {"decode b8 h32/8 s8192 d128": (8, 32, 8, 8192, 128), "decode b64 h32/8 s1024 d128": (64, 32, 8, 1024, 128)}
# A program of JAX takes seconds to compile, so fewer of them.
OF_JAX = ("causal b4", "softcap", "documents", "sink", "window")
ENGINES = ("auto", "cudnn", "kernels", "fa4")
DOORS = ("torch", "C", "jax")


def short(problem):
    return f"{type(problem).__name__}: {problem}".split("\n")[0][:160]


class Torch:
    """Calls of PyTorch's door, and the texts of their descriptions."""

    def __init__(self, device):
        import torch

        import qkvault.torch as qt

        self.torch, self.qt, self.device = torch, qt, device

    def tensors(self, b, h, hk, s, d, grad):
        torch = self.torch
        make = lambda heads: torch.randn(b, s, heads, d, device=self.device, dtype=torch.bfloat16)
        return [make(heads).transpose(1, 2).requires_grad_(grad) for heads in (h, hk, hk)]

    def options(self, h, s, given):
        torch, given = self.torch, dict(given)
        if given.pop("sinks", None):
            given["sinks"] = torch.randn(h, device=self.device)
        document = given.pop("documents", None)
        if document:
            ids = torch.arange(s, device=self.device, dtype=torch.int32) // document
            given["mask_mod"] = lambda b, head, i, j: ids[i] == ids[j]
        document = given.pop("mask", None)
        if document:
            at = torch.arange(s, device=self.device)
            same = at[:, None] // document == at[None] // document
            given["attn_mask"] = same & (at[:, None] >= at[None])
        return given

    def prepare(self, vault):
        """FlashAttention-4's plans of every row, for an H200."""
        self.qt.configure(vault, engine="fa4", build=True)
        for name, (b, h, hk, s, d, given) in ROWS.items():
            options = self.options(h, s, given)
            for grad in (False, True):
                try:
                    plans = self.qt.prepare(*self.tensors(b, h, hk, s, d, grad), gpu="h200", **options)
                    print(name, [plan.source for plan in plans], flush=True)
                except Exception as problem:
                    print(name, short(problem), flush=True)

    def graph(self, f):
        """A graph of about two milliseconds, and its calls."""
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            f()
            torch.cuda.synchronize()
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            a.record()
            f()
            b.record()
            b.synchronize()
            calls = max(2, min(200, int(2.0 / a.elapsed_time(b))))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(calls):
                    f()
        return graph, calls, f

    def turns(self, made):
        """Microseconds of graphs that take turns, by round: the clock falls while a card grows warm, so two engines are
        compared round by round, not by medians of all rounds."""
        torch, times = self.torch, {name: [] for name in made}
        for at in range(ROUNDS + 1):
            for name in reversed(made) if at % 2 else made:
                graph, calls, _ = made[name]
                a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                a.record()
                graph.replay()
                b.record()
                b.synchronize()
                if at:
                    times[name].append(a.elapsed_time(b) / calls * 1e3)
        return times

    def calls(self, backward, tensors, attend):
        torch = self.torch
        if not backward:
            def forward():
                with torch.no_grad():
                    return attend(*tensors)
            return forward
        # A backward runs on the stream of its forward.
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            o = attend(*tensors)
            d_o = torch.randn_like(o)
        torch.cuda.synchronize()
        return lambda: torch.autograd.grad(o, tensors, d_o, retain_graph=True)

    def peers(self, given, options, h, hk, s):
        import torch.nn.functional as F
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch = self.torch
        group = {"enable_gqa": h != hk}

        def sdpa(backend):
            def run(q, k, v):
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(q, k, v, is_causal=bool(given.get("is_causal")), **group)
            return run

        if not set(given) - {"is_causal"}:
            return {"SDPA cuDNN": sdpa(SDPBackend.CUDNN_ATTENTION), "SDPA flash": sdpa(SDPBackend.FLASH_ATTENTION)}
        if "mask" in given or "sinks" in given:
            return {}
        left = given.get("window", (None,))[0]
        inner = options.get("mask_mod")

        def mask(b, head, i, j):
            seen = i >= j
            if left is not None:
                seen = seen & (i - j <= left)
            return seen & inner(b, head, i, j) if inner else seen

        torch._dynamo.reset()
        run = torch.compile(flex_attention, dynamic=False)
        blocks = create_block_mask(mask, None, None, s, s, device=self.device)
        cap = given.get("softcap")
        score = (lambda x, b, head, i, j: cap * torch.tanh(x / cap)) if cap else None
        return {"FlexAttention": lambda q, k, v: run(q, k, v, score_mod=score, block_mask=blocks, **group)}

    def row(self, backward, tensors, attend, peers, vault):
        """Graphs of every engine and of peers, and why others have none."""
        made, refused = {}, {}
        for engine in ENGINES:
            self.qt.configure(vault, engine=engine, build=True)
            try:
                made[f"torch {engine}"] = self.graph(self.calls(backward, tensors, attend))
            except Exception as problem:
                refused[f"torch {engine}"] = short(problem)
                self.torch.cuda.synchronize()
        for peer, run in peers.items():
            try:
                made[peer] = self.graph(self.calls(backward, tensors, run))
            except Exception as problem:
                refused[peer] = short(problem)
                self.torch.cuda.synchronize()
        return made, refused

    def launches(self, attention, vault):
        """Graphs of C's door: the plan of every engine, launched with addresses."""
        from qkvault import Context

        torch, made, refused = self.torch, {}, {}
        for engine in ENGINES:
            try:
                context = Context(vault, engine=engine, build=True)
                plan = context.prepare(attention, 0)
                given, scalars, kept = {}, {}, [context, plan]
                for one in plan.tensors:
                    if one.dtype == "i32":
                        buffer = torch.arange(one.bytes // 4, device=self.device, dtype=torch.int32) // 1024
                    else:
                        buffer = torch.randn(one.bytes // 2, device=self.device, dtype=torch.bfloat16)
                    kept.append(buffer)
                    given[one.role] = (buffer.data_ptr(), one.bytes)
                for one in plan.scalars:
                    scalars[one.role] = 0.088 if one.role == "scale" else 50.0
                space = torch.empty(max(plan.workspace, 1), device=self.device, dtype=torch.uint8)
                kept.append(space)

                def f(plan=plan, given=given, scalars=scalars, space=space, kept=kept):
                    stream = torch.cuda.current_stream().cuda_stream
                    plan.launch(given, scalars, workspace=(space.data_ptr(), plan.workspace), stream=stream)

                made[f"C {engine}"] = self.graph(f)
            except Exception as problem:
                refused[f"C {engine}"] = short(problem)
                torch.cuda.synchronize()
        return made, refused

    def run(self, vault):
        from qkvault.torch import _ahead

        torch, qt = self.torch, self.qt
        for name, (b, h, hk, s, d, given) in ROWS.items():
            options = self.options(h, s, given)
            for backward in (False, True):
                tensors = self.tensors(b, h, hk, s, d, backward)
                attend = lambda q, k, v, options=options: qt.attention(q, k, v, **options)
                peers = self.peers(given, options, h, hk, s)
                made, refused = self.row(backward, tensors, attend, peers, vault)
                if not set(given) - {"is_causal", "softcap", "window"}:
                    more = self.launches(_ahead._attentions(*tensors, options)[-1], vault)
                    made.update(more[0])
                    refused.update(more[1])
                yield name, backward, self.turns(made), refused
                del made
                torch.cuda.empty_cache()
        for name, (b, h, hk, s, d) in DECODES.items():
            page, each = 64, s // 64
            q = torch.randn(b, 1, h, d, device=self.device, dtype=torch.bfloat16).transpose(1, 2)
            pools = [torch.randn(b * each, page, hk, d, device=self.device, dtype=torch.bfloat16) for _ in range(2)]
            numbers = torch.arange(b * each, device=self.device, dtype=torch.int32)
            table = numbers.view(each, b).t().contiguous()
            lengths = torch.full((b,), s, device=self.device, dtype=torch.int32)
            attend = lambda q: qt.paged_attention(q, *pools, table, lengths)
            yield (f"{name} over pages", False, *self.turned(self.row(False, [q], attend, {}, vault)))
        for name, (documents, h, hk, s, d) in {
            "packed b8 h32/8 s4096 d128": (8, 32, 8, 4096, 128),
            "packed b16 h16/16 s1024 d128": (16, 16, 16, 1024, 128),
        }.items():
            starts = torch.arange(documents + 1, device=self.device, dtype=torch.int32) * s
            for backward in (False, True):
                make = lambda heads: torch.randn(documents * s, heads, d, device=self.device, dtype=torch.bfloat16)
                tensors = [make(heads).requires_grad_(backward) for heads in (h, hk, hk)]
                attend = lambda q, k, v: qt.varlen_attention(q, k, v, starts, starts, s, s, is_causal=True)
                yield (name, backward, *self.turned(self.row(backward, tensors, attend, {}, vault)))

    def turned(self, made_and_refused):
        made, refused = made_and_refused
        return self.turns(made), refused


class Jax:
    """Calls of JAX's door."""

    def __init__(self):
        import jax

        import qkvault.jax as qj

        self.jax, self.qj = jax, qj

    def arrays(self, b, h, hk, s, d):
        jax = self.jax
        make = lambda heads: jax.random.normal(jax.random.key(heads), (b, s, heads, d), "bfloat16")
        return [make(heads) for heads in (h, hk, hk)]

    def options(self, h, s, given):
        jnp, given = self.jax.numpy, dict(given)
        if given.pop("sinks", None):
            given["sinks"] = jnp.ones((h,), "float32")
        document = given.pop("documents", None)
        if document:
            given["segment_ids"] = jnp.arange(s, dtype="int32")[None] // document
        document = given.pop("mask", None)
        if document:
            at = jnp.arange(s)
            same = at[:, None] // document == at[None] // document
            given["mask"] = (same & (at[:, None] >= at[None]))[None, None]
        return given

    def programs(self, attend, backward, calls):
        """A program of so many calls, each behind the one before it, so that XLA keeps them all."""
        jax = self.jax

        def forward(q, k, v):
            for _ in range(calls):
                q = attend(q, k, v)
            return q

        def gradients(q, k, v):
            o, pull = jax.vjp(attend, q, k, v)
            d_o = o
            for _ in range(calls):
                d_o = pull(d_o)[0]
            return d_o

        return jax.jit(gradients if backward else forward)

    def prepare(self, vault):
        from qkvault import Context

        self.qj.configure(context=Context(vault, engine="fa4", build=True), target="h200")
        for name, (b, h, hk, s, d, given) in ROWS.items():
            options = self.options(h, s, given)
            attend = lambda q, k, v, options=options: self.qj.attention(q, k, v, **options)
            for backward in (False, True):
                shapes = [self.jax.ShapeDtypeStruct((b, s, heads, d), "bfloat16") for heads in (h, hk, hk)]
                try:
                    self.programs(attend, backward, 1).lower(*shapes)
                    print(name, backward, "prepared", flush=True)
                except Exception as problem:
                    print(name, backward, short(problem), flush=True)

    def compiled(self, attend, arrays, backward):
        """Programs of some calls and of twice as many, ready to run."""
        one = self.programs(attend, backward, 1)
        one(*arrays).block_until_ready()
        start = time.perf_counter()
        one(*arrays).block_until_ready()
        calls = max(2, min(32, int(8e-3 / (time.perf_counter() - start))))
        made = [self.programs(attend, backward, n) for n in (calls, 2 * calls)]
        for program in made:
            program(*arrays).block_until_ready()
        return made, calls

    def run(self, vault):
        from qkvault import Context

        jax, qj = self.jax, self.qj
        named = [(name, row) for name, row in ROWS.items() if name.startswith(OF_JAX)]
        rows = [(name, row, backward) for name, row in named for backward in (False, True)]
        for name, (b, h, hk, s, d, given), backward in rows:
            options, arrays = self.options(h, s, given), self.arrays(b, h, hk, s, d)
            times, refused = {}, {}
            # A program runs with the plans of the last context, so each engine has its turn alone.
            for engine in ENGINES:
                context = Context(vault, engine=engine, build=True)
                qj.configure(context=context)
                jax.clear_caches()
                attend = lambda q, k, v: qj.attention(q, k, v, **options)
                try:
                    times[f"jax {engine}"] = self.timed(attend, arrays, backward)
                except Exception as problem:
                    refused[f"jax {engine}"] = short(problem)
            if not set(given) - {"is_causal"}:
                own = lambda q, k, v: jax.nn.dot_product_attention(
                    q, k, v, is_causal=bool(given), implementation="cudnn")
                times["jax.nn cuDNN"] = self.timed(own, arrays, backward)
            yield name, backward, times, refused

    def timed(self, attend, arrays, backward):
        """Microseconds of a call: the median difference of programs of N and of 2 N calls."""
        (few, many), calls = self.compiled(attend, arrays, backward)
        each = []
        for _ in range(ROUNDS + 1):
            seconds = []
            for program in (few, many):
                start = time.perf_counter()
                program(*arrays).block_until_ready()
                seconds.append(time.perf_counter() - start)
            each.append((seconds[1] - seconds[0]) / calls * 1e6)
        return each[1:]


def main():
    what, vault, *more = sys.argv[1:]
    if what == "prepare":
        (Jax() if more == ["jax"] else Torch("cpu")).prepare(vault)
        return
    door = Torch("cuda") if what == "torch" else Jax()
    rows, started = [], time.time()
    for name, backward, times, refused in door.run(vault):
        us = {what: round(statistics.median(list_), 2) for what, list_ in times.items()}
        row = {"case": name, "direction": "backward" if backward else "forward", "us": us, "refused": refused}
        row |= {f"{kind}_default_over_best": over_best(kind, times) for kind in DOORS if f"{kind} auto" in times}
        rows.append(row)
        print(json.dumps(row), flush=True)
        with open(more[0], "w") as file:
            json.dump({"machine": machine(what), "rows": rows}, file, indent=1)
    print(f"{len(rows)} rows in {time.time() - started:.0f} s")


def over_best(kind, times):
    """The default of a door beside the fastest of its engines and the framework's: the median of the rounds' ratios."""
    mine = times[f"{kind} auto"]
    ratio = lambda list_: statistics.median(a / b for a, b in zip(mine, list_))
    rest = [ratio(list_) for what, list_ in times.items() if what.split(" ")[0] not in {*DOORS} - {kind}]
    return round(max(rest), 3)


def machine(what):
    if what == "jax":
        import jax

        return f"{jax.devices()[0].device_kind}, JAX {jax.__version__}"
    import torch

    return f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"


if __name__ == "__main__":
    main()
