"""From arguments to a specification: the description less its tensors, further tensors by name, and numbers.

Options are written as text. Python functions are traced by `qkvault_record.trace`, once for each function, its captured
values and sizes.
"""

from __future__ import annotations

import numbers
import re
from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor

from qkvault_record import AXES, Untraceable

from .._errors import ArgumentError
from . import _traces
from ._fake import BETWEEN, beside, written
from ._placed import NAMES, placed
from ._told import constant

Window = Union[int, tuple, None]


def band(is_causal: bool, window: Window, bottom_right: bool) -> str:
    """The value of the field `mask`. The text form counts the query itself, `window` does not."""
    corner = " bottom-right" if bottom_right else ""
    if window is None:
        return f"causal{corner}" if is_causal else "none"
    sides = (window, window) if isinstance(window, (numbers.Integral, torch.SymInt)) else window
    if not isinstance(sides, (tuple, list)) or len(sides) != 2:
        raise ArgumentError(f"window is {window!r}; give one number of keys, or (left, right)")
    left, right = (-1 if side is None else side for side in sides)
    if not all(isinstance(side, (numbers.Integral, torch.SymInt)) and side >= -1 for side in (left, right)):
        raise ArgumentError(f"window is {window!r}; give keys on a side, 0 or more, or -1 or None for all of them")
    if is_causal:
        right = 0
    if left < 0 and right < 0:
        return "none"
    if right == 0:
        return f"causal{corner}" if left < 0 else f"causal window {left + 1}{corner}"
    sides = [f"left {left + 1}"] if left >= 0 else []
    sides += [f"right {right}"] if right >= 0 else []
    return f"band {' '.join(sides)}{corner}"


def shaped(tensor: Tensor, dims: tuple, name: str) -> Tensor:
    """A tensor over (batch, head, query, key): extents of the scores, or 1 where it is the same for all."""
    given = list(tensor.shape)
    if tensor.dim() > 4:
        raise ArgumentError(f"{name} has dims {given}; give at most (batch, head, query, key)")
    tensor = tensor.reshape((1,) * (4 - tensor.dim()) + tuple(tensor.shape))
    for axis, (n, most) in enumerate(zip(tensor.shape, dims)):
        if n != 1 and n != most:
            raise ArgumentError(
                f"{name} has dims {given}; give what broadcasts to the scores, (batch, head, query, key): {list(dims)}"
            )
        if n > 1 and tensor.stride(axis) == 0:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def by_head(given: Tensor, dims: tuple, device: torch.device, name: str) -> Tensor:
    """Numbers of heads, or of heads of each batch, over (batch, head, query, key), in float32."""
    heads = list(placed(given, device, name).shape)
    if given.dim() != 4 and heads not in ([dims[1]], [1, dims[1]], [dims[0], dims[1]]):
        raise ArgumentError(f"{name} has dims {heads}; give one for each of {dims[1]} heads, or (batch, head)")
    given = given.reshape(-1, dims[1], 1, 1) if given.dim() < 4 else given
    return shaped(given, dims, name).to(torch.float32)


class Parts:
    """What a specification is made of."""

    def __init__(self, scale: Any):
        self.extra: list[str] = []
        self.tensors: list[Tensor] = []
        self.numbers: list[str] = ["scale"]
        self.values: list[Any] = [scale]
        self.lines: list[str] = []
        #: The positions of the first query and the first key, if a launch says them.
        self.origins: Optional[tuple] = None
        #: The score modification and the predicate that an operator of a compiled program traces.
        self.later: Optional[tuple] = None
        #: Whether it is a rank's part of an attention, in which nothing that a function captured has its whole
        #: gradient.
        self.local = False

    def tensor(self, name: str, tensor: Tensor) -> None:
        self.extra.append(name)
        self.tensors.append(tensor)

    def number(self, name: str, value: Any) -> None:
        self.numbers.append(name)
        self.values.append(value if torch.compiler.is_compiling() else float(value))

    def spec(self) -> str:
        return written(self.extra, self.numbers, self.lines)

    def options(
        self, mask: str, dims: tuple, q: Tensor, softcap: Optional[float], alibi: Optional[Tensor],
        bias: Optional[Tensor], keep: Optional[Tensor],
    ) -> None:  # fmt: skip
        """Options without Python functions."""
        if mask != "none":
            self.lines.append(f"mask: {mask}")
        heads, score = [], "score"
        if softcap is not None:
            heads.append("scalar $softcap: float")
            score = f"tanh({score} / $softcap) * $softcap"
            self.number("softcap", softcap)
        if alibi is not None:
            slopes = by_head(alibi, dims, q.device, "alibi_slopes")
            heads.append(declared("alibi_slopes", slopes, False))
            away = "float(key - query)" if "causal" in mask else "-float(abs(query - key))"
            score = f"{score} + @alibi_slopes * {away}"
            self.tensor("alibi_slopes", slopes.contiguous())
        if bias is not None:
            bias = shaped(placed(bias, q.device, "bias"), dims, "bias")
            grad = torch.is_grad_enabled() and bias.requires_grad
            bias = bias.to(q.dtype) if grad or bias.dtype not in NAMES else bias
            # Kernels give gradients for every query and key; PyTorch adds up those of a tensor that has fewer.
            bias = bias.expand(*bias.shape[:2], *dims[2:]) if grad else bias
            heads.append(declared("bias", bias, grad))
            score = f"{score} + @bias"
            self.tensor("bias", bias.contiguous())
        if score != "score":
            self.lines.append(f"score_mod: {'; '.join([*heads, score])}")
        if keep is not None:
            keep = shaped(placed(keep, q.device, "attn_mask"), dims, "attn_mask").to(torch.int32).contiguous()
            self.lines.append(f"mask_mod: {declared('mask', keep, False)}; @mask != 0")
            self.tensor("mask", keep)

    def functions(self, score_mod: Optional[Callable], mask_mod: Optional[Callable], dims: tuple, q: Tensor) -> None:
        """Python functions, traced."""
        entry, read, numbers = _traces.found(score_mod, mask_mod, dims, q.dtype, q.device, self.origins)
        self.tensors += entry.operands(read, q, self.origins, self.local)
        self.extra += entry.names
        self.lines += entry.lines
        for name, value in numbers:
            self.number(name, value)


def declared(name: str, tensor: Tensor, grad: bool) -> str:
    """A tensor of an expression in text form."""
    # A compiled program may serve all sizes: those of the scores, which a launch has.
    dims = ", ".join(str(int(n)) if constant(n) else axis for n, axis in zip(tensor.shape, AXES))
    return f"tensor @{name}: {NAMES[tensor.dtype]}[{dims}]{' grad' if grad else ''}"


__all__ = ["Parts", "Untraceable", "band", "placed", "shaped"]
_DIMS = re.compile(r"^(extra|numbers|varlen): ")


def described(spec: str, q: Tensor, k: Tensor, v: Tensor, stats: bool) -> str:
    """The complete text form of a call, as the kernel completes it; not of varlen tensors and pages."""

    def tensor(t):
        return f"{NAMES[t.dtype]} {list(t.shape)} strides {list(t.stride())}".replace(", ", ",")

    fields = [line for line in spec.split(BETWEEN) if not _DIMS.match(line)]
    fields = [line for line in fields if not line.startswith(("d_sink:", "deterministic:"))]
    with torch.no_grad():
        o = tensor(beside(torch.empty_strided(q.shape, q.stride(), dtype=q.dtype, device="meta"), v.shape[-1]))
    outputs = ["outputs: stats"] if stats else []
    return "\n".join([f"q: {tensor(q)}", f"k: {tensor(k)}", f"v: {tensor(v)}", f"o: {o}", *outputs, *fields])
