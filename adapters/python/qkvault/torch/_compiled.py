"""Modifications under `torch.compile`: an operator of higher order that Dynamo hands their graphs to.

Dynamo traces a function that `qkvault_attend` is given as it does FlexAttention's: what the function captures become
inputs of its graph, among them floats that change. When the compiler behind Dynamo calls the operator, the graph is
traced again, by `qkvault_record.trace`, and what stays is an ordinary operator of qkvault, whose text has the
expression and whose tensors are those inputs.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator

from qkvault_record import Traced, trace

from .._errors import ArgumentError
from . import _fake, _told
from ._placed import there, typed



class _Attend(HigherOrderOperator):
    """`(q, k, v, score_mod, (options..., mask_mod), scale, {}, captured, captured)`: the signature that Dynamo has for
    `flex_attention`."""

    def __init__(self) -> None:
        super().__init__("qkvault_attend", cacheable=True)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, score_mod: Callable, options: tuple, scale: Any, flags: dict,
        of_scores: tuple = (), of_masks: tuple = (),
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        names, numbers, lines, values, tensors, dims, mask_mod = options
        functions = (
            functools.partial(_called, score_mod, tuple(of_scores)) if flags["score_mod"] else None,
            functools.partial(_called, mask_mod, tuple(of_masks)) if flags["mask_mod"] else None,
        )
        dims = tuple(int(n) for n in dims)
        return _attend(q, k, v, functions, dims, (names, numbers, lines, scale, values, tensors), flags)


attend = _Attend()


def _known() -> bool:
    """Lets Dynamo treat the operator as FlexAttention's. False if this PyTorch keeps that elsewhere."""
    from torch._dynamo.variables import higher_order_ops

    table = getattr(higher_order_ops, "_hop_name_to_variable_class", None)
    found = getattr(higher_order_ops, "FlexAttentionHigherOrderVariable", None)
    if not isinstance(table, dict) or found is None:
        return False
    table["qkvault_attend"] = found
    return True


known = _known()


def same(score, b, h, q_idx, kv_idx):
    """In the place of no score modification."""
    return score


def every(b, h, q_idx, kv_idx):
    """In the place of no mask."""
    return b >= 0


def run(q: Tensor, k: Tensor, v: Tensor, parts: Any, score_mod, mask_mod, dims: tuple, both: bool) -> tuple:
    """Calls the operator where Dynamo sees it."""
    scale, *values = parts.values
    given = (
        " ".join(parts.extra), " ".join(parts.numbers), _fake.BETWEEN.join(parts.lines), tuple(values),
        tuple(parts.tensors), tuple(dims), mask_mod if mask_mod is not None else every,
    )  # fmt: skip
    flags = {
        "score_mod": score_mod is not None, "mask_mod": mask_mod is not None, "both": both,
        "grad": torch.is_grad_enabled(), "origins": parts.origins is not None,
    }  # fmt: skip
    return attend(q, k, v, score_mod if score_mod is not None else same, given, scale, flags)


def _called(graph: Callable, captured: tuple, *point: Tensor) -> Any:
    return graph(*point, *captured)


class _StandIns:
    """Tensors in the place of those that a graph captured, for a trace; with distinct values where a graph may ask for
    them, which are floats of Python that change. With `whole`, those are tensors of one element like all others."""

    def __init__(self, captured: tuple, factor: float, whole: bool):
        self.real, self.whole = captured, whole
        self.tensors: list[Any] = []
        self.numbers: dict[float, Any] = {}
        for at, value in enumerate(captured):
            if not isinstance(value, Tensor):
                plain = isinstance(value, (int, float)) and not isinstance(value, torch.SymFloat)
                self.tensors.append(value if plain else self._number(at, factor, value))
            elif value.dim() == 0 and value.dtype is torch.float64 and value.device.type == "cpu":
                self.tensors.append(self._number(at, factor, value, True))
            else:
                made = torch.empty(value.shape, dtype=value.dtype, device="meta")
                self.tensors.append(made.requires_grad_(value.requires_grad))

    def _number(self, at: int, factor: float, value: Any, asked: bool = False) -> Any:
        if self.whole:
            return torch.empty((), dtype=torch.float32, device="meta")
        made = 1.5 + (at + 1) * factor
        self.numbers[made] = value
        return torch.tensor(made, dtype=torch.float64) if asked else made

    def given(self, device: torch.device) -> dict:
        """What stands for what, by identity."""
        given = {}
        for stand, real in zip(self.tensors, self.real):
            if isinstance(stand, Tensor):
                if not isinstance(real, Tensor):
                    real = torch.scalar_tensor(real, dtype=torch.float32, device=device)
                elif stand.dtype != real.dtype:
                    real = real.to(device, torch.float32)
                given[id(stand)] = real
        return given


class _Whole(torch.fx.Interpreter):
    """A graph whose floats of Python are tensors of one element."""

    def call_method(self, target, args, kwargs):
        return args[0] if target == "item" else super().call_method(target, args, kwargs)


def _traced(functions: tuple, dims: tuple, flags: dict, factor: float, whole: bool = False) -> tuple[Traced, list]:
    """A trace of graphs over stand-ins, and these."""
    with torch.utils._python_dispatch._disable_current_modes(), torch.set_grad_enabled(flags["grad"]):
        stands = [None if f is None else _StandIns(f.args[1], factor, whole) for f in functions]
        calls: list[Optional[Callable]] = []
        for f, stand in zip(functions, stands):
            graph = None if f is None else _Whole(f.args[0]).run if whole else f.args[0]
            calls.append(None if stand is None else functools.partial(_called, graph, tuple(stand.tensors)))
        floats = {value: f"number{at}" for at, value in enumerate(v for s in stands if s for v in s.numbers)}
        named = {id(t): f"captured{at}" for s in stands if s for at, t in enumerate(s.tensors) if isinstance(t, Tensor)}
        return trace(*calls, sizes=dims, origins=flags["origins"], names=lambda _: (named, floats)), stands


def _numbers(traced: Traced, stands: list, functions: tuple, dims: tuple, flags: dict) -> Optional[dict]:
    """The floats that scalars of a trace are, by their value; None if they decide anything else."""
    real = {value: number for s in stands if s for value, number in s.numbers.items()}
    if not real:
        return real
    other, others = _traced(functions, dims, flags, 2.0**-11)
    again = {value: number for s in others if s for value, number in s.numbers.items()}
    if other.lines() != traced.lines() or list(other.scalars) != list(traced.scalars):
        return None
    for name, value in traced.scalars.items():
        if (value in real) != (other.scalars[name] in again) or value not in real and value != other.scalars[name]:
            return None
    return real


def _attend(q, k, v, functions, dims, described, flags) -> tuple[Tensor, Tensor]:
    from . import _operators

    names, numbers, lines, scale, values, tensors = described
    traced, stands = _traced(functions, dims, flags, 2.0**-12)
    real = _numbers(traced, stands, functions, dims, flags)
    if real is None:
        (traced, stands), real = _traced(functions, dims, flags, 0.0, whole=True), {}
    from ._spec import Parts

    parts = Parts(scale)
    parts.extra, parts.tensors, parts.numbers = names.split(), list(tensors), numbers.split()
    parts.values += values
    given: dict = {}
    for stand in stands:
        given.update({} if stand is None else stand.given(q.device))
    text = traced.lines()
    for name, captured in traced.tensors.items():
        if captured.alibi is not None:
            continue
        if flags["origins"] and captured.source is None and captured.dims[2:] != (1, 1):
            raise ArgumentError(
                "under torch.compile, query_origin and key_origin move the place where a modification reads a table; "
                "call the attention outside of what is compiled"
            )
        assert captured.bind is not None
        text, kind = typed(text, name, captured, q.dtype)
        tensor = there(captured.bind(given), captured, q.device, name)
        parts.tensor(name, tensor.reshape(captured.dims).to(kind).contiguous())
    for name, value in traced.scalars.items():
        parts.numbers.append(name)
        parts.values.append(real.get(value, value))
    parts.lines = [*text, *([lines] if lines else [])]
    spec, tensors = parts.spec(), parts.tensors
    training = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, *tensors))
    told = _told.told(parts.values, spec)
    if isinstance(told, Tensor):
        return _told.forward(q, k, v, tensors, spec, told)
    if training or flags["both"]:
        return _operators.forward(q, k, v, tensors, spec, told)
    return _operators.attend(q, k, v, tensors, spec, told), q.new_empty((0,), dtype=torch.float32)
