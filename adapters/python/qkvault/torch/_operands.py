"""Q, K and V as engines take them: of one type of 16 bits, and of strides that no dim repeats."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from .._errors import ArgumentError

HALVES = (torch.bfloat16, torch.float16)
_log = logging.getLogger("qkvault")
_told: set = set()


#: Of all types: Dynamo asks no type for its name.
_NAMES = {kind: str(kind).removeprefix("torch.") for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


def named(dtype: torch.dtype) -> str:
    return _NAMES[dtype]


def casting(q: Tensor) -> bool:
    """Whether autocast is on where Q is."""
    return q.is_cuda and torch.is_autocast_enabled("cuda") or q.is_cpu and torch.is_autocast_enabled("cpu")


def typed(q: Tensor, k: Tensor, v: Tensor, cast: bool, names: tuple = ("q", "k", "v")) -> tuple:
    """Operands of one type: what autocast makes of them, as for SDPA, all but float64 having its type."""
    if cast:
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = (t if t.dtype is torch.float64 else t.to(dtype) for t in (q, k, v))
    if q.dtype not in HALVES:
        own = names[0]
        ways = [f"give {own}.to(torch.bfloat16)"]
        if q.dtype is torch.float32:
            ways.append(f"call it under torch.autocast({q.device.type!r}, torch.bfloat16)")
        if q.dtype in (torch.float32, torch.float64):
            ways.append(f"call torch's scaled_dot_product_attention, which computes in {named(q.dtype)}")
        raise ArgumentError(f"{own} is {named(q.dtype)}, and attention takes bfloat16 and float16; {', or '.join(ways)}")
    for name, tensor in zip(names[1:], (k, v)):
        if tensor.dtype is not q.dtype:
            kinds = f"{name} is {named(tensor.dtype)} and {names[0]} {named(q.dtype)}"
            raise ArgumentError(f"{kinds}; give one type: {name}.to({names[0]}.dtype)")
    return q, k, v


def same_type(q: Tensor, k: Tensor, v: Tensor, names: tuple = ("q", "k", "v")) -> tuple:
    """The operands if nothing is to be done for their types, else what `typed` makes of them."""
    dtype, cast = q.dtype, casting(q)
    if cast or dtype is not k.dtype or dtype is not v.dtype or dtype not in HALVES:
        return typed(q, k, v, cast, names)
    return q, k, v


def unrepeated(q: Tensor, k: Tensor, v: Tensor) -> tuple:
    """Operands that `expand` made, as engines read them. One head of keys and of values serves all queries as it is; all
    else is copied, and so is what has a gradient, which is that of each repetition."""
    training = torch.is_grad_enabled() and (k.requires_grad or v.requires_grad)
    if not training and k.stride(1) == v.stride(1) == 0 and k.shape[1] == v.shape[1]:
        k, v = k.select(1, 0).unsqueeze(1), v.select(1, 0).unsqueeze(1)
    return tuple(_copied(name, tensor) for name, tensor in (("q", q), ("k", k), ("v", v)))


def _copied(name: str, tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy of one whose memory repeats."""
    repeated = [axis for axis in range(tensor.dim() - 1) if tensor.shape[axis] > 1 and tensor.stride(axis) == 0]
    if not repeated:
        return tensor
    if not torch.compiler.is_compiling() and (name, *repeated) not in _told:
        _told.add((name, *repeated))
        _log.warning(
            "%s %s repeats its memory over axis %s, as expand() makes it, and no engine reads that: each call copies it; "
            "one key and value head serves all query heads as it is", name, list(tensor.shape), repeated[0],
        )  # fmt: skip
    return tensor.contiguous()
