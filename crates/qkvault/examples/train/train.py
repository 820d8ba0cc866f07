#!/usr/bin/env python3
"""Trains the model of the example `train` in PyTorch float32 from the same numbers, and compares the loss curves.

    python3 train.py RUST.json [--out RECORD.json] [--device cuda|cpu]

RUST.json is the record of the example: sizes, seed, checksums of the initial weights and of the data, and losses. This
program draws weights and data with the same generator (splitmix64) and compares the checksums before it trains.

The allowed distance between the curves is measured. The program trains the model again with the inputs and outputs of
its attentions rounded to 16 bits, and once more from initial weights with a random error of the same size. The largest
distance of these curves from the float32 curve is the noise. The distance of the example's curve must be at most three
times the noise.
"""
import argparse, json, math, sys, time

import numpy as np
import torch
import torch.nn.functional as F

GAMMA = 0x9E3779B97F4A7C15


class Rng:
    """splitmix64 for arrays."""

    def __init__(self, seed):
        self.state = np.uint64(seed)

    def bits(self, n):
        with np.errstate(over="ignore"):
            z = self.state + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GAMMA)
            self.state = z[-1]
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return z ^ (z >> np.uint64(31))

    def unit(self, n):
        return (self.bits(n) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def checksum(bits):
    """A checksum of 32-bit patterns that depends on their order."""
    with np.errstate(over="ignore"):
        bits = np.ascontiguousarray(bits).view(np.uint32).astype(np.uint64).ravel()
        odd = np.arange(len(bits), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        return int((bits * odd).sum(dtype=np.uint64))


def shapes(c):
    """The parameters in drawing order: name, rows, columns, and the bound of the uniform numbers."""
    v, w, s = c["vocabulary"], c["width"], c["seq"]
    list_ = [("embedding", v, w, 1.0), ("position", s, w, 0.1)]
    for layer in range(2):
        list_ += [(f"{name}{layer}", w, w, math.sqrt(3.0 / w)) for name in ("q", "k", "v", "o")]
    return list_ + [("head", w, v, math.sqrt(3.0 / w))]


def initial(c):
    rng = Rng(c["seed"])
    draw = lambda r, k, bound: ((rng.unit(r * k) * 2.0 - 1.0) * bound).astype(np.float32).reshape(r, k)
    return {name: draw(r, k, bound) for name, r, k, bound in shapes(c)}


def batches(c):
    """The tokens of every step. The task is to predict the previous token."""
    rng = Rng(c["seed"] + 1)
    return (rng.unit(c["steps"] * c["batch"] * c["seq"]) * c["vocabulary"]).astype(np.int32).reshape(c["steps"], c["batch"], c["seq"])


def attention(q, k, v, c, layer, rounding, slopes):
    """Causal attention. The first layer has a softcap, the second ALiBi."""
    b, s, h = c["batch"], c["seq"], c["heads"]
    d = c["width"] // h
    # Rounds inputs and outputs, and in the backward their gradients.
    rounded = lambda x: x if rounding is None else x.to(rounding).float()
    q, k, v = (rounded(x).view(b, s, h, d).transpose(1, 2) for x in (q, k, v))
    score = q @ k.transpose(-1, -2) * (1.0 / math.sqrt(d))
    if layer == 0:
        score = torch.tanh(score / c["cap"]) * c["cap"]
    else:
        at = torch.arange(s, device=q.device)
        score = score + slopes[:, None, None] * (at[None, :] - at[:, None])
    score = score.masked_fill(torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1), float("-inf"))
    p = torch.softmax(score, -1)
    return rounded((rounded(p) @ v).transpose(1, 2).reshape(b * s, h * d))


def loss_of(p, tokens, c, rounding, slopes):
    b, s = c["batch"], c["seq"]
    x = (p["embedding"][tokens] + p["position"][None]).reshape(b * s, c["width"])
    for layer in range(2):
        q, k, v = (x @ p[f"{name}{layer}"] for name in ("q", "k", "v"))
        x = x + attention(q, k, v, c, layer, rounding, slopes) @ p[f"o{layer}"]
    logits = (x @ p["head"]).view(b, s, -1)
    return F.cross_entropy(logits[:, 1:].reshape(b * (s - 1), -1), tokens[:, :-1].reshape(-1))


def train(c, weights, data, device, rounding=None):
    p = {n: torch.tensor(w, device=device, requires_grad=True) for n, w in weights.items()}
    moments = {n: (torch.zeros_like(w), torch.zeros_like(w)) for n, w in p.items()}
    slopes = torch.tensor([2.0 ** (-8.0 * (i + 1) / c["heads"]) for i in range(c["heads"])], device=device)
    losses = []
    for step in range(c["steps"]):
        tokens = torch.tensor(data[step], device=device, dtype=torch.long)
        loss = loss_of(p, tokens, c, rounding, slopes)
        gradients = torch.autograd.grad(loss, list(p.values()))
        losses.append(loss.item())
        with torch.no_grad():
            # Adam with the same operations as in the example.
            t, rate = step + 1, c["rate"] * min(1.0, (step + 1) / c["warmup"])
            for (n, w), g in zip(p.items(), gradients):
                m, v = moments[n]
                m.mul_(0.9).add_(g, alpha=0.1)
                v.mul_(0.99).addcmul_(g, g, value=0.01)
                w.sub_(rate * (m / (1 - 0.9**t)) / ((v / (1 - 0.99**t)).sqrt() + 1e-8))
    return losses


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("rust")
    p.add_argument("--out")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = p.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    rust = json.load(open(a.rust))
    c = rust["config"]
    weights, data = initial(c), batches(c)
    sums = {"weights": checksum(np.concatenate([w.ravel() for w in weights.values()])), "data": checksum(data)}
    for name, value in sums.items():
        if str(value) != rust["checksums"][name]:
            sys.exit(f"the {name} differ: the checksum is {value} here and {rust['checksums'][name]} in {a.rust}")
    start = time.perf_counter()
    exact = train(c, weights, data, a.device)
    seconds = time.perf_counter() - start
    half = {"bf16": torch.bfloat16, "f16": torch.float16}[c["dtype"]]
    generator = np.random.default_rng(1)
    nudged = {n: (w * (1 + 2.0**-9 * generator.uniform(-1, 1, w.shape))).astype(np.float32) for n, w in weights.items()}
    others = {"rounded": train(c, weights, data, a.device, half), "nudged": train(c, nudged, data, a.device)}
    apart = lambda curve: float(np.abs(np.array(curve) - np.array(exact)).max())
    noise = max(apart(curve) for curve in others.values())
    mine = apart(rust["losses"])
    agree, learned = mine <= 3 * noise, exact[-1] < 0.5 * exact[0]
    record = {
        "config": c, "torch": torch.__version__, "device": torch.cuda.get_device_name() if a.device == "cuda" else "cpu",
        "example": {k: v for k, v in rust.items() if k != "config"}, "torch_float32": exact, "torch_seconds": seconds, "others": others,
        "largest_distance": mine, "noise": noise, "distances": {n: apart(curve) for n, curve in others.items()},
        "last": {"example": float(np.mean(rust["losses"][-10:])), "torch_float32": float(np.mean(exact[-10:]))}, "agree": agree, "learned": learned,
    }
    if a.out:
        json.dump(record, open(a.out, "w"), indent=1)
    for step in sorted({0, 1, 2, *range(0, c["steps"], max(1, c["steps"] // 10)), c["steps"] - 1}):
        print(f"step {step:4}: example {rust['losses'][step]:.5f}  float32 {exact[step]:.5f}  rounded {others['rounded'][step]:.5f}  nudged {others['nudged'][step]:.5f}")
    print(f"largest distance from float32: example {mine:.5f}; noise {noise:.5f} {record['distances']}; {'agree' if agree else 'DO NOT AGREE'}{'' if learned else ' (and the loss has not halved: too few steps to mean much)'}")
    sys.exit(0 if agree and learned else 1)


if __name__ == "__main__":
    main()
