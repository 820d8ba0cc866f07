"""One attention that the ranks of a group compute, with its gradients."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import _fake, _lse
from ._ranks import SharedAttention, told


class Shared(torch.autograd.Function):
    """O and Stats of a rank's rows. Further tensors are this rank's parts, and so are their gradients."""

    @staticmethod
    def forward(ctx, of: SharedAttention, spec: str, numbers: dict, lengths: Optional[tuple], q, k, v, *extra):
        given = {"q": q, "k": k, "v": v, **dict(zip(_fake.names_of(spec, "extra"), extra))}
        made = told(of.link, lambda: of.run(of.forward, given, numbers, lengths))
        o, stats = made["o"], made.get("stats")
        stats = None if stats is None else stats.reshape(stats.shape[:3])
        ctx.save_for_backward(q, k, v, o, stats, *extra)
        ctx.set_materialize_grads(False)  # Zeros for the gradient of Stats would be a run.
        ctx.given = (of, spec, numbers, lengths)
        return o, stats

    @staticmethod
    @once_differentiable
    def backward(ctx, d_o: Any, d_stats: Any):
        q, k, v, o, stats, *extra = ctx.saved_tensors
        found = _lse.added(_gradients, d_o, d_stats, q, k, v, o, stats, extra, *ctx.given)
        d_q, d_k, d_v, each = found
        d_v = torch.zeros_like(v) if d_v is None else d_v
        return None, None, None, None, d_q, d_k, d_v, *each


def _gradients(d_o, q, k, v, o, stats, extra, of: SharedAttention, spec: str, numbers: dict, lengths) -> tuple:
    """The gradients of Q, K, V and of further tensors; None where there is none."""
    names = _fake.names_of(spec, "extra")
    given = {"q": q, "k": k, "v": v, "o": o, "stats": stats.unsqueeze(-1), "d_o": d_o, **dict(zip(names, extra))}
    made = told(of.link, lambda: of.run(of.backward, given, numbers, lengths))
    each: list = [None] * len(extra)
    for at in _fake.with_gradient(spec):
        each[at] = made[f"d_{names[at]}"]
    if "sink" in names and "d_sink" in made:  # The sum of all ranks on each of them, of which this rank's part is told.
        each[names.index("sink")] = made["d_sink"] / of.link.communicator.ranks
    return made["d_q"], made["d_k"], made["d_v"], each


def run(
    of: SharedAttention, spec: str, numbers: dict, lengths: Optional[tuple], qkv: list[Tensor], extra: list[Tensor]
) -> tuple[Tensor, Optional[Tensor]]:
    """O, differentiable, and Stats where the description has them."""
    own = [of.own(name, tensor) for name, tensor in zip(_fake.names_of(spec, "extra"), extra)]
    found: tuple = Shared.apply(of, spec, numbers, lengths, *qkv, *own)
    return found
