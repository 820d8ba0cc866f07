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
from .._reads import Number
from . import _fake, _told
from ._placed import converted, of_ranks, there, typed


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
            functools.partial(called, score_mod, tuple(of_scores)) if flags["score_mod"] else None,
            functools.partial(called, mask_mod, tuple(of_masks)) if flags["mask_mod"] else None,
        )
        return computed(q, k, v, functions, dims, (names, numbers, lines, scale, values, tensors), flags)


attend = _Attend()


def known_as(name: str) -> bool:
    """Lets Dynamo treat an operator as FlexAttention's. False if this PyTorch keeps that elsewhere."""
    from torch._dynamo.variables import higher_order_ops

    table = getattr(higher_order_ops, "_hop_name_to_variable_class", None)
    found = getattr(higher_order_ops, "FlexAttentionHigherOrderVariable", None)
    if not isinstance(table, dict) or found is None:
        return False
    table[name] = found
    return True


known = known_as("qkvault_attend")


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
        "local": parts.local,
    }  # fmt: skip
    return attend(q, k, v, score_mod if score_mod is not None else same, given, scale, flags)


def called(graph: Callable, captured: tuple, *point: Tensor) -> Any:
    return graph(*point, *captured)


class _StandIns:
    """Tensors in the place of those that a graph captured, for a trace, and distinct numbers in the place of floats of
    Python that change. With `whole`, those are tensors of one element like all others."""

    def __init__(self, captured: tuple, first: int, factor: float, whole: bool):
        self.real, self.whole = captured, whole
        self.tensors: list[Any] = []
        #: The floats by the value that stands for them.
        self.numbers: dict[float, Any] = {}
        self.made: list[Number] = []
        for at, value in enumerate(captured, first):
            if is_float(value):
                self.tensors.append(self._number(1.5 + (at + 1) * factor, value))
            elif not isinstance(value, Tensor):
                self.tensors.append(value)
            else:
                made = torch.empty(value.shape, dtype=value.dtype, device="meta")
                self.tensors.append(made.requires_grad_(value.requires_grad))

    def _number(self, made: float, value: Any) -> Any:
        if self.whole:
            return torch.empty((), dtype=torch.float32, device="meta")
        self.numbers[made] = value
        self.made.append(Number(made))
        return self.made[-1]

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


def is_float(value: Any) -> bool:
    """Whether a captured argument is a float that changes: a symbol, or the tensor that Dynamo wraps it in."""
    if isinstance(value, Tensor):
        return value.dim() == 0 and value.dtype is torch.float64 and value.device.type == "cpu"
    return isinstance(value, torch.SymFloat)


class _Unwrapped(torch.fx.Interpreter):
    """A graph that is given floats where Dynamo wraps them in tensors."""

    def call_method(self, target, args, kwargs):
        asked = target == "item" and (isinstance(args[0], Number) or args[0].dim() == 0)
        return args[0] if asked else super().call_method(target, args, kwargs)


def _traced(functions: tuple, dims: tuple, flags: dict, factor: float, whole: bool = False) -> tuple[Traced, list]:
    """A trace of graphs over stand-ins, and these."""
    with torch.utils._python_dispatch._disable_current_modes(), torch.set_grad_enabled(flags["grad"]):
        stands: list[Optional[_StandIns]] = []
        calls: list[Optional[Callable]] = []
        first = 0
        for f in functions:
            stand = None if f is None else _StandIns(f.args[1], first, factor, whole)
            first += 0 if f is None else len(f.args[1])
            stands.append(stand)
            graph: Any = None if f is None else _Unwrapped(f.args[0]).run
            calls.append(None if stand is None else functools.partial(called, graph, tuple(stand.tensors)))
        floats = {value: f"number{at}" for at, value in enumerate(v for s in stands if s for v in s.numbers)}
        named = {id(t): f"captured{at}" for s in stands if s for at, t in enumerate(s.tensors) if isinstance(t, Tensor)}
        return trace(*calls, sizes=dims, origins=flags["origins"], names=lambda _: (named, floats)), stands


def _numbers(traced: Traced, stands: list, functions: tuple, dims: tuple, flags: dict) -> Optional[dict]:
    """The floats that scalars of a trace are, by their value; None if they decide anything else."""
    real = {value: number for s in stands if s for value, number in s.numbers.items()}
    if not real:
        return real
    if any(number.used for s in stands if s for number in s.made):
        return None
    other, others = _traced(functions, dims, flags, 2.0**-11)
    again = {value: number for s in others if s for value, number in s.numbers.items()}
    if other.lines() != traced.lines() or list(other.scalars) != list(traced.scalars):
        return None
    for name, value in traced.scalars.items():
        if (value in real) != (other.scalars[name] in again) or value not in real and value != other.scalars[name]:
            return None
    return real


def _traced_ahead(functions: tuple, dims: tuple, flags: dict) -> Optional[tuple]:
    """A trace, what stood for what it captured, and the floats that its scalars are; None if what it would say is not
    known before the program runs."""
    captured = [value for f in functions if f is not None for value in f.args[1]]
    symbols = [value for value in captured if isinstance(value, (torch.SymInt, torch.SymBool))]
    if not all(_told.constant(value) for value in (*dims, *symbols)):
        return None
    dims = tuple(int(n) for n in dims)
    traced, stands = _traced(functions, dims, flags, 2.0**-12)
    real = _numbers(traced, stands, functions, dims, flags)
    if real is not None:
        return traced, stands, real
    try:
        return *_traced(functions, dims, flags, 0.0, whole=True), {}
    except Exception:  # What Python computes with numbers is no operation of tensors.
        return None


def computed(q, k, v, functions, dims, described, flags) -> tuple[Tensor, Tensor]:
    from . import _later, _operators
    from ._spec import Parts

    names, numbers, lines, scale, values, tensors = described
    parts = Parts(scale)
    parts.extra, parts.tensors, parts.numbers = names.split(), list(tensors), numbers.split()
    parts.values += values
    parts.lines = [lines] if lines else []
    found = _traced_ahead(functions, dims, flags)
    if found is None:
        return _later.run(q, k, v, functions, parts, dims, flags["origins"], flags["both"])
    traced, stands, real = found
    given: dict = {}
    for stand in stands:
        given.update({} if stand is None else stand.given(q.device))
    text = traced.lines()
    for name, captured in traced.tensors.items():
        if captured.alibi is not None:
            continue
        if flags["origins"] and captured.moves:
            raise ArgumentError(
                "under torch.compile, query_origin and key_origin move the place where a modification reads a table; "
                "call the attention outside of what is compiled"
            )
        assert captured.bind is not None
        if flags["local"] and captured.grad:
            raise of_ranks(name)
        text, kind = typed(text, name, captured, q.dtype)
        tensor = there(captured.bind(given), captured, q.device, name)
        parts.tensor(name, converted(tensor.reshape(captured.dims), kind, name).contiguous())
    for name, value in traced.scalars.items():
        parts.numbers.append(name)
        parts.values.append(real.get(value, value))
    parts.lines = [*text, *parts.lines]
    spec, tensors = parts.spec(), parts.tensors
    training = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, *tensors))
    told = _told.told(parts.values)
    if isinstance(told, Tensor):
        return _told.forward(q, k, v, tensors, spec, told)
    if training or flags["both"]:
        return _operators.forward(q, k, v, tensors, spec, told)
    return _operators.attend(q, k, v, tensors, spec, told), q.new_empty((0,), dtype=torch.float32)
