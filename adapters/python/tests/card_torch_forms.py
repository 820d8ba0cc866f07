"""Parts of card_torch.py: lengths, pages, plans that are built in the background, and the guide's program."""

import logging
import math
import pathlib
import time

import torch
import torch._dynamo.testing
import torch.nn.functional as F

import qkvault
import qkvault.torch as qt

DEVICE = torch.device("cuda", 0)


def lengths(report, three, exact, off):
    """Valid lengths of a batch, forward and backward, with other lengths in a replayed graph."""
    rows = {}
    for options in ({}, {"is_causal": True}, {"is_causal": True, "softcap": 20.0}):
        q, k, v = three(3, 8, 2, 384, 64, grad=True)
        given = torch.tensor([1, 200, 384], device=DEVICE, dtype=torch.int32)
        causal, cap = options.get("is_causal"), options.get("softcap")
        seen = lambda b, h, i, j: (j < given[b]) & ((j <= i) if causal else (j >= 0))  # noqa: B023, E731
        score = (lambda s, *_: cap * torch.tanh(s / cap)) if cap else None  # noqa: B023
        o = qt.attention(q, k, v, kv_lengths=given, **options)
        wanted = exact(q, k, v, score, seen)
        d_o = torch.randn_like(o)
        right = torch.autograd.grad(wanted, (q, k, v), d_o.double())
        mine = torch.autograd.grad(o, (q, k, v), d_o)
        errors = [off(o, wanted)] + [off(a, b) for a, b in zip(mine, right)]
        behind = max(g[1, :, 200:].abs().max().item() for g in mine[1:])
        assert max(errors) < 0.03 and behind == 0, (options, errors, behind)
        rows[" ".join(options) or "plain"] = [round(e, 5) for e in errors]
    q, k, v = three(2, 4, 4, 256, 64, grad=True)
    live = torch.tensor([100, 256], device=DEVICE)
    o = qt.attention(q, k, v, q_lengths=live, kv_lengths=live)
    wanted = exact(q, k, v, None, lambda b, h, i, j: j < live[b]) * (
        (torch.arange(256, device=DEVICE) < live[:, None])[:, None, :, None]
    )
    d_o = torch.randn_like(o)
    errors = [off(o, wanted)] + [
        off(a, b) for a, b in zip(
            torch.autograd.grad(o, (q, k, v), d_o), torch.autograd.grad(wanted, (q, k, v), d_o.double())
        )
    ]  # fmt: skip
    assert max(errors) < 0.03, errors
    rows["queries too"] = [round(e, 5) for e in errors]
    with torch.no_grad():
        qt.attention(q, k, v, kv_lengths=live)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = qt.attention(q, k, v, kv_lengths=live)
        live.copy_(torch.tensor([256, 7]))
        graph.replay()
        error = off(o, exact(q, k, v, None, lambda b, h, i, j: j < live[b]))
        assert error < 0.02, error
        rows["replayed with other lengths"] = round(error, 5)
    report["lengths"] = rows


def lse(report, three, off):
    """The gradient of the log-sum-exp, alone and beside that of O."""
    rows = {}
    cap = lambda s, *_: 5.0 * torch.tanh(s / 5.0)  # noqa: E731
    away = lambda s, b, h, i, j: s - 0.01 * (i - j).abs()  # noqa: E731
    cases = {
        "plain": ({}, None), "causal": ({"is_causal": True}, None), "softcap": ({"softcap": 5.0, "is_causal": True}, cap),
        "score_mod": ({"score_mod": away}, away), "window": ({"is_causal": True, "window": (40, 0)}, None),
    }  # fmt: skip
    for dtype in (torch.bfloat16, torch.float16):
        for d in (64, 128):
            for name, (options, score) in cases.items():
                q, k, v = three(2, 8, 2, 384, d, grad=True, dtype=dtype)
                o, found = qt.attention(q, k, v, return_lse=True, **options)
                wide = [t.double().repeat_interleave(8 // t.shape[1], 1) for t in (q, k, v)]
                scores = wide[0] @ wide[1].mT * d**-0.5
                i, j = torch.arange(384, device=DEVICE)[:, None], torch.arange(384, device=DEVICE)
                scores = scores if score is None else score(scores, 0, 0, i, j)
                seen = ((j <= i) if "is_causal" in options else (j >= 0)) & (i - j <= options.get("window", (384,))[0])
                scores = scores.masked_fill(~seen, -math.inf)
                right = (scores.softmax(-1) @ wide[2], scores.logsumexp(-1))
                errors = [off(found, right[1])]
                for with_o in (False, True):
                    given = [torch.randn_like(o), torch.randn_like(found)]
                    at, of = (slice(0 if with_o else 1, 2), (q, k, v)[: 3 if with_o else 2])
                    mine = torch.autograd.grad((o, found)[at], of, given[at], retain_graph=True)
                    wanted = torch.autograd.grad(right[at], of, [g.double() for g in given][at], retain_graph=True)
                    errors += [off(a, b) for a, b in zip(mine, wanted)]
                assert max(errors) < 0.02, (name, d, dtype, errors)
                rows[f"{name} {d} {str(dtype)[6:]}"] = [round(e, 5) for e in errors]
    report["log-sum-exp"] = rows


def origins(report, three, exact, off):
    """Chunks of queries at positions that are numbers or tensors, over keys from a position on, in both directions."""
    rows, size, most = {}, 256, 1024
    slopes = 2.0 ** -(1 + torch.arange(8, device=DEVICE) / 2.0)
    alibi = lambda s, b, h, i, j: s - slopes[h] * (i - j)  # noqa: E731
    table = torch.randn(most, device=DEVICE)
    lookup = lambda s, b, h, i, j: s + table[torch.abs(i - j)]  # noqa: E731
    cases = (
        ("causal", {"is_causal": True}, None, 0), ("window", {"is_causal": True, "window": 200}, None, 0),
        ("both sides", {"window": (300, 40)}, None, 0), ("alibi", {"is_causal": True}, alibi, 0),
        ("a table", {"is_causal": True}, lookup, 0), ("keys from 256 on", {"is_causal": True}, alibi, 256),
    )
    for name, options, mod, start in cases:
        left, right = (options.get("window"), 0) if options.get("is_causal") else options["window"]
        for first in (start, 300, most - size):
            q, k, v = three(2, 8, 2, most, 64, grad=True)
            own, keys = q[:, :, first : first + size], [x[:, :, start:] for x in (k, v)]
            given = {"query_origin": first, "key_origin": start, "score_mod": mod, **options}
            o = qt.attention(own, *keys, **given)
            told = qt.attention(own, *keys, **{**given, "query_origin": torch.tensor(first)})

            def position(i, j):
                return i + first, j + start  # noqa: B023

            def keep(b, h, i, j):
                i, j = position(i, j)
                seen = j <= i + right  # noqa: B023
                return seen if left is None else seen & (i - j <= left)  # noqa: B023

            def score(s, b, h, i, j):
                return mod(s, b, h, *position(i, j))  # noqa: B023

            wanted = exact(own, *keys, None if mod is None else score, keep)
            d_o = torch.randn_like(o)
            right_ones = torch.autograd.grad(wanted, (q, k, v), d_o.double())
            errors = [off(o, wanted), off(told, wanted)]
            for mine in (o, told):
                errors += [off(a, b) for a, b in zip(torch.autograd.grad(mine, (q, k, v), d_o), right_ones)]
            assert max(errors) < 0.03, (name, first, errors)
            rows[f"{name} at {first}"] = [round(e, 5) for e in errors]
    # Numbers that change are operands of a compiled program, which is compiled twice at the most.
    q, k, v = three(2, 8, 2, most, 64, grad=True)
    own, programs = q[:, :, :size], torch._dynamo.testing.CompileCounterWithBackend("inductor")
    call = lambda first, cap: qt.attention(own, k, v, is_causal=True, query_origin=first, softcap=cap)  # noqa: E731
    run, worst = torch.compile(call, backend=programs, fullgraph=True), 0.0
    for turn, first in enumerate((256, 300, 500, 768)):
        pairs = [torch.autograd.grad(f(first, 5.0 + turn).float().sum(), (q, k, v)) for f in (run, call)]
        worst = max([worst] + [off(a, b) for a, b in zip(*pairs)])
    assert worst < 0.01 and programs.frame_count <= 2, (worst, programs.frame_count)
    rows["compiled"] = {"worst": worst, "programs": programs.frame_count}
    report["origins"] = rows


def pages(report, three, exact, off, host):
    """Decoding over pages, several layouts and query counts, and a replayed graph whose table changes."""
    rows, page, width = {}, 16, 40
    for d in (64, 128):
        for layout in ("nhd", "hnd"):
            for queries in (1, 4):
                count, b, heads, keys_h = 300, 5, 8, 2
                pools = [torch.randn(count, page, keys_h, d, device=DEVICE, dtype=torch.bfloat16) for _ in range(2)]
                table = torch.randperm(count, device=DEVICE)[: b * width].reshape(b, width).int()
                given = torch.tensor([queries, 17, 300, 640, 95], device=DEVICE, dtype=torch.int32)
                q = torch.randn(b, queries, heads, d, device=DEVICE, dtype=torch.bfloat16).transpose(1, 2)
                both = pools if layout == "nhd" else [pool.transpose(1, 2).contiguous() for pool in pools]

                def right():
                    k, v = (p[table.long()].reshape(b, width * page, keys_h, d).transpose(1, 2) for p in pools)
                    return exact(q, k, v, None, lambda b, h, i, j: j <= i + given[b] - queries)

                attend = lambda: qt.paged_attention(q, *both, table, given, layout=layout)  # noqa: E731
                name = f"d{d} {layout} {queries} queries"
                try:
                    with torch.no_grad():
                        error = off(attend(), right())
                except qkvault.Refused as refused:
                    rows[name] = f"refused: {refused.reasons[0].code if refused.reasons else refused}"
                    continue
                assert error < 0.02, (name, error)
                rows[name] = round(error, 5)
    with torch.no_grad():
        rows["host us"] = host(attend)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = attend()
        table.copy_(table.flip(0))
        given.copy_(torch.tensor([640, 33, 5, 64, 200]))
        graph.replay()
        error = off(o, right())
        assert error < 0.02, error
        rows["replayed with other pages"] = round(error, 5)
    report["pages"] = rows


def background(report, three, vault):
    """A new shape inside use() while its plan is built: PyTorch serves, which is told, and then qkvault does."""
    told = []

    class Told(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())

    handler = Told()
    logging.getLogger("qkvault").addHandler(handler)
    try:
        qt.configure(vault, background=True, handles=8)
        q, k, v = three(1, 6, 6, 777, 64)
        attend = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
        wanted, calls = attend().float(), 0
        torch.cuda.synchronize()
        started = time.perf_counter()
        longest = 0.0
        with qt.use():
            while time.perf_counter() - started < 20:
                a = time.perf_counter()
                o = attend()
                longest = max(longest, time.perf_counter() - a)
                calls += 1
                try:
                    qt.attention(q, k, v, is_causal=True)
                    break
                except qkvault.PlanMissing:
                    time.sleep(0.005)
            took = time.perf_counter() - started
            error = ((attend().float() - wanted).norm() / wanted.norm()).item()
        assert error < 0.02 and calls > 1 and any("background" in line for line in told), (error, calls, told)
        report["built in the background"] = {
            "ms until qkvault served": round(took * 1e3, 1), "calls that PyTorch served": calls - 1,
            "the longest call ms": round(longest * 1e3, 2), "told": told[0][:200],
        }  # fmt: skip
    finally:
        logging.getLogger("qkvault").removeHandler(handler)
        qt.configure(vault, handles=8)


def guide(report):
    """The program of the guide's page as it stands, from its file beside this one, on the GPU."""
    here = pathlib.Path(__file__).resolve()
    places = (here.parent / "pytorch.md", here.parents[3] / "crates/qkvault/src/guide/pytorch.md")
    page = next(place for place in places if place.is_file())
    blocks = page.read_text().split("```python\n")[1:]
    names = {}
    for block in blocks:
        exec(block.split("```")[0], names)
    norm = names["layer"].distance.grad.float().norm().item()
    assert math.isfinite(norm) and norm > 0, norm
    report["the guide's program"] = f"{len(blocks)} blocks ran"


def missing(report, three, vault):
    """What is said of a plan that may not be built, in eager mode and under torch.compile."""
    try:
        qt.configure(vault, build=False)
        q, k, v = three(1, 5, 5, 555, 64)
        rows = {}
        compiled = torch.compile(lambda q, k, v: qt.attention(q, k, v) * 1.0, fullgraph=True)
        for name, attend in (("eager", qt.attention), ("torch.compile", compiled)):
            try:
                attend(q, k, v)
                rows[name] = "nothing was raised"
            except Exception as error:
                rows[name] = f"{type(error).__name__}: {str(error)[:300]}"
        report["a plan that is missing"] = rows
        assert all("build" in said for said in rows.values()), rows
    finally:
        qt.configure(vault, handles=8)
