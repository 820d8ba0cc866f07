"""Host time of new shapes from the vault in eager mode, by engine, with right numbers. Writes new-shapes.json.

    python3 card_torch_shapes.py --fill VAULT [--engines cudnn,fa4,auto] [--cudnn DIR]   # no GPU: compiles the plans
    python3 card_torch_shapes.py --out FOLDER --vault VAULT

`QKVAULT_LIBRARY` names libqkvault.so, or the wheel is installed. Every shape is called once in a fresh process of each
engine, over a vault that has its plans and may not build: forward without gradients, or forward and backward. The time
is that of the host until the call returns, with the GPU idle before it. Where it goes is what the library says of the
loading of each plan; a second call of the same shape tells what is left for other work. The exit code is 1 if a number
is wrong or a plan is not the engine's.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import torch

import qkvault
import qkvault.torch as qt

ENGINES = ("auto", "fa4", "cudnn")
#: Batch, query heads, key heads, tokens, head dim; all causal.
SHAPES = [
    (b, h, hk, s, d)
    for d in (64, 128)
    for b, h, hk in ((1, 32, 8), (2, 16, 16))
    for s in (264, 520, 1000, 1111, 1213, 1315, 2048, 2056, 3000, 4096)
]
PASSES = ("forward", "training")


def three(shape, device, grad=False):
    b, h, hk, s, d = shape
    made = (torch.randn(b, s, n, d, device=device, dtype=torch.bfloat16).transpose(1, 2) for n in (h, hk, hk))
    return tuple(t.requires_grad_(grad) for t in made)


def exact(q, k, v):
    """The definition in float32, for a block of the last queries, differentiable."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = q.float(), k.float().repeat_interleave(groups, 1), v.float().repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


def off(a, b):
    a, b = a.detach().double(), b.detach().double()
    return ((a - b).norm() / b.norm()).item() if torch.isfinite(a).all() else float("inf")


def fill(vault, engines, cudnn):
    """Compiles every plan for an H200, without a GPU. A plan that an engine does not take is told."""
    meta = torch.device("meta")
    for engine in engines:
        qt.configure(vault, build=True, engine=engine, cudnn=cudnn)
        started, plans = time.time(), 0
        for shape in SHAPES:
            for kind in PASSES:
                plans += len(qt.prepare(*three(shape, meta, kind == "training"), is_causal=True, gpu="h200"))
        print(f"{engine}: {plans} plans in {time.time() - started:.1f} s", flush=True)


def run(engine, kind, vault):
    """The first call of every shape in this process, of which a further one comes first."""
    device = torch.device("cuda", 0)
    torch.ones(8, device=device).sum().item()
    training = kind == "training"
    qt.configure(vault, build=False, engine=engine)
    rows, wrong = [], []
    for at, shape in enumerate(SHAPES):
        q, k, v = three(shape, device, training)
        d_o = torch.randn_like(q)

        def call():
            start = time.perf_counter()
            o = qt.attention(q, k, v, is_causal=True)
            middle = time.perf_counter()
            grads = torch.autograd.grad(o, (q, k, v), d_o) if training else ()
            end = time.perf_counter()
            torch.cuda.synchronize()
            return o, grads, [(middle - start) * 1e3, (end - middle) * 1e3]

        torch.cuda.synchronize()
        o, grads, first = call()
        _, _, second = call()
        plans = qt.prepare(q, k, v, is_causal=True)
        row = {"shape": shape, "first ms": sum(first), "second ms": sum(second)}
        if training:
            row["first forward ms"], row["first backward ms"] = first
        row["plans"] = [{"engine": p.engine, "why": p.why, "us": p.times} for p in plans]
        wanted = exact(q, k, v)
        errors = [off(o, wanted)]
        if training:
            errors += [off(a, b) for a, b in zip(grads, torch.autograd.grad(wanted, (q, k, v), d_o.float()))]
        row["off"] = max(errors)
        if max(errors) > 0.02:
            wrong.append(f"{shape}: {errors}")
        is_fa4 = ["FlashAttention-4" in p.engine for p in plans]
        if engine in ("fa4", "cudnn") and any(one != (engine == "fa4") for one in is_fa4):
            wrong.append(f"{shape}: plans of {[p.engine for p in plans]}")
        # The first plan of a process loads libraries.
        rows.append(row | {"first of the process": at == 0})
        del q, k, v, o, grads, wanted
    print(json.dumps({"rows": rows, "wrong": wrong}))


def told(rows):
    """Medians over the shapes after the first."""
    later = [row for row in rows if not row["first of the process"]]
    median = lambda of: round(statistics.median(of), 3)  # noqa: E731
    parts = {}
    for row in later:
        for at, plan in enumerate(row["plans"]):
            name = ("forward", "backward")[at]
            for part, us in plan["us"].items():
                parts.setdefault(f"{name} {part} us", []).append(us)
    firsts = [row["first ms"] for row in later]
    by_engine = {}
    for row in later:
        by_engine.setdefault("+".join(p["engine"].split(" ")[0] for p in row["plans"]), []).append(row["first ms"])
    return {
        "shapes": len(later),
        "first of the process ms": round(rows[0]["first ms"], 3),
        "new shape ms": {"median": median(firsts), "least": round(min(firsts), 3), "most": round(max(firsts), 3)},
        "of at most 2 ms": sum(ms <= 2 for ms in firsts),
        "by engine ms": {name: {"shapes": len(of), "median": median(of)} for name, of in by_engine.items()},
        "same shape again ms": median([row["second ms"] for row in later]),
        "where the time goes, medians": {name: round(statistics.median(of), 1) for name, of in parts.items()},
        "largest error": round(max(row["off"] for row in rows), 5),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--vault", type=pathlib.Path)
    parser.add_argument("--fill", type=pathlib.Path, metavar="VAULT", help="only compile the plans into this vault")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--cudnn", help="with --fill: the cuDNN of the GPU host, a folder")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    words = parser.parse_args()
    engines = words.engines.split(",")
    if words.fill:
        return fill(words.fill, engines, words.cudnn)
    if not words.vault or not words.out:
        parser.error("give --vault and --out, or --fill")
    if words.one:
        return run(*words.one, words.vault)
    words.out.mkdir(parents=True, exist_ok=True)
    report = {
        "gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "qkvault": qkvault.version(), "table": {},
        "wrong": {}, "failed": {}, "rows": {},
    }  # fmt: skip
    for engine in engines:
        for kind in PASSES:
            name = f"{engine} {kind}"
            command = [sys.executable, __file__, "--out", str(words.out), "--vault", str(words.vault)]
            done = subprocess.run([*command, "--one", engine, kind], capture_output=True, text=True, env=os.environ)
            if done.returncode != 0:
                report["failed"][name] = done.stderr[-2000:]
                print(f"{name}: failed\n{done.stderr[-2000:]}", flush=True)
                continue
            answer = json.loads(done.stdout.splitlines()[-1])
            report["rows"][name], report["table"][name] = answer["rows"], told(answer["rows"])
            if answer["wrong"]:
                report["wrong"][name] = answer["wrong"]
            print(name, json.dumps(report["table"][name], indent=1), flush=True)
            (words.out / "new-shapes.json").write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(1 if report["wrong"] or report["failed"] else 0)


if __name__ == "__main__":
    main()
