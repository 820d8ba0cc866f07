"""Traces of modifications, kept for what they read: `_follow.py` says what that is.

A trace serves every function of the same code that reads the same: tensors are operands, read anew at each call, and
floats that are only passed on are numbers of the launch. What cannot be followed is traced at every call.
"""

from __future__ import annotations

import functools
import math
import re
import types
import weakref
from collections import OrderedDict
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from qkvault_record import Captured, Traced, Untraceable, trace

from .._follow import Followed
from . import _numbers
from ._fake import written
from ._placed import converted, of_ranks, there, typed

#: What is in lines of a specification, which Inductor writes into comments and between quotes.
_PLAIN = re.compile(r"[ !#-&(-\[\]-~]*")
#: Most places that traces are kept for, and most traces of a place: one for each value of what is compared.
_MOST, _EACH = 128, 8
_traces: OrderedDict = OrderedDict()
#: How many traces were made.
made = 0


def _known(tensor: Tensor) -> tuple:
    return tensor.dtype, tensor.shape, tensor.requires_grad, tensor.device, type(tensor)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


_transformed = torch._C._functorch.is_functorch_wrapped_tensor


def _stand(tensor: Tensor) -> Tensor:
    """What a function that is traced gets for a tensor: one without values for a tensor of torch.func's transforms,
    which would put what is computed with it out of sight."""
    if not _transformed(tensor):
        return tensor
    with torch._C._DisableFuncTorch():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta", requires_grad=tensor.requires_grad)


class Bound:
    """A tensor of an expression: how it is made of what a call reads."""

    __slots__ = ("name", "captured", "places", "kept", "itself")

    def __init__(self, name: str, captured: Captured, places: list[int]):
        self.name, self.captured, self.places = name, captured, places
        #: The tensor that was laid out last, and what it was made of: reference, place and version of each.
        self.kept: Optional[tuple] = None
        #: The place of the tensor that is taken as it is.
        self.itself: Optional[int] = None

    def now(self, read: tuple) -> Optional[Tensor]:
        """The tensor of a launch, if nothing is to be computed."""
        if self.itself is not None:
            tensor = read[self.itself]
            return tensor if tensor.is_contiguous() else None
        if self.kept is None:
            return None
        for ref, place, version in self.kept[1]:
            root = read[place]
            if ref() is not root or root._version != version:
                return None
        return self.kept[0]

    def of(self, tensors: tuple, origins: Optional[tuple]) -> Tensor:
        """The tensor as the function has it, before it is laid out."""
        captured = self.captured
        assert captured.bind is not None
        given = {id(root): tensors[place] for root, place in zip(captured.roots, self.places)}
        return captured.bind(given, *(() if origins is None else (origins,)))


class Entry:
    """One trace: what it was made of, and what it gives."""

    def __init__(self, traced: Traced, checks: list, bound: list[Bound], numbers: list):
        self.traced, self.checks, self.bound, self.numbers = traced, checks, bound, numbers
        self.lines = traced.lines()
        #: The names of tensors, once their types are known.
        self.names: list[str] = []
        self._tensors: Optional[list] = None
        self._spec: Optional[str] = None
        self.asked = [(weakref.ref(tensor), _version(tensor)) for tensor in traced.asked]

    def tensors(self) -> list:
        """The tensors that a launch is given: name, what it is, and how it is made anew, if that is known."""
        bound = {one.name: one for one in self.bound}
        return [(name, one, bound.get(name)) for name, one in self.traced.tensors.items() if one.alibi is None]

    def operands(
        self, read: Optional[tuple], q: Tensor, origins: Optional[tuple], local: bool = False
    ) -> list[Tensor]:  # fmt: skip
        """The tensors of a launch, of what a call read. One is `local` if it is a rank's part of a call."""
        if self._tensors is None:
            self._tensors = []
            for name, captured, bound in self.tensors():
                self.lines, kind = typed(self.lines, name, captured, q.dtype)
                self._tensors.append((name, captured, bound, kind))
            self.names = [name for name, *_ in self._tensors]
        made = []
        for name, captured, bound, kind in self._tensors:
            if local and captured.grad:
                raise of_ranks(name)
            tensor = None if bound is None or read is None else bound.now(read)
            made.append(laid_out(name, captured, bound, read, origins, q.device, kind) if tensor is None else tensor)
        return made

    def spec(self, numbers: list) -> str:
        """The specification of a call that has nothing else, after its operands were asked for."""
        if self._spec is None:
            self._spec = written(self.names, ["scale", *(name for name, _ in numbers)], self.lines)
        return self._spec

    def named(self, numbers: tuple) -> list:
        """The numbers of a launch by name, of those that a call reads."""
        return [(name, value if at is None else numbers[at]) for name, value, at in self.numbers]

    def read(self, score_mod: Optional[Callable], mask_mod: Optional[Callable]) -> Optional[tuple]:
        """The tensors and numbers of functions now; None if they are not those of this trace."""
        tensors: tuple = ()
        numbers: tuple = ()
        for check, function in zip(self.checks, (score_mod, mask_mod)):
            if check is None:
                continue
            found = check(function)
            if found is None:
                return None
            tensors, numbers = tensors + found[0], numbers + found[1]
        for kept, version in self.asked:
            tensor = kept()
            if tensor is None or version is None or version != _version(tensor):
                return None
            if not any(tensor is read for read in tensors):
                return None
        return tensors, numbers


def laid_out(
    name: str, captured: Captured, bound: Optional[Bound], read: Optional[tuple], origins: Optional[tuple],
    device: torch.device, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """A tensor of an expression, as a launch takes it. Where PyTorch counts the changes of all that it is made of, and
    none has a gradient, it is made once for what they are."""
    moves = origins is not None and captured.moves
    given = origins if moves else None
    if bound is None or read is None:
        tensor = captured.source
        if tensor is None:
            tensor = captured.compute(*(() if given is None else (given,)))
        tensor = there(tensor, captured, device, name)
        return converted(tensor.reshape(captured.dims), dtype, name).contiguous()
    tensor = there(bound.of(read, given), captured, device, name)
    tensor = converted(tensor.reshape(captured.dims), dtype, name).contiguous()
    bound.kept = bound.itself = None
    roots = [(read[place], place, _version(read[place])) for place in bound.places]
    for root, place, _ in roots:
        if tensor is root:
            bound.itself = place
            return tensor
    if not moves and not any(root.requires_grad or version is None for root, _, version in roots):
        bound.kept = (tensor, [(weakref.ref(root), place, version) for root, place, version in roots])
    return tensor


def _version(tensor: Tensor) -> Optional[int]:
    """How often a tensor changed in place; None where PyTorch does not count it."""
    return None if tensor.is_inference() or _transformed(tensor) else tensor._version


def found(score_mod, mask_mod, dims: tuple, dtype, device, origins: Optional[tuple]) -> tuple:
    """The lines of a specification; tensors, as (how each is made, those of this call); and numbers, by name."""
    moves = origins is not None
    key = (_code(score_mod), _code(mask_mod), dims, dtype, device, moves, torch.is_grad_enabled())
    entries = _traces.get(key)
    if entries is not None:
        for entry in entries:
            read = entry.read(score_mod, mask_mod)
            if read is not None:
                if entry is not entries[0]:
                    entries.remove(entry)
                    entries.insert(0, entry)
                return entry, read[0], entry.named(read[1])
        _traces.move_to_end(key)
    entry, kept = _traced(score_mod, mask_mod, dims, moves)
    read = entry.read(score_mod, mask_mod) if kept else None
    if read is None:
        return entry, None, list(entry.traced.scalars.items())
    if entries is None:
        entries = _traces[key] = []
        if len(_traces) > _MOST:
            _traces.popitem(last=False)
    entries.insert(0, entry)
    del entries[_EACH:]
    return entry, read[0], entry.named(read[1])


def _code(function: Any) -> Any:
    """What functions of one trace have in common."""
    kind = type(function)
    if kind is types.FunctionType:
        return function.__code__
    if kind is types.MethodType:
        return kind, function.__func__.__code__ if hasattr(function.__func__, "__code__") else None
    if kind is functools.partial:
        return kind, _code(function.func)
    return kind


def _traced(score_mod, mask_mod, dims: tuple, moves: bool) -> tuple[Entry, bool]:
    """A new trace, and whether it can be kept."""
    global made
    made += 1
    functions = (score_mod, mask_mod)
    followed = [None if f is None else Followed(f, _is_tensor, _known, stand=_stand) for f in functions]
    try:
        traced = _trace([None if f is None else f.function for f in followed], dims, moves, followed)
    except Exception:
        # Whether it is the user's fault or that of following shows without following.
        return Entry(_trace(functions, dims, moves), [], [], []), False
    reads = [f for f in followed if f is not None]
    tensors = [tensor for f in reads for tensor in f.stands]
    places = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(id(tensor), place)
    captured = {name: one for name, one in traced.tensors.items() if one.alibi is None}
    known = all(id(root) in places for one in captured.values() for root in one.roots)
    if any(f.unfollowed for f in reads) or not known or any(id(t) not in places for t in traced.asked):
        lost = next((f.unfollowed for f in reads if f.unfollowed), "what it reads")
        if any(map(_transformed, (tensor for f in reads for tensor in f.tensors))):
            raise Untraceable(f"{lost} cannot be followed, and it reads tensors of torch.func's transforms")
        return Entry(_trace(functions, dims, moves), [], [], []), False
    numbers, bound = _numbers.found(traced, followed, dims, moves, _trace)
    checks = [None if f is None else f.checked(frozenset(b)) for f, b in zip(followed, bound)]
    tensors_of = [Bound(name, one, [places[id(root)] for root in one.roots]) for name, one in captured.items()]
    return Entry(traced, checks, tensors_of, numbers), True


def _trace(functions, dims, moves, followed=None) -> Traced:
    names = None if followed is None else functools.partial(_names, followed)
    with torch._C._DisableFuncTorch():
        traced = trace(*functions, sizes=dims, origins=moves, names=names)
    for line in traced.lines():
        if not _PLAIN.fullmatch(line):  # It would break the programs that Inductor writes.
            raise Untraceable(f"the expression of a modification has characters that no expression has: {line!r}")
    return traced


def _names(followed, function) -> tuple:
    """Names of the tensors and floats that a function read: it has read nothing when this is asked, so they are found
    while they are looked up."""
    (own,) = (f for f in followed if f is not None and f.function is function)
    return _Names(own), _Floats(own)


class _Names:
    """Names of tensors by their identity."""

    def __init__(self, followed: Followed):
        self.followed = followed

    def get(self, identity: int) -> Optional[str]:
        for tensor, read in zip(self.followed.stands, (r for r in self.followed.reads if r.kind == "tensor")):
            if id(tensor) == identity:
                return self.followed.named(read.path)
        return None


class _Floats:
    """Names of floats by their value: 0 and 1 are constants."""

    def __init__(self, followed: Followed):
        self.followed = followed

    def get(self, value: float) -> Optional[str]:
        value = float(value)
        if value in (0.0, 1.0, -1.0) or not math.isfinite(value):
            return None
        for place, number in self.followed.numbers.items():
            if float.__eq__(float(number), value) is True:
                return self.followed.named(self.followed.reads[place].path)
        return None
