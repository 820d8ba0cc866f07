"""The gradient of the log-sum-exp, through the backward of O.

A backward computes `dS = P ∘ (dO · Vᵀ - rowsum(dO ∘ O))` from the O that it is given, and the log-sum-exp has `dS = P ∘
dlse`. So it is the backward of the same attention with V zero, and with dO and O of which each row's product is -dlse:
one more launch of the same plan, with all that follows from dS (modifications, biases, sinks) done by it.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

#: Numbers of 16 bits that have a number of 24 bits between them.
_PARTS = 3


def operands(d_lse: Tensor, v: Tensor, o: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What stands for dO, V and O."""
    d_lse = d_lse.to(torch.float32)
    # O has the power of two, dO the rest: neither leaves the range of float16.
    unit = torch.exp2(torch.frexp(d_lse.detach()).exponent.clamp(-14, 15).to(torch.float32))
    rest, parts = d_lse / unit, []
    for _ in range(_PARTS):
        parts.append(rest.to(o.dtype))
        rest = rest - parts[-1]
    zeros = torch.zeros_like(o)

    def wide(columns: list[Tensor]) -> Tensor:
        """First columns of what lies in memory as O does: a backward is not told the strides of O."""
        made = zeros + torch.nn.functional.pad(torch.stack(columns, -1), (0, o.shape[-1] - _PARTS))
        return made if made.stride() == o.stride() else o.new_empty_strided(o.shape, o.stride()).copy_(made)

    # With the strides of V, which offsets of sequences count in.
    return wide(parts), v.new_empty_strided(v.shape, v.stride()).zero_(), wide([-unit.to(o.dtype)] * _PARTS)


def added(gradients: Callable, d_o: Any, d_lse: Any, q: Tensor, k: Tensor, v: Tensor, o: Tensor, *more: Any) -> tuple:
    """The gradients of Q, K, V and further tensors from those of O and of the log-sum-exp, one of which may be None."""
    of_o = None if d_o is None else gradients(d_o, q, k, v, o, *more)
    if d_lse is None:
        assert of_o is not None
        return tuple(of_o)
    d_rows, zero, stand = operands(d_lse, v, o)
    d_q, d_k, _, each = gradients(d_rows, q, k, zero, stand, *more)
    if of_o is None:
        return d_q, d_k, None, each
    both = [one if other is None else one + other for one, other in zip(of_o[3], each)]
    return of_o[0] + d_q, of_o[1] + d_k, of_o[2], both
