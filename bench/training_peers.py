#!/usr/bin/env python3
"""Times attentions of qkvault and PyTorch on the same GPU, forward and backward, in turns in one run.

    python3 training_peers.py [--out RESULTS.json] [--rounds N] -- ./qkvault-lab --vault vault bench attentions --cases training.txt [more options]

The command after `--` gets `--interactive`: it loads and checks its plans, describes them on the first line, and then
times each request. Each round measures every competitor of a case once. Every other round runs in reverse, because a
GPU lowers its clocks under load. The record has medians. Times are between CUDA events, over about 20 ms of launches
after an untimed one.

TFLOP/s follow the usual convention: 4 b h s_q s_kv d operations for a forward and 2.5 times as many for a backward, and
half of them for a causal mask. Windows and documents count the share of pairs that they keep, as in FlexAttention's own
benchmark. A case's goal is one of:
  flex F B R    at least F (forward) or B (backward) TFLOP/s, or at least R times as fast as compiled FlexAttention
  nvidia F B    at least 0.98 of the better of PyTorch's cuDNN backend, measured here, and NVIDIA's published F and B
"""
import argparse, json, math, statistics, subprocess, sys, time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


class Command:
    """The other program. It answers each line with one line."""

    def __init__(self, words):
        self.process = subprocess.Popen(words + ["--interactive"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{words[0]} printed nothing and ended with {self.process.wait()}")
        header = json.loads(line)
        self.machine, self.entries = header["machine"], header["entries"]

    def time(self, entry, direction, launches, before):
        self.process.stdin.write(f"{entry} {direction} {launches} {before}\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["ms"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def timed(f, n, before=1):
    """Milliseconds of one call, after `before` untimed ones."""
    for _ in range(before):
        f()
    if not CUDA:
        start = time.perf_counter()
        for _ in range(n):
            f()
        return (time.perf_counter() - start) * 1e3 / n
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record()
    for _ in range(n):
        f()
    b.record()
    b.synchronize()
    return a.elapsed_time(b) / n


def mods(e):
    """The score modification and the mask of a case for FlexAttention."""
    cap, window, documents = e["scalars"].get("cap"), (e["band"] or {}).get("left"), e["documents"]
    causal, s = (e["band"] or {}).get("right") == 0, e["seq_q"]
    slopes = None
    if "alibi_slopes" in (e["score_mod"] or ""):
        slopes = torch.tensor(alibi_slopes(e["heads"]), device=DEVICE, dtype=torch.float32)
    score = None
    if cap and slopes is not None:
        score = lambda x, b, h, q, k: cap * torch.tanh(x / cap) + slopes[h] * (k - q)
    elif cap:
        score = lambda x, b, h, q, k: cap * torch.tanh(x / cap)
    elif slopes is not None:
        score = lambda x, b, h, q, k: x + slopes[h] * (k - q)
    # The document of a position: a division for equal lengths, as in FlexAttention's own examples, otherwise a table.
    length = documents[0]
    if all(n == length for n in documents):
        same = lambda q, k: q // length == k // length
    else:
        ids = torch.repeat_interleave(torch.arange(len(documents), device=DEVICE), torch.tensor(documents, device=DEVICE))
        same = lambda q, k: ids[q] == ids[k]
    if e["mask_mod"] and causal:
        mask = lambda b, h, q, k: (q >= k) & same(q, k)
    elif e["mask_mod"]:
        mask = lambda b, h, q, k: same(q, k)
    elif causal and window:
        mask = lambda b, h, q, k: (q >= k) & (q - k < window)
    elif causal:
        mask = lambda b, h, q, k: q >= k
    else:
        mask = None
    return score, mask


def alibi_slopes(heads):
    n = 1 << (heads.bit_length() - 1)
    return [2.0 ** (-8.0 * i / n) for i in range(1, n + 1)] + [2.0 ** (-4.0 * (2 * j + 1) / n) for j in range(heads - n)]


def competitors(e):
    """The forward and backward calls of each competitor, by name."""
    b, h, hk, sq, sk, d = (e[k] for k in ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "d_qk"))
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[e["dtype"]]
    make = lambda heads, s: torch.randn(b, s, heads, d, device=DEVICE, dtype=dtype).transpose(1, 2)
    q, k, v = (make(*x).detach().requires_grad_() for x in ((h, sq), (hk, sk), (hk, sk)))
    do, gqa, found = make(h, sq), h != hk, {}
    score, mask = mods(e)
    if e["score_mod"] is None and e["mask_mod"] is None and (e["band"] or {}).get("left") is None:
        def plain():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION if CUDA else SDPBackend.MATH):
                return F.scaled_dot_product_attention(q, k, v, is_causal=e["band"] is not None, scale=e["scale"], enable_gqa=gqa)
        found["torch_cudnn"] = plain
    else:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        flex = torch.compile(flex_attention, dynamic=False) if CUDA else flex_attention
        blocks = create_block_mask(mask, None, None, sq, sk, device=DEVICE) if mask else None
        found["flex"] = lambda: flex(q, k, v, score_mod=score, block_mask=blocks, scale=e["scale"], enable_gqa=gqa)
    calls = {}
    for name, f in found.items():
        out = f()
        back = lambda out=out: torch.autograd.grad(out, (q, k, v), do, retain_graph=True)
        back()
        calls[name] = {"forward": f, "backward": back}
    return calls


def judge(e, direction, ms, peers, tflops):
    """The goal as text, and whether it is reached; None without a goal or a time."""
    words = e["notes"].get("goal", "").split()
    at = {"forward": 1, "backward": 2}[direction]
    if not words or ms is None:
        return None, None
    figure = float(words[at])
    if words[0] == "flex":
        times = float(words[3])
        ratio = peers["flex"]["ms"] / ms if "ms" in peers.get("flex", {}) else math.nan
        return f">= {figure:.0f} TFLOP/s or >= {times} x FlexAttention", tflops >= figure or ratio >= times
    best = max([figure] + [p["tflops"] for p in peers.values() if "tflops" in p])
    return f">= 0.98 x {best:.0f} TFLOP/s", tflops >= 0.98 * best


def measure(command, rounds, burst=0.020, rest=0.0, before=1):
    rows, by_case = [], {}
    for e in command.entries:
        by_case.setdefault(e["case"], []).append(e)
    for case, entries in by_case.items():
        try:
            calls, error = competitors(entries[0]), None
        except Exception as problem:  # an unsupported case is a row, not an error
            calls, error = {}, f"{type(problem).__name__}: {problem}"[:300]
        for direction in ("forward", "backward"):
            flops = entries[0][direction]["flops"]
            n = max(1 if rest else 3, min(100, int(burst / (flops / 5e14))))
            turns = [(e["entry"], None) for e in entries if e[direction]["status"] == "right"]
            turns += [(name, f[direction]) for name, f in calls.items()]
            times = {name: [] for name, _ in turns}
            for r in range(rounds):
                for name, f in turns if r % 2 == 0 else turns[::-1]:
                    time.sleep(rest)
                    times[name].append(timed(f, n, before) if f else command.time(name, direction, n, before))
            times_of = lambda name: {
                "ms": statistics.median(times[name]), "best_ms": min(times[name]),
                "tflops": flops / statistics.median(times[name]) / 1e9,
            }
            peers = {name: times_of(name) for name in calls}
            if error:
                peers["error"] = {"why": error}
            for e in entries:
                mine = times_of(e["entry"]) if times.get(e["entry"]) else {"ms": None, "tflops": None}
                goal, reached = judge(e, direction, mine["ms"], peers, mine["tflops"])
                plan = e[direction]
                row = {
                    "entry": e["entry"], "case": case, "form": e["form"], "direction": direction, "attention": e["attention"], "run": e["run"],
                    "status": plan["status"], "why": plan["why"], "share": e["share"], "flops": flops, **mine, "peers": peers,
                    "ratios": {p: round(peers[p]["ms"] / mine["ms"], 3) for p in calls if mine["ms"]},
                    "workspace": plan.get("workspace"), "resident": plan.get("resident"), "engine": plan.get("engine"),
                    "key": plan.get("key"), "checks": plan["checks"], "goal": goal, "reached": reached,
                }
                rows.append(row)
                print(json.dumps({k: row[k] for k in ("entry", "direction", "status", "tflops", "ratios", "goal", "reached")}), flush=True)
        del calls
        if CUDA:
            torch.cuda.empty_cache()
    return rows


def table(rows):
    lines = ["| case | direction | ms | TFLOP/s | peer | peer TFLOP/s | times as fast | workspace | goal | reached |", "|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        peers = [(n, p) for n, p in r["peers"].items() if "tflops" in p]
        name, peer = peers[0] if peers else ("", None)
        cells = [
            r["entry"], r["direction"], f"{r['ms']:.4f}" if r["ms"] else r["status"], f"{r['tflops']:.0f}" if r["ms"] else "", name,
            f"{peer['tflops']:.0f}" if peer else "", f"{r['ratios'].get(name, math.nan):.2f}" if r["ms"] and peer else "",
            "" if r["workspace"] is None else str(r["workspace"]), r["goal"] or "", {True: "yes", False: "no", None: ""}[r["reached"]],
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", help="file for the record; the table goes to the same name with .md")
    p.add_argument("--rounds", type=int, default=11)
    p.add_argument("--burst", type=float, default=0.020, help="seconds of launches in a turn")
    p.add_argument("--rest", type=float, default=0.0, help="seconds to wait before each turn, because the GPU lowers its clocks under long load")
    p.add_argument("--before", type=int, default=1, help="untimed launches of a turn; 0 if one launch is longer than the GPU keeps its clocks")
    p.add_argument("command", nargs=argparse.REMAINDER)
    a = p.parse_args()
    words = a.command[1:] if a.command[:1] == ["--"] else a.command
    torch.manual_seed(0)
    command = Command(words)
    rows = measure(command, a.rounds, a.burst, a.rest, a.before)
    command.close()
    record = {
        "machine": command.machine, "torch": torch.__version__, "torch_cudnn": torch.backends.cudnn.version(),
        "gpu": torch.cuda.get_device_name() if CUDA else "none", "rounds": a.rounds, "burst": a.burst, "rest": a.rest, "before": a.before, "rows": rows,
        "reached": sum(r["reached"] is True for r in rows), "not_reached": sum(r["reached"] is False for r in rows),
        "not_run": sum(r["ms"] is None for r in rows),
    }
    text = table(rows)
    print(text)
    print({k: record[k] for k in ("reached", "not_reached", "not_run")})
    if a.out:
        json.dump(record, open(a.out, "w"), indent=1)
        open(a.out.rsplit(".", 1)[0] + ".md", "w").write(text + "\n")
    sys.exit(0 if record["not_reached"] + record["not_run"] == 0 else 1)


if __name__ == "__main__":
    main()
