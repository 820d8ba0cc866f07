"""From arguments to a specification: the description less its tensors, further tensors by name, and numbers.

Options are written as text. Python functions are traced by `qkvault_record.trace`, once for each function, its captured
values and sizes.
"""

from __future__ import annotations

import re
import types
from collections import OrderedDict
from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor

from qkvault_record import Untraceable, trace

from .._errors import ArgumentError
from ._fake import BETWEEN, beside

Window = Union[int, tuple, None]
_NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.int32: "i32"}
_KINDS = {name: dtype for dtype, name in _NAMES.items()}


def band(is_causal: bool, window: Window, bottom_right: bool) -> str:
    """The value of the field `mask`. The text form counts the query itself, `window` does not."""
    corner = " bottom-right" if bottom_right else ""
    if window is None:
        return f"causal{corner}" if is_causal else "none"
    left, right = (window, window) if isinstance(window, int) else window
    left, right = (-1 if side is None else side for side in (left, right))
    if left < -1 or right < -1:
        raise ArgumentError(f"window is {window}; give keys on a side, 0 or more, or -1 or None for all of them")
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
    if tensor.dim() > 4:
        raise ArgumentError(f"{name} has dims {list(tensor.shape)}; give at most (batch, head, query, key)")
    tensor = tensor.reshape((1,) * (4 - tensor.dim()) + tuple(tensor.shape))
    for axis, (n, most) in enumerate(zip(tensor.shape, dims)):
        if n != 1 and n != most:
            raise ArgumentError(f"{name} has dims {list(tensor.shape)}; the scores have {list(dims)}")
        if n > 1 and tensor.stride(axis) == 0:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def placed(tensor: Tensor, device: torch.device, name: str) -> Tensor:
    """The tensor, if it is where the others are."""
    if tensor.device != device:
        raise ArgumentError(f"{name} is on {tensor.device}, and q on {device}; move it there: {name}.to(q.device)")
    return tensor


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

    def tensor(self, name: str, tensor: Tensor) -> None:
        self.extra.append(name)
        self.tensors.append(tensor)

    def number(self, name: str, value: Any) -> None:
        self.numbers.append(name)
        self.values.append(value if torch.compiler.is_compiling() else float(value))

    def spec(self) -> str:
        head = [f"extra: {' '.join(self.extra)}"] if self.extra else []
        return BETWEEN.join([*head, f"numbers: {' '.join(self.numbers)}", *self.lines])

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
            slopes = alibi.reshape(-1, dims[1], 1, 1) if alibi.dim() < 4 else alibi
            slopes = shaped(placed(slopes, q.device, "alibi_slopes"), dims, "alibi_slopes").to(torch.float32)
            heads.append(declared("alibi_slopes", slopes, False))
            away = "float(key - query)" if "causal" in mask else "-float(abs(query - key))"
            score = f"{score} + @alibi_slopes * {away}"
            self.tensor("alibi_slopes", slopes.contiguous())
        if bias is not None:
            bias = shaped(placed(bias, q.device, "bias"), dims, "bias")
            grad = torch.is_grad_enabled() and bias.requires_grad
            bias = bias.to(q.dtype) if grad or bias.dtype not in _NAMES else bias
            heads.append(declared("bias", bias, grad))
            score = f"{score} + @bias"
            self.tensor("bias", bias.contiguous())
        if score != "score":
            self.lines.append(f"score_mod: {'; '.join([*heads, score])}")
        if keep is not None:
            keep = shaped(placed(keep, q.device, "mask"), dims, "mask").to(torch.int32).contiguous()
            self.lines.append(f"mask_mod: {declared('mask', keep, False)}; @mask != 0")
            self.tensor("mask", keep)

    def functions(self, score_mod: Optional[Callable], mask_mod: Optional[Callable], dims: tuple, q: Tensor) -> None:
        """Python functions, traced."""
        if torch.compiler.is_compiling():
            return self.compiled(score_mod, mask_mod, dims, q)
        traced, tensors = _cached(score_mod, mask_mod, dims, q.dtype, q.device, self.origins is not None)
        lines = traced.lines()
        for name, captured in traced.tensors.items():
            if captured.alibi:
                continue
            kind = captured.dtype
            if captured.grad and _KINDS[kind] != q.dtype:
                lines = [line.replace(f"@{name}: {kind}[", f"@{name}: {_NAMES[q.dtype]}[") for line in lines]
                kind = _NAMES[q.dtype]
            moves = self.origins is not None and captured.source is None and captured.dims[2:] != (1, 1)
            tensor = tensors.get(name)
            if tensor is None:
                given = (self.origins,) if moves else ()
                tensor = captured.source if captured.source is not None else captured.compute(*given)
                tensor = placed(tensor, q.device, f"the tensor {name} that the modification reads")
                tensor = tensor.reshape(captured.dims).to(_KINDS[kind]).contiguous()
                if not tensor.requires_grad and not moves:
                    tensors[name] = tensor
            self.tensor(name, tensor)
        self.lines += lines
        for name, value in traced.scalars.items():
            self.number(name, value)


    def compiled(self, score_mod: Optional[Callable], mask_mod: Optional[Callable], dims: tuple, q: Tensor) -> None:
        """The same under torch.compile, which takes what the functions capture as constants."""
        given = (score_mod, mask_mod, dims, q.dtype, str(q.device), self.origins is not None)
        lines, names, scalars = _constants(*given)
        self.lines += lines
        for name in names:
            self.tensor(name, _constant(*given, name))
        for name, value in scalars:
            self.number(name, value)


@torch._dynamo.assume_constant_result
def _constants(score_mod, mask_mod, dims, dtype, device, origins):
    traced, _ = _cached(score_mod, mask_mod, dims, dtype, torch.device(device), origins)
    if origins and any(t.source is None and not t.alibi and t.dims[2:] != (1, 1) for t in traced.tensors.values()):
        raise ArgumentError(
            "under torch.compile, what a modification reads from a table is constant, and query_origin and key_origin "
            "move the place where it is read; call the attention outside of what is compiled"
        )
    if any(captured.grad for captured in traced.tensors.values()):
        raise ArgumentError(
            "under torch.compile, what a score_mod captures is constant, and it reads a tensor with gradient; give "
            "that tensor as bias, or call the attention outside of what is compiled"
        )
    names = tuple(name for name, captured in traced.tensors.items() if not captured.alibi)
    return tuple(traced.lines()), names, tuple(traced.scalars.items())


@torch._dynamo.assume_constant_result
def _constant(score_mod, mask_mod, dims, dtype, device, origins, name):
    traced, _ = _cached(score_mod, mask_mod, dims, dtype, torch.device(device), origins)
    captured = traced.tensors[name]
    tensor = captured.source if captured.source is not None else captured.compute()
    tensor = placed(tensor, torch.device(device), f"the tensor {name} that the modification reads")
    return tensor.reshape(captured.dims).to(_KINDS[captured.dtype]).contiguous()


def declared(name: str, tensor: Tensor, grad: bool) -> str:
    """A tensor of an expression in text form."""
    dims = ", ".join(str(int(n)) for n in tensor.shape)
    return f"tensor @{name}: {_NAMES[tensor.dtype]}[{dims}]{' grad' if grad else ''}"


#: What is in lines of a specification, which Inductor writes into comments and between quotes.
_PLAIN = re.compile(r"[ !#-&(-\[\]-~]*")
_MOST = 128
_traces: OrderedDict = OrderedDict()


def _cached(score_mod, mask_mod, dims, dtype, device, origins) -> tuple:
    """What the functions are, traced once for what they capture; tensors without gradient are computed once too."""
    kept: list[Any] = []
    key = (_seen(score_mod, kept), _seen(mask_mod, kept), dims, dtype, device, origins, torch.is_grad_enabled())
    found = _traces.get(key)
    if found is None:
        traced = trace(score_mod, mask_mod, sizes=dims, origins=origins)
        for line in traced.lines():
            if not _PLAIN.fullmatch(line):  # It would break the programs that Inductor writes.
                raise Untraceable(f"the expression of a modification has characters that no expression has: {line!r}")
        found = _traces[key] = (traced, {}, kept)
        if len(_traces) > _MOST:
            _traces.popitem(last=False)
    else:
        _traces.move_to_end(key)
    return found[0], found[1]


def _seen(value: Any, kept: list, depth: int = 0) -> Any:
    """What a result of a function depends on. Objects that are told apart by their address are kept alive."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, torch.dtype, torch.device)):
        return (type(value), value)
    kept.append(value)
    if isinstance(value, Tensor):
        return (id(value), value._version, value.requires_grad)
    if isinstance(value, (tuple, list)) and depth < 4 and len(value) < 64:
        return (type(value), tuple(_seen(item, kept, depth + 1) for item in value))
    if isinstance(value, types.FunctionType) and depth < 4:
        cells = []
        for cell in value.__closure__ or ():
            try:
                cells.append(_seen(cell.cell_contents, kept, depth + 1))
            except ValueError:
                cells.append(None)
        code, spaces = value.__code__, value.__globals__
        named = tuple(
            _seen(spaces[name], kept, depth + 1) for name in code.co_names
            if isinstance(spaces.get(name), (Tensor, bool, int, float, types.FunctionType))
        )  # fmt: skip
        return (code, tuple(cells), _seen(value.__defaults__, kept, depth + 1), named)
    if hasattr(value, "func") and hasattr(value, "keywords"):
        words = tuple(sorted((name, _seen(item, kept, depth + 1)) for name, item in value.keywords.items()))
        return (_seen(value.func, kept, depth + 1), _seen(value.args, kept, depth + 1), words)
    return id(value)


__all__ = ["Parts", "Untraceable", "band", "placed", "shaped"]
_DIMS = re.compile(r"^(extra|numbers|varlen): ")


def described(spec: str, q: Tensor, k: Tensor, v: Tensor, stats: bool) -> str:
    """The complete text form of a call, as the kernel completes it; not of varlen tensors and pages."""

    def tensor(t):
        return f"{_NAMES[t.dtype]} {list(t.shape)} strides {list(t.stride())}".replace(", ", ",")

    fields = [line for line in spec.split(BETWEEN) if not _DIMS.match(line)]
    fields = [line for line in fields if not line.startswith(("d_sink:", "deterministic:"))]
    with torch.no_grad():
        o = tensor(beside(torch.empty_strided(q.shape, q.stride(), dtype=q.dtype, device="meta"), v.shape[-1]))
    outputs = ["outputs: stats"] if stats else []
    return "\n".join([f"q: {tensor(q)}", f"k: {tensor(k)}", f"v: {tensor(v)}", f"o: {o}", *outputs, *fields])
