#!/usr/bin/env python3
"""Times FlashInfer and PyTorch on the cases over pages and of packed documents of `qkvault-lab bench engines`.

    python3 engine_peers.py --cases CASES.txt --out PEERS.json [--limit SECONDS] [--warm]

CASES.txt has the names of cases with their directions, a line each (`qkvault-lab bench engines --show | cut -d: -f1`);
what follows a comma is the direction, a forward if there is none. Packed documents (`varlen ...`, `packed_peer.py`) have
backwards too. The list that is written is what `--peers` of `bench engines` reads. As there, a captured graph launches one attention again and again on
the same buffers, and the time is a median over rounds. FlashInfer plans a batch on the host before; that does not
count. PyTorch has no pages, so its keys and values are contiguous, which is easier; FlexAttention gets the same
modification and mask, and its sinks are a factor that follows from the log-sum-exp. Each result is compared with
float32 first; one that is far off is told and not written. `--warm` only compiles FlashInfer's kernels.
`test_engine_peers.py` runs what needs no GPU.
"""
import argparse, json, re, sys, time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import packed_peer
from serving_peer import DTYPE, PAGE, timed

NAME = re.compile(
    r"(?P<kind>decode|(?:draft|prefill) q(?P<q>\d+)|window (?P<w>\d+)|softcap|alibi|mpt-7b alibi|gpt-oss sinks|mqa|mha|dense"
    r"|latent h(?P<h>\d+))"
    r" b(?P<b>\d+) s(?P<s>\d+)(?: d(?P<d>\d+))?$"
)
CAP = 50.0
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Case:
    def __init__(self, name):
        found = NAME.match(name)
        if not found:
            raise ValueError("no case over pages that a peer has")
        words = found["kind"].split()
        self.kind = words[-1] if words[-1] in ("alibi", "sinks") else words[0]
        sinks = self.kind == "sinks"
        self.b, self.s, self.d = int(found["b"]), int(found["s"]), int(found["d"] or (64 if sinks else 128))
        self.q, self.w = int(found["q"] or 1), int(found["w"] or 0)
        self.heads, self.kv_heads = 64 if sinks else 32, {"mqa": 1, "mha": 32, "mpt-7b": 32}.get(words[0], 8)
        self.sink = torch.randn(self.heads, device=DEVICE) if sinks else None
        if self.kind == "latent":
            self.heads, self.kv_heads, self.d = int(found["h"]), 1, 576

    def operands(self):
        shape = lambda n, h: (self.b, n, h, self.d)
        make = lambda x: torch.randn(*x, device=DEVICE, dtype=DTYPE)
        return tuple(make(shape(*x)) for x in ((self.q, self.heads), (self.s, self.kv_heads), (self.s, self.kv_heads)))

    def slopes(self):
        return torch.tensor([2 ** (-8 * (h + 1) / self.heads) for h in range(self.heads)], device=DEVICE)

    def exact(self, q, k, v):
        """The first sequence in float32: (queries, heads, head dim)."""
        group = self.heads // self.kv_heads
        k, v = (t[0].float().repeat_interleave(group, 1).transpose(0, 1) for t in (k, v))
        q = q[0].float().transpose(0, 1)
        s = q @ k.transpose(1, 2) / self.d**0.5
        at = torch.arange(self.q, device=DEVICE)[:, None] + self.s - self.q
        keys = torch.arange(self.s, device=DEVICE)[None]
        if self.kind == "softcap":
            s = CAP * torch.tanh(s / CAP)
        if self.kind == "alibi":
            s = s + self.slopes()[:, None, None] * (keys - at)
        seen = keys <= at
        if self.w:
            seen &= keys > at - self.w
        s = s.masked_fill(~seen, float("-inf"))
        if self.sink is not None:
            s = torch.cat([s, self.sink[:, None, None].expand(-1, self.q, 1)], -1)
            return (s.softmax(-1)[..., :-1] @ v).transpose(0, 1)
        return (s.softmax(-1) @ v).transpose(0, 1)


def flashinfer_run(case, backend):
    import flashinfer

    q, k, v = case.operands()
    per = case.s // PAGE
    # Pages of a sequence lie apart, as in `bench engines`.
    row = (PAGE, case.kv_heads, case.d)
    place = lambda t: t.view(case.b, per, *row).transpose(0, 1).reshape(-1, *row)
    pool = torch.stack([place(k), place(v)], 1).contiguous()
    numbers = lambda n: torch.arange(n, device=DEVICE, dtype=torch.int32)
    order = (numbers(per)[None] * case.b + numbers(case.b)[:, None]).reshape(-1)
    starts = torch.arange(case.b + 1, device=DEVICE, dtype=torch.int32)
    last = torch.full((case.b,), PAGE, device=DEVICE, dtype=torch.int32)
    workspace = torch.zeros(512 << 20, dtype=torch.uint8, device=DEVICE)
    more = dict(q_data_type=DTYPE, kv_data_type=DTYPE)
    if case.w:
        more["window_left"] = case.w - 1
    if case.kind == "softcap":
        more["logits_soft_cap"] = CAP
    if case.kind == "alibi":
        more["pos_encoding_mode"] = "ALIBI"
    flat = q.reshape(-1, case.heads, case.d)
    if case.kind == "latent":
        return flashinfer_latent(case, q, k, backend, workspace, starts, per, order)
    if case.sink is not None:
        dims = dict(head_dim_qk=case.d, head_dim_vo=case.d, q_data_type=DTYPE, kv_data_type=DTYPE)
        wrapper = flashinfer.BatchAttentionWithAttentionSinkWrapper(workspace, "NHD", backend=backend, **dims)
        wrapper.plan(starts, starts * per, order, last, case.heads, case.kv_heads, case.d, PAGE, causal=True, **more)
        return (q, k, v), lambda: wrapper.run(flat, pool, case.sink, case.d**-0.5)
    if case.q == 1:
        how = {} if backend == "cuda_cores" else {"use_tensor_cores": True, "backend": backend}
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", **how)
        wrapper.plan(starts * per, order, last, case.heads, case.kv_heads, case.d, PAGE, **more)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=backend)
        sizes = (case.heads, case.kv_heads, case.d, PAGE)
        wrapper.plan(starts * case.q, starts * per, order, last, *sizes, causal=True, **more)
    return (q, k, v), lambda: wrapper.run(flat, pool)


def flashinfer_latent(case, q, k, backend, workspace, starts, per, order):
    """Multi-head latent attention: 512 columns of a row are keys and values, 64 more are keys."""
    import flashinfer

    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace, backend=backend)
    lengths = torch.full((case.b,), case.s, device=DEVICE, dtype=torch.int32)
    wrapper.plan(starts, starts * per, order, lengths, case.heads, 512, 64, PAGE, True, case.d**-0.5, DTYPE, DTYPE)
    pool = k.view(case.b, per, PAGE, case.d).transpose(0, 1).reshape(-1, PAGE, case.d)
    ckv, kpe = pool[..., :512].contiguous(), pool[..., 512:].contiguous()
    flat = q.reshape(-1, case.heads, case.d)
    nope, rope = flat[..., :512].contiguous(), flat[..., 512:].contiguous()
    return (q, k, k[..., :512]), lambda: wrapper.run(nope, rope, ckv, kpe)


def torch_run(case, backend):
    if case.w or case.kind in ("softcap", "alibi", "sinks", "latent"):
        raise ValueError("SDPA's fused backends have none")
    q, k, v = case.operands()
    group = case.heads // case.kv_heads
    if case.q == 1:
        # The heads that share keys as queries of one head: the same numbers, and what its users would write.
        rows, (a, b) = q.view(case.b, case.kv_heads, group, case.d), (t.transpose(1, 2) for t in (k, v))
        return (q, k, v), lambda: F.scaled_dot_product_attention(rows, a, b)
    a, b = (t.transpose(1, 2).repeat_interleave(group, 1) for t in (k, v))
    bias, rows = causal_lower_right(case.q, case.s), q.transpose(1, 2)
    return (q, k, v), lambda: F.scaled_dot_product_attention(rows, a, b, attn_mask=bias).transpose(1, 2)


def flex_run(case, flex):
    q, k, v = case.operands()
    if case.kind == "latent":
        v = k[..., :512]
    at = case.s - case.q
    slopes = case.slopes()

    def softcap(score, b, h, query, key):
        return CAP * torch.tanh(score / CAP)

    def alibi(score, b, h, query, key):
        return score + slopes[h] * (key - query - at)

    def seen(b, h, query, key):
        before = key <= query + at
        return before & (key > query + at - case.w) if case.w else before

    more = {"score_mod": {"softcap": softcap, "alibi": alibi}.get(case.kind)}
    # One query sees all keys, which needs no mask.
    if case.w or case.q > 1:
        more["block_mask"] = create_block_mask(seen, None, None, case.q, case.s, device=DEVICE)
    rows, a, b = (t.transpose(1, 2) for t in (q, k, v))
    same = lambda: flex(rows, a, b, enable_gqa=case.heads != case.kv_heads, **more)
    if case.sink is None:
        return (q, k, v), lambda: same().transpose(1, 2)
    more["return_lse"] = True

    def with_sinks():
        out, lse = same()
        # The sink takes this share of the softmax from the keys.
        return (out * torch.sigmoid(lse - case.sink[None, :, None])[..., None]).transpose(1, 2)

    return (q, k, v), with_sinks


COMPILED = torch.compile(flex_attention, dynamic=False)

PACKED = {
    "FlexAttention": lambda case: packed_peer.flex(case, COMPILED),
    "FlashInfer FA2": lambda case: packed_peer.flashinfer(case, "fa2"),
    "FlashInfer FA3": lambda case: packed_peer.flashinfer(case, "fa3"),
    "PyTorch flash": packed_peer.torch_varlen,
}

BACKENDS = {
    "FlexAttention": lambda case: flex_run(case, COMPILED),
    "FlashInfer CUDA cores": lambda case: flashinfer_run(case, "cuda_cores"),
    "FlashInfer FA2": lambda case: flashinfer_run(case, "fa2"),
    "FlashInfer FA3": lambda case: flashinfer_run(case, "fa3"),
    "PyTorch flash": lambda case: torch_run(case, SDPBackend.FLASH_ATTENTION),
    "PyTorch cuDNN": lambda case: torch_run(case, SDPBackend.CUDNN_ATTENTION),
}


def measure(name, direction, peer, warm):
    if name.startswith("varlen "):
        if peer not in PACKED or (direction == "backward" and peer.startswith("FlashInfer")):
            raise ValueError("it has none")
        case = packed_peer.Packed(name)
        us = packed_peer.measured(case, PACKED[peer](case), direction == "backward", timed, peer)
        return None if warm else us
    if direction != "forward":
        raise ValueError("only packed documents have backwards here")
    case = Case(name)
    if peer == "FlashInfer CUDA cores" and (case.q > 1 or case.kind in ("sinks", "latent")):
        raise ValueError("its decode has no such group")
    backend = {"PyTorch flash": SDPBackend.FLASH_ATTENTION, "PyTorch cuDNN": SDPBackend.CUDNN_ATTENTION}.get(peer)
    with torch.no_grad(), sdpa_kernel(backend or [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        operands, f = BACKENDS[peer](case)
        found = f()
        torch.cuda.synchronize()
        if warm:
            return None
        expected = case.exact(*operands)
        found = found.reshape(-1, case.heads, operands[2].shape[-1])[: case.q].float()
        off = ((found - expected).abs().max() / expected.abs().max()).item()
        if not off < 0.02:
            raise ValueError(f"off by {off:.3f}")
        return timed(f, peer)


def named(line):
    """The name of a case and its direction."""
    name, _, direction = line.strip().partition(", ")
    return name, direction or "forward"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", required=True)
    parser.add_argument("--out", default="peers.json")
    parser.add_argument("--limit", type=float, default=120)
    parser.add_argument("--only", default="", help="peers whose name has this word")
    parser.add_argument("--warm", action="store_true")
    args = parser.parse_args()
    cases = [named(line) for line in open(args.cases) if line.strip()]
    torch.manual_seed(3)
    rows, began = [], time.time()
    for name, direction in cases:
        for peer in BACKENDS:
            if args.only not in peer or time.time() - began > args.limit:
                continue
            try:
                us = measure(name, direction, peer, args.warm)
            except Exception as error:  # a case that a peer does not take is no row
                print(f"{name}, {direction}, {peer}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
                continue
            finally:
                torch.cuda.empty_cache()
            if us is not None:
                rows.append({"case": name, "direction": direction, "peer": peer, "ms": round(us / 1e3, 5)})
                print(f"{name}, {direction}, {peer}: {us:.1f} us", flush=True)
        with open(args.out, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
