"""`jit` of sharded arrays: one call becomes a call on each device, of its part of the batch and of the heads.

XLA asks for the parts while it compiles (`custom_partitioning`), so what a call becomes for whole arrays, and its plan,
are not known before it is lowered: `_later` is the call until then.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, Callable

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from ._shards import manual


def partitioned(kind: Any, batch: int, bound: Callable, types: Callable) -> Callable:
    """The call `bound(kind, batch, arrays)` as a function of its arrays by order, which XLA may divide. `types` gives
    the types of its results likewise."""
    if jax.device_count() == 1 or manual() or not kind.divisible:
        return lambda *arrays: bound(kind, batch, dict(zip(kind.names, arrays)))
    key = kind.attention

    def whole(*arrays):
        shown = (("key", key(dict(zip(kind.names, arrays)), batch).key),)
        return tuple(_later.bind(*arrays, kind=kind, batch=batch, bound=bound, types=types, attributes=shown))

    called = custom_partitioning(whole)

    def parts(mesh, arguments, results):
        return _Parts(kind, mesh, dict(zip(kind.names, arguments)), dict(zip(kind.outputs, results)))

    def partition(mesh, arguments, results):
        found = parts(mesh, arguments, results)
        given = tuple(found.sharding(name) for name in kind.names)
        return mesh, found.called(bound, batch), tuple(found.sharding(name) for name in kind.outputs), given

    def infer(mesh, arguments, results):
        found = parts(mesh, arguments, results)
        return tuple(found.sharding(name) for name in kind.outputs)

    called.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=_rule(kind))
    return called


def _whole(*arrays, kind, batch, bound, types, attributes):
    # It runs while a program is lowered, outside the call that knows the user's words.
    with kind.program.words.speaking():
        return bound(kind, batch, dict(zip(kind.names, arrays)))


_later = Primitive("qkvault_attention")
_later.multiple_results = True
_later.def_abstract_eval(
    lambda *avals, kind, batch, bound, types, attributes: types(kind, batch, dict(zip(kind.names, avals)))
)
_later.def_impl(_whole)
mlir.register_lowering(_later, mlir.lower_fun(_whole, multiple_results=True))


def _dims(kind: Any, name: str, shape: tuple, full: tuple) -> tuple:
    """What each axis of an array is: batch, heads, heads of keys, or nothing that is divided. `full` are the extents
    of the scores over batch and heads."""
    name = name.removeprefix("d_")
    if name in ("q", "o", "k", "v"):
        heads = "h" if name in ("q", "o") else "k"
        return ("b", None, heads, None) if kind.program.layout == "bshd" else ("b", heads, None, None)
    if name.startswith("seq_len"):
        return ("b",)
    if name == "sink":
        return ("h",) if len(shape) == 1 else (None, "h", None, None)
    if name == "stats":
        return ("b", "h", None, None)
    return (*(word if extent != 1 else None for word, extent in zip("bh", shape)), None, None)


class _Parts:
    """How the arrays of a call lie on a mesh."""

    def __init__(self, kind: Any, mesh: Any, arguments: dict[str, Any], results: dict[str, Any]):
        self.kind, self.mesh = kind, mesh
        self.shapes = {name: x.shape for name, x in (*arguments.items(), *results.items())}
        at = 2 if kind.program.layout == "bshd" else 1
        q = self.shapes["q"]
        self.full, self.keys = (q[0], q[at]), self.shapes["k"][at]
        spec = getattr(arguments["q"].sharding, "spec", ())
        over = [spec[axis] if axis < len(spec) else None for axis in (0, at)]
        batch, heads = (() if one is None else one if isinstance(one, tuple) else (one,) for one in over)
        # A part has all queries of its heads of keys; one head of keys is that of every part.
        keys = self.full[1] if self.keys == 1 else self.keys
        batch = batch if q[0] % self._count(batch) == 0 else ()
        heads = heads if keys % self._count(heads) == 0 else ()
        self.over = {None: (), "b": batch, "h": heads, "k": heads if self.keys > 1 else ()}

    def _count(self, axes: tuple) -> int:
        return math.prod(self.mesh.shape[axis] for axis in axes)

    def sharding(self, name: str) -> NamedSharding:
        dims = _dims(self.kind, name, self.shapes[name], self.full)
        return NamedSharding(self.mesh, PartitionSpec(*(self.over[word] or None for word in dims)))

    def called(self, bound: Callable, batch: int) -> Callable:
        """The call of one part."""
        moved = {word: axes for word, axes in (("b", self.over["b"]), ("h", self.over["h"])) if axes}
        kind = dataclasses.replace(self.kind, moved=frozenset(moved))
        extents = {"b": self.full[0] // self._count(self.over["b"]), "h": self.full[1] // self._count(self.over["h"])}

        def part(*arrays):
            named = dict(zip(kind.names, arrays))
            for word, axes in moved.items():
                first = jax.lax.axis_index(axes) * extents[word]
                named[f"first_{word}"] = jnp.reshape(first.astype(jnp.int32), (1, 1, 1, 1))
            with kind.program.words.speaking():
                found = dict(zip(kind.outputs, bound(kind, batch, named)))
            return tuple(self._summed(name, x) for name, x in found.items())

        return part

    def _summed(self, name: str, x: Any) -> Any:
        """A gradient of what several parts read."""
        if not name.startswith("d_"):
            return x
        dims = _dims(self.kind, name, self.shapes[name], self.full)
        apart = {axis for word in dims for axis in self.over[word]}
        axes = tuple(axis for word in "bh" for axis in self.over[word] if axis not in apart)
        return jax.lax.psum(x.astype(jnp.float32), axes).astype(x.dtype) if axes else x


def _rule(kind: Any) -> Callable:
    """Which axes of operands and results are divided alike, for Shardy."""

    def rule(mesh: Any, operands: list, results: list) -> str:
        shapes = {name: tuple(x.shape) for name, x in zip((*kind.names, *kind.outputs), (*operands, *results))}
        at = 2 if kind.program.layout == "bshd" else 1
        full, keys = (shapes["q"][0], shapes["q"][at]), shapes["k"][at]
        # Were fewer heads of keys said to be those of queries, Shardy might divide an axis of the mesh among both.
        words = {"b": "b", "h": "h", "k": "h" if keys == full[1] else "k"}
        other = itertools.count()

        def text(name: str) -> str:
            return " ".join(words.get(word) or f"o{next(other)}" for word in _dims(kind, name, shapes[name], full))

        return " -> ".join(", ".join(map(text, names)) for names in (kind.names, kind.outputs))

    return rule
