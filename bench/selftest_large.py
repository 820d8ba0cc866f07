#!/usr/bin/env python3
"""Compares training steps that are too large for the oracle with PyTorch in float32, both on one GPU.

    python3 selftest_large.py [--cases N] [--seed S] [--first N] [--out RECORD.json] [--keep] -- ./qkvault-lab --vault vault selftest

The command after `--` gets `--large DIR --first F --cases K --seed S` for a few cases at a time. It writes every
operand of each case to a raw file, with a description. The reference uses only the description: scores, score
modification, masks, softmax with sink, dropout mask, and gradients by autograd. A case is `right` if every defined
element is written, finite, and within the tolerance of the self-test's small cases. The comparison leaves out undefined
rows: rows beyond a sequence's length, and rows of O and dQ without a key.

The tolerance includes two roundings that cuDNN cannot avoid. Both are computed per case:
* dS = P (dP - D) f' with D = sum(dO O) of the O that the forward stored in 16 bits. Where dP - D cancels, for example
  in rows with one key, only the rounding of D remains. Its standard deviation, u sqrt(sum((dO O)^2)) per row, is
  propagated to dQ, dK and dSink, and four times its norm is added to the relative tolerance (u: root mean square of the
  relative rounding to O's format).
* A score is a sum of products that is rounded in f32. If a score modification has a jump, this rounding decides between
  its sides. The reference therefore evaluates it at the score and 4 units of rounding to either side, and accepts a
  log-sum-exp between the results for the smallest and the largest value.
"""
import argparse, json, math, os, shutil, struct, subprocess, sys, tempfile

import numpy as np
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Root mean square of the relative rounding error of a format, for errors and numbers with uniform distribution.
UNIT = {"bf16": 0.41 * 2.0 ** -8, "f16": 0.41 * 2.0 ** -11}
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "i32": torch.int32, "i64": torch.int64}


class Operands:
    """The files of a case, by role, as tensor views."""

    def __init__(self, folder, case):
        self.operands = {o["role"]: o for o in case["operands"]}
        self.folder = folder

    def __contains__(self, role):
        return role in self.operands

    def __getitem__(self, role):
        o = self.operands[role]
        raw = torch.from_numpy(np.fromfile(os.path.join(self.folder, o["file"]), dtype=np.uint8)).to(DEVICE)
        return raw.view(DTYPES[o["dtype"]]).as_strided(o["dims"], o["strides"])

    def number(self, role):
        return self[role].flatten()[0].item()


def evaluate(expression, score, at, operand):
    """Evaluates a score expression. `at` has indices and lengths; `operand` returns scalars and tensors by number."""
    unary = {
        "neg": lambda x: -x, "abs": torch.abs, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
        "reciprocal": torch.reciprocal, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan,
        "tanh": torch.tanh, "sigmoid": torch.sigmoid, "erf": torch.erf, "floor": torch.floor, "ceil": torch.ceil, "relu": torch.relu,
        "elu": torch.nn.functional.elu, "gelu": torch.nn.functional.gelu, "softplus": torch.nn.functional.softplus,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"), "swish": torch.nn.functional.silu,
    }
    # Converts plain numbers to tensors.
    t = lambda x: x if torch.is_tensor(x) else torch.tensor(x, device=DEVICE, dtype=torch.float32 if isinstance(x, float) else torch.int64)
    binary = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
        "min": lambda a, b: torch.minimum(t(a), t(b)), "max": lambda a, b: torch.maximum(t(a), t(b)), "pow": lambda a, b: t(a) ** b,
        "rem": lambda a, b: torch.fmod(t(a), t(b)), "floor_rem": lambda a, b: torch.remainder(t(a), t(b)),
        "atan2": lambda a, b: torch.atan2(t(a), t(b)),
    }
    compare = {
        "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
        "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    }
    logic = {"and": lambda a, b: t(a) & t(b), "or": lambda a, b: t(a) | t(b)}
    values = []
    for node in expression["nodes"]:
        if node == "score":
            values.append(score)
            continue
        (kind, x), = node.items()
        v = lambda i: values[i]
        values.append({
            "index": lambda: at[x], "length": lambda: at["length of " + x],
            "float": lambda: struct.unpack("<f", struct.pack("<I", x))[0], "int": lambda: x, "bool": lambda: x,
            "scalar": lambda: operand("scalar", x), "tensor": lambda: operand("score tensor", x),
            "to_float": lambda: v(x).float() if torch.is_tensor(v(x)) else float(v(x)),
            "unary": lambda: unary[x[0]](t(v(x[1]))), "binary": lambda: binary[x[0]](v(x[1]), v(x[2])),
            "compare": lambda: compare[x[0]](v(x[1]), v(x[2])), "not": lambda: ~t(v(x)),
            "logic": lambda: logic[x[0]](v(x[1]), v(x[2])),
            "select": lambda: torch.where(t(v(x["keep"])), t(v(x["yes"])), t(v(x["no"]))),
        }[kind]())
    return values[-1]


def band(b, at, s_q, s_kv):
    own = at["query"] if b["corner"] == "top-left" else at["query"] + (at["length of key"] - at["length of query"])
    keep = torch.ones_like(at["query"] + at["key"], dtype=torch.bool)
    if b["right"] is not None:
        keep &= at["key"] <= own + b["right"]
    if b["left"] is not None:
        keep &= at["key"] > own - b["left"]
    return keep


def reference(case, ops):
    """Computes the outputs in float32, by role, with masks of their defined elements."""
    leaf = lambda role: ops[role].detach().float().contiguous().requires_grad_()
    q, k, v = leaf("Q"), leaf("K"), leaf("V")
    b, h, s_q, _ = q.shape
    h_k, h_v, s_kv = k.shape[1], v.shape[1], k.shape[2]
    scale = ops.number("Scale")
    tensors, leaves = {}, {}
    for role, o in ops.operands.items():
        if role.startswith("score tensor "):
            x = ops[role]
            x = x.float().requires_grad_() if x.is_floating_point() else x.long()
            tensors[int(role.split()[-1])] = x
            if "gradient of " + role in ops:
                leaves["gradient of " + role] = x
    sink = ops["Sink"].float().requires_grad_() if "Sink" in ops else None
    mask = ops["DropoutMask"].float() if "DropoutMask" in ops else None
    d_o = ops["dO"].float()
    len_q = ops["SeqLenQ"].flatten().long() if "SeqLenQ" in ops else torch.full((b,), s_q, device=DEVICE)
    len_kv = ops["SeqLenKv"].flatten().long() if "SeqLenKv" in ops else torch.full((b,), s_kv, device=DEVICE)
    first_scalar, first_tensor = (case["score_mod"]["scalars"], len(case["score_mod"]["tensors"])) if case["score_mod"] else (0, 0)
    o, stats, seen = torch.zeros(b, h, s_q, v.shape[3], device=DEVICE), torch.zeros(b, h, s_q, 1, device=DEVICE), torch.zeros(b, h, s_q, 1, dtype=torch.bool, device=DEVICE)
    low, high = torch.zeros_like(stats), torch.zeros_like(stats)
    inside_q = (torch.arange(s_q, device=DEVICE)[None] < len_q[:, None])[:, None, :, None]
    # Squares of the gradients' errors from the rounding of O.
    rounding = {"dQ": torch.zeros_like(q), "dK": torch.zeros_like(k), "DSink": torch.zeros(1, h, 1, 1, device=DEVICE)}
    unit = UNIT[ops.operands["O"]["dtype"]]
    # One sequence at a time, so that its scores fit in memory; gradients add up in the leaves.
    for i in range(b):
        rows = lambda x: x[i : i + 1] if x.shape[0] > 1 else x
        at = {
            "batch": torch.full((1, 1, 1, 1), i, device=DEVICE), "head": torch.arange(h, device=DEVICE).view(1, h, 1, 1),
            "query": torch.arange(s_q, device=DEVICE).view(1, 1, s_q, 1), "key": torch.arange(s_kv, device=DEVICE).view(1, 1, 1, s_kv),
            "length of query": len_q[i].view(1, 1, 1, 1), "length of key": len_kv[i].view(1, 1, 1, 1),
        }
        def operand(kind, n, base_scalar=0, base_tensor=0):
            if kind == "scalar":
                return ops.number(f"scalar {n + base_scalar}")
            return rows(tensors[n + base_tensor])
        spread = lambda x, heads: rows(x).repeat_interleave(h // heads, dim=1)
        raw = (rows(q) @ spread(k, h_k).transpose(-1, -2)) * scale
        score, slope, around = raw, 1.0, ()
        if case["score_mod"]:
            modified = lambda x: evaluate(case["score_mod"], x, at, operand).expand(1, h, s_q, s_kv)
            score = modified(raw)
            slope = torch.autograd.grad(score, raw, torch.ones_like(score), retain_graph=True)[0]
            with torch.no_grad():
                step = 4 * 2.0 ** -24 * abs(scale) * (rows(q).abs() @ spread(k, h_k).abs().transpose(-1, -2))
                around = (modified(raw - step), modified(raw + step))
        keep = (at["key"] < at["length of key"]) & (at["query"] < at["length of query"])
        if case["mask_mod"]:
            keep = keep & evaluate(case["mask_mod"], None, at, lambda kind, n: operand(kind, n, first_scalar, first_tensor))
        if case["band"]:
            keep = keep & band(case["band"], at, s_q, s_kv)
        keep = keep.expand(1, h, s_q, s_kv)
        any_key = keep.any(-1, keepdim=True)
        score = score.masked_fill(~keep, float("-inf"))
        joined = torch.cat([score, sink.expand(1, h, 1, 1).expand(1, h, s_q, 1)], -1) if sink is not None else score
        # Rows without a key are undefined. Zeros keep NaN out of the gradients.
        joined = torch.where(any_key, joined, torch.zeros_like(joined))
        lse = torch.logsumexp(joined, -1, keepdim=True)
        with torch.no_grad():
            sinks = [sink.expand(1, h, s_q, 1)] if sink is not None else []
            bound = lambda pick: torch.logsumexp(torch.cat([pick().masked_fill(~keep, float("-inf"))] + sinks, -1), -1, keepdim=True)
            least = lambda: torch.minimum(torch.minimum(*around), score) if around else score
            most = lambda: torch.maximum(torch.maximum(*around), score) if around else score
            low[i], high[i] = bound(least)[0], bound(most)[0]
            del around
        p = torch.where(keep, torch.exp(score - lse), torch.zeros_like(score)) * any_key
        before = p.detach()
        if mask is not None:
            p = p * rows(mask) / (1.0 - case["dropout"]["probability"])
        out = p @ spread(v, h_v)
        good = any_key & inside_q[i : i + 1]
        torch.autograd.backward(out, torch.where(good, rows(d_o), torch.zeros_like(rows(d_o))))
        o[i], stats[i], seen[i] = out.detach()[0], lse.detach()[0], good[0]
        with torch.no_grad():
            d = unit * (rows(d_o) * out).square().sum(-1, keepdim=True).sqrt() * good
            if sink is not None:
                rounding["DSink"] += (torch.exp(sink.view(1, -1, 1, 1) - lse).where(any_key, torch.zeros_like(lse)) * d).square().sum(2, keepdim=True)
            w = torch.where(keep, before * slope, torch.zeros_like(before)) * d * scale
            rounding["dQ"][i] = (w @ spread(k, h_k)).square()[0]
            of_keys = w.square().transpose(-1, -2) @ rows(q).square()
            rounding["dK"][i] = of_keys.view(1, h_k, h // h_k, s_kv, -1).sum(2)[0]
            del w, of_keys
        del raw, score, slope, joined, p, before, out, keep
    everywhere = lambda x: torch.ones_like(x, dtype=torch.bool)
    inside_kv = (torch.arange(s_kv, device=DEVICE)[None] < len_kv[:, None])[:, None, :, None]
    # The exact values, the mask of defined ones, and the allowed roundings.
    found = {"O": (o, seen.expand_as(o)), "Stats": (stats, seen, {"low": low, "high": high})}
    found["dQ"] = (q.grad, seen.expand_as(q), {"rounding": rounding["dQ"]})
    found["dK"] = (k.grad, inside_kv.expand_as(k), {"rounding": rounding["dK"]})
    found["dV"] = (v.grad, inside_kv.expand_as(v))
    for role, x in leaves.items():
        grad = x.grad if x.grad is not None else torch.zeros_like(x)
        found[role] = (grad, everywhere(grad))
    if "DSink" in ops:
        found["DSink"] = (sink.grad, everywhere(sink.grad), {"rounding": rounding["DSink"].view_as(sink.grad)})
    return found


def judge(case, ops):
    """Returns the faults, and the errors of every output."""
    faults, errors = [], {}
    for role, (exact, defined, *allowed) in reference(case, ops).items():
        if role not in ops:
            continue
        operand, actual = ops.operands[role], ops[role].float()
        allowed = {name: x[defined] for name, x in allowed[0].items()} if allowed else {}
        exact, actual = exact[defined], actual[defined]
        bad = int((~torch.isfinite(actual)).sum())
        difference = (actual - exact).double()
        if "low" in allowed:
            outside = torch.maximum(allowed["low"] - actual, actual - allowed["high"]).clamp_min(0).double()
            difference = torch.where(torch.isfinite(actual), outside, difference)
        rounding = 4 * allowed["rounding"].double().sum().sqrt().item() if "rounding" in allowed else 0.0
        size = exact.double().norm().item() if exact.numel() else 0.0
        relative = (difference.norm() / max(size, 1e-300)).item() if exact.numel() else 0.0
        most = difference.abs().max().item() if exact.numel() else 0.0
        errors[role] = {"relative": relative, "max_abs": most, "rounding": rounding, "not_finite": bad, "elements": exact.numel()}
        fine = bad == 0
        if operand["relative"] is not None:
            fine &= relative * size <= operand["relative"] * size + rounding or most <= operand["floor"]
        if operand["absolute"] is not None:
            # The f32 step of a log-sum-exp in the hundreds exceeds the absolute bound.
            fine &= most <= max(operand["absolute"], 2e-6 * exact.abs().max().item() if exact.numel() else 0.0)
        if not fine:
            faults.append(f"{role}: relative {relative:.2e}, largest {most:.2e}, not finite {bad}")
    return faults, errors


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cases", type=int, default=100)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out")
    p.add_argument("--keep", help="folder for the files of cases that are wrong")
    p.add_argument("--chunk", type=int, default=16)
    p.add_argument("command", nargs=argparse.REMAINDER)
    a = p.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    words = a.command[1:] if a.command[:1] == ["--"] else a.command
    counts, rows, worst, machine, features = {"right": 0, "refused": 0, "wrong": 0, "failed": 0}, [], {}, None, {}
    for first in range(a.first, a.first + a.cases, a.chunk):
        folder = tempfile.mkdtemp(prefix="selftest")
        count = min(a.chunk, a.first + a.cases - first)
        done = subprocess.run(words + ["--json", "--large", folder, "--first", str(first), "--cases", str(count), "--seed", str(a.seed)], stdout=subprocess.PIPE, text=True)
        report = json.loads(done.stdout)
        if "error" in report:
            sys.exit(report["error"])
        machine = report["machine"]
        for row in report["cases"]:
            path = os.path.join(folder, str(row["case"]))
            if row["status"] == "written" or (row["status"] == "wrong" and os.path.exists(path)):
                case = json.load(open(os.path.join(path, "case.json")))
                ops = Operands(path, case)
                faults, errors = judge(case, ops)
                faults = ([row["why"]] if row["why"] else []) + faults
                row.update(status="wrong" if faults else "right", why="; ".join(faults), errors=errors, backward=case["backward"])
                for name in ("score_mod", "mask_mod"):
                    row[name] = case[name]["text"] if case[name] else None
                for role, e in errors.items():
                    if not faults:
                        kind = role if not role.startswith("gradient of") else "gradient of a score tensor"
                        worst[kind] = max(worst.get(kind, 0.0), min(e["relative"], e["max_abs"]))
                if faults and a.keep:
                    shutil.copytree(path, os.path.join(a.keep, str(row["case"])), dirs_exist_ok=True)
                del ops
            counts[row["status"]] = counts.get(row["status"], 0) + 1
            if row["status"] != "right":
                print(json.dumps({k: row.get(k) for k in ("case", "status", "attention", "score_mod", "mask_mod", "why")}), flush=True)
            rows.append({k: v for k, v in row.items() if k != "errors" or row["status"] != "right"})
        shutil.rmtree(folder)
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
        print(f"{first + count - a.first} of {a.cases}: {counts}", flush=True)
    record = {
        "machine": machine, "torch": torch.__version__, "gpu": torch.cuda.get_device_name() if DEVICE == "cuda" else "none", "seed": a.seed,
        "first": a.first, "cases": a.cases, **counts, "worst_error": worst, "rows": rows,
    }
    if a.out:
        json.dump(record, open(a.out, "w"), indent=1)
    print(json.dumps({**counts, "worst_error": worst}))
    sys.exit(0 if counts["wrong"] + counts["failed"] == 0 else 1)


if __name__ == "__main__":
    main()
