"""Floats that a modification reads, wherever from: parameters of its trace, so that no text depends on their values.

`_follow.py` gives a copy of the function which asks here for each float that it reads. What Python decides or computes
by a float that has no value yet is an error of JAX, and that float stays a constant.
"""

from __future__ import annotations

import dis
import functools
import types
from dataclasses import dataclass
from typing import Any, Callable, Optional

import jax
import jax.numpy as jnp
import numpy as np

from .._follow import Followed
from .._objects import trusted

#: Parameters of a trace in wait of floats: of Python's, which take the types of others, and of NumPy's.
SPARE = (10, 4)
_MOST, _LARGE = 6, 65536.0
#: What a function learns of a value besides its number, by which it may take another way for a traced one.
_ASKING = {"isinstance", "type", "issubclass", "callable", "hasattr", "getattr", "repr", "str", "format", "id"}
_ASKING_STEPS = ("PUSH_EXC_INFO", "SETUP_FINALLY", "MATCH_CLASS", "FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC")


def _is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray)) or hasattr(type(value), "__jax_array__")


@dataclass
class Traced:
    """A trace: `SPARE` parameters, then those of the function."""

    jaxpr: Any
    #: Name and value of a number, by the place of its parameter.
    numbers: dict[int, tuple[str, float]]


class _Opened(Followed):
    """A followed function whose floats at some paths, or at all, are parameters of a trace."""

    def __init__(self, function: Callable, spare: list, only: Optional[set]):
        self.spare, self.only = spare, only
        #: What is the user's code of it.
        self.codes: list[types.CodeType] = []
        self.left = [iter(range(SPARE[0])), iter(range(SPARE[0], sum(SPARE)))]
        #: The place of its parameter and its value, by path.
        self.taken: dict[tuple, tuple[int, float]] = {}
        super().__init__(function, _is_array, lambda value: None)

    def _value(self, value: Any, path: tuple) -> Any:
        wide = isinstance(value, np.float64) and not jax.config.jax_enable_x64
        return self.number(value, path) if wide or type(value) is np.float32 else super()._value(value, path)

    def _function(self, function: types.FunctionType, path: tuple) -> Any:
        of = function.__globals__.get("__name__")
        if of == "flax.linen.module" and hasattr(function, "__wrapped__"):
            # It opens a module, which is open.
            return self.value(function.__wrapped__, (*path, ("attr", "__wrapped__")))
        if not trusted(of):
            self.codes.append(function.__code__)
        return super()._function(function, path)

    def opaque(self, value: Any, path: tuple, what: str) -> Any:
        self.note(path, "same", value)
        return value  # Nothing is kept of a trace: floats that are read of it are constants.

    def key(self) -> tuple:
        """All that it read, without the values of numbers and arrays."""
        def of(kind: str, value: Any) -> Any:
            if kind in ("float", "tensor"):
                return None
            return (type(value), id(value)) if kind in ("same", "method") else (type(value), value)

        return tuple((read.path, read.kind, of(read.kind, read.value)) for read in self.reads)

    def result(self, jaxpr: Any) -> Traced:
        named: dict[str, tuple[int, float]] = {}
        for path, (place, value) in self.taken.items():
            name = self.named(path)
            named[name if name not in named else f"{name}_{place}"] = place, value
        return Traced(jaxpr, {place: (name, value) for name, (place, value) in named.items()})

    def number(self, value: Any, path: tuple) -> Any:
        self.note(path, "float", value)
        # What stands for infinity is a constant: rules judge rows that have nothing else.
        if not abs(value) < _LARGE or self.only is not None and path not in self.only:
            return value
        place = next(self.left[isinstance(value, np.generic)], None)
        if place is None:
            return value
        self.taken[path] = (place, float(value))
        return self.spare[place]


def traced(function: Callable, given: list) -> Traced:
    """The trace of a function of abstract numbers; raises what JAX raises of it."""
    weak = jax.ShapeDtypeStruct((), jnp.float32, weak_type=True)
    front = [weak] * SPARE[0] + [jax.ShapeDtypeStruct((), jnp.float32)] * SPARE[1]

    def opened(only: Optional[set]) -> tuple[Any, Optional[_Opened]]:
        followed: list[_Opened] = []

        def call(*args):
            followed.append(_Opened(function, list(args[: sum(SPARE)]), only))
            return followed[0].function(*args[sum(SPARE):])

        try:
            jaxpr = jax.make_jaxpr(call)(*front, *given)
        except Exception:
            # Python wants a value, or what was read is not followed: as constants they are right.
            return None, followed[0] if followed else None
        asks = followed[0].unfollowed or any(map(_asks, followed[0].codes))
        return None if asks else jaxpr, None if asks else followed[0]

    jaxpr, own = opened(None)
    if jaxpr is not None and own is not None and own.key() in _right:
        return own.result(jaxpr)
    # A function of its own each time: JAX keeps traces by identity, and what a function captures may change.
    plain = jax.make_jaxpr(lambda *args: function(*args[sum(SPARE):]))(*front, *given)
    if jaxpr is None and own is not None:
        paths = list(own.taken)
        several = 1 < len(paths) <= _MOST
        good = {path for path in paths if opened({path})[0] is not None} if several else set()
        jaxpr, own = opened(good) if good else (None, None)
    elif jaxpr is not None and own is not None and _alike(jaxpr, plain):
        if len(_right) >= _KEPT:
            _right.clear()
        _right.add(own.key())
    return own.result(jaxpr) if jaxpr is not None and own is not None and _alike(jaxpr, plain) else Traced(plain, {})


#: What was read of functions whose followed copies were seen to be them, at most `_KEPT`.
_right: set[tuple] = set()
_KEPT = 1024


def _alike(one: Any, other: Any) -> bool:
    """Whether traces give the same type and read the same arrays: a followed function is the function."""
    arrays = [{id(x) for x in closed.consts if np.ndim(x)} for closed in (one, other)]
    return [str(x) for x in one.out_avals] == [str(x) for x in other.out_avals] and arrays[0] == arrays[1]


@functools.lru_cache(1024)
def _asks(code: types.CodeType) -> bool:
    """Whether code may take another way for a number that is traced than for a float."""
    return any(
        step.opname in _ASKING_STEPS or step.opname.startswith("LOAD_") and step.argval in _ASKING
        for step in dis.get_instructions(code)
    ) or any(isinstance(inner, types.CodeType) and _asks(inner) for inner in code.co_consts)
