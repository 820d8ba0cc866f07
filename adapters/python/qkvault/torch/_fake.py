"""What the operators give without computing: shapes, element types and exact strides, for compilers and exports."""

from __future__ import annotations

import re

import torch
from torch import Tensor


def beside(tensor: Tensor, width: int) -> Tensor:
    """A new tensor with the dims of another one but for the last; the kernel's `torch/spec.rs` has the same rule."""
    if tensor.dim() == 4 and tensor.stride(1) <= tensor.stride(2):
        b, h, s, _ = tensor.shape
        return tensor.new_empty((b, s, h, width)).transpose(1, 2)
    return tensor.new_empty((*tensor.shape[:-1], width))


def like_result(o: Tensor, q: Tensor) -> Tensor:
    """O as it lies in memory behind a forward: a backward is told the strides of Q, and O's follow."""
    made = beside(q, o.shape[-1])
    return o if o.stride() == made.stride() else made.copy_(o)


def forward(q: Tensor, k: Tensor, v: Tensor, extra: list[Tensor], spec: str, numbers: list[float]):
    """O and Stats."""
    return beside(q, v.shape[-1]), q.new_empty(q.shape[:-1], dtype=torch.float32)


#: Between the fields of a specification. It is one line: Inductor writes arguments into comments of its programs.
BETWEEN = " :: "


def written(extra: list[str], numbers: list[str], lines: list[str]) -> str:
    """A specification of the names of further tensors and of numbers, and of its other lines."""
    head = [f"extra: {' '.join(extra)}"] if extra else []
    return BETWEEN.join([*head, f"numbers: {' '.join(numbers)}", *lines])


def with_gradient(spec: str) -> list[int]:
    """The places of the further tensors that have a gradient, in order."""
    names, lines = names_of(spec, "extra"), spec.split(BETWEEN)
    grads = {name for name in re.findall(r"tensor @(\w+): [^;]*? grad;", spec)}
    if "d_sink: yes" in lines:
        grads.add("sink")
    return [at for at, name in enumerate(names) if name in grads]


def names_of(spec: str, field: str) -> list[str]:
    """The names in one of the first lines of a specification."""
    for line in spec.split(BETWEEN):
        if line.startswith(field + ": "):
            return line[len(field) + 2 :].split()
    return []


def backward(d_o, q, k, v, o, stats, extra, spec, numbers):
    """The gradients of Q, K, V and of further tensors."""
    more = [torch.empty_like(extra[at], memory_format=torch.contiguous_format) for at in with_gradient(spec)]
    return beside(q, q.shape[-1]), beside(k, k.shape[-1]), beside(v, v.shape[-1]), more
