"""Packed causal documents in other libraries, for `engine_peers.py`: FlexAttention with a mask of documents, PyTorch's
varlen attention and FlashInfer over ragged rows. Documents of a case have one length; queries and keys are the same
tokens, one document after the other.
"""
import re

import torch
from torch.nn.attention.flex_attention import create_block_mask

from serving_peer import DTYPE

NAME = re.compile(r"varlen b(?P<b>\d+) h(?P<h>\d+)/(?P<hk>\d+) s(?P<s>\d+) d(?P<d>\d+) causal$")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Packed:
    """Documents, with a gradient of the output for the backward."""

    def __init__(self, name):
        found = NAME.match(name)
        if not found:
            raise ValueError("no case of packed documents")
        self.b, self.heads, self.kv_heads, self.s, self.d = (int(found[key]) for key in ("b", "h", "hk", "s", "d"))

    def operands(self, grad):
        make = lambda h: torch.randn(self.b * self.s, h, self.d, device=DEVICE, dtype=DTYPE).requires_grad_(grad)
        return make(self.heads), make(self.kv_heads), make(self.kv_heads)

    def starts(self):
        return torch.arange(self.b + 1, device=DEVICE, dtype=torch.int32) * self.s

    def exact(self, q, k, v):
        """The last document in float32: (tokens, heads, head dim). Without a mask it sees all others."""
        group = self.heads // self.kv_heads
        q = q[-self.s :].float().transpose(0, 1)
        k, v = (t[-self.s :].float().repeat_interleave(group, 1).transpose(0, 1) for t in (k, v))
        seen = torch.ones(self.s, self.s, device=DEVICE).tril() == 1
        return ((q @ k.transpose(1, 2) / self.d**0.5).masked_fill(~seen, float("-inf")).softmax(-1) @ v).transpose(0, 1)

    def exact_gradients(self, operands, d_o):
        """Gradients of the last document in float32."""
        rows = [t[-self.s :].detach().float().requires_grad_() for t in operands]
        return torch.autograd.grad(self.exact(*rows), rows, d_o[-self.s :].float())


def flex(case, flex_attention):
    """A function of operands; the mask of blocks is made before and counts as nothing."""
    tokens, s = case.b * case.s, case.s
    mask = create_block_mask(
        lambda b, h, i, j: (i >= j) & (i // s == j // s), None, None, tokens, tokens, device=DEVICE
    )

    def run(q, k, v):
        rows = [t.transpose(0, 1)[None] for t in (q, k, v)]
        return flex_attention(*rows, block_mask=mask, enable_gqa=case.heads != case.kv_heads)[0].transpose(0, 1)

    return run


def torch_varlen(case):
    from torch.nn.attention.varlen import varlen_attn

    starts = case.starts()
    return lambda q, k, v: varlen_attn(q, k, v, starts, starts, case.s, case.s, window_size=(-1, 0))


def flashinfer(case, backend):
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    workspace = torch.zeros(512 << 20, dtype=torch.uint8, device=DEVICE)
    wrapper = BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend=backend)
    starts, types = case.starts(), dict(q_data_type=DTYPE, kv_data_type=DTYPE)
    wrapper.plan(starts, starts, case.heads, case.kv_heads, case.d, causal=True, **types)
    return lambda q, k, v: wrapper.run(q, k, v)


def measured(case, attend, backward, timed, peer):
    """Microseconds of a direction; an error if numbers are far off those in float32."""
    operands = case.operands(grad=backward)
    # A backward without graph capture runs on the stream of its forward.
    out = attend(*operands)
    if not backward:
        check([out[-case.s :]], [case.exact(*operands)])
        return timed(lambda: attend(*operands), peer)
    d_o = torch.randn_like(out)
    run = lambda: torch.autograd.grad(out, operands, d_o, retain_graph=True)
    check([t[-case.s :] for t in run()], case.exact_gradients(operands, d_o))
    return timed(run, peer)


def check(found, expected):
    for a, b in zip(found, expected):
        off = ((a.float() - b).abs().max() / b.abs().max()).item()
        if not off < 0.02:
            raise ValueError(f"off by {off:.3f}")
