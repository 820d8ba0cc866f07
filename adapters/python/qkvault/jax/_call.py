"""The custom call of one attention, and what `vmap` makes of it: a call with a larger batch."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.sharding import PartitionSpec

from .._attention import Attention, Operand
from .._errors import ArgumentError
from . import _ranks
from ._config import TARGET, workspace
from ._partition import partitioned
from ._program import Program
from ._shards import whole

#: Tensors whose first extent is always the batch.
WHOLE = ("q", "k", "v", "o", "stats", "d_o", "d_q", "d_k", "d_v", "seq_len_q", "seq_len_kv")
#: Tensors in the layout of Q.
ROWS = ("q", "k", "v", "o", "d_o", "d_q", "d_k", "d_v")
_JAX = {"bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32, "i32": jnp.int32}


@dataclass(eq=False)
class Kind:
    """What is called: a program's forward or backward, with the gradients of some tensors."""

    program: Program
    scale: float
    backward: bool
    dense: bool
    #: The tensors whose gradient is wanted, by number.
    grads: frozenset
    d_sink: bool
    #: Whether a forward writes `stats` for its backward.
    stats: bool
    names: tuple[str, ...]
    #: The indices that do not count from 0, in a part of the batch or of the heads.
    moved: frozenset = frozenset()

    def attention(self, arrays: dict[str, Any], batch: int) -> Attention:
        """Its description for arrays."""
        sizes = self.program.sizes(arrays, batch)
        count = len(self.program.expressions(self.dense).tensors)
        tensors = [arrays[f"t{number}"] for number in range(count)]
        text = self.program.text(sizes, arrays["q"].dtype, tensors, self.dense, self.grads, self.moved)
        forward = described(text)
        if not self.stats and not self.backward:
            return forward
        return trained(text, self.program.deterministic, self.d_sink)[int(self.backward)]

    @property
    def divisible(self) -> bool:
        """Whether parts of the batch and of the heads are computed apart. Weights that are dropped are those of a
        whole batch."""
        return self.program.packed is None and not self.program.paged and not self.program.dropout

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its results."""
        if not self.backward:
            return ("o", "stats") if self.stats else ("o",)
        return ("d_q", "d_k", "d_v", *(f"d_t{number}" for number in sorted(self.grads)), *["d_sink"] * self.d_sink)


@functools.lru_cache(maxsize=4096)
def described(text: str) -> Attention:
    """A description."""
    return Attention(text)


@functools.lru_cache(maxsize=4096)
def trained(text: str, deterministic: bool, d_sink: bool) -> tuple[Attention, Attention]:
    """A forward that writes `stats`, and its backward."""
    return described(text).training(deterministic=deterministic, d_sink=d_sink)


def _like(x: Any, shape: tuple, dtype: Any, order: Any = None) -> Any:
    """The type of a result: with the mesh and the manual axes of `x`, whose axes of `order` it has."""
    known = x if isinstance(x, jax.core.ShapedArray) else jax.typeof(x)
    spec = tuple(known.sharding.spec) + (None,) * (known.ndim - len(known.sharding.spec))
    taken = [spec[at] if at is not None else None for at in (order or range(len(shape)))]
    sharding = known.sharding.update(spec=PartitionSpec(*taken))
    return known.update(shape=shape, dtype=jnp.dtype(dtype), sharding=sharding, weak_type=False)


def _order(program: Program, role: str) -> tuple:
    """The axes of Q that the axes of an operand are."""
    if program.packed is not None:
        return (0, 1, 2) if role in ROWS else (0, 1) if role == "stats" else (None,) * 4
    if role in ROWS:
        return (0, 1, 2, 3)
    if role == "stats":
        return (0, 2, 1, None) if program.layout == "bshd" else (0, 1, 2, None)
    return (None,) * 4


def _shape(program: Program, operand: Operand, arrays: dict[str, Any]) -> tuple:
    """The shape of the array of an operand."""
    role, dims = operand.role, operand.dims
    if program.shared is not None:
        dims = program.shared.part(role, dims)
    if program.packed is not None and (role in ROWS or role == "stats"):
        tokens = arrays["k" if role in ("k", "v", "d_k", "d_v") else "q"].shape[0]
        return (tokens, dims[1]) if role == "stats" else (tokens, dims[1], dims[3])
    if program.paged and role in ("k", "v"):
        return arrays[role].shape
    return tuple(dims[axis] for axis in (0, 2, 1, 3)) if program.layout == "bshd" and role in ROWS else dims


def _words(count: Any, factor: int) -> Any:
    """`count * factor` as 64-bit integers of two words each, the lower one first: JAX has none wider by default."""
    count, low, high = count.astype(jnp.uint32), factor & 0xFFFF, factor >> 16
    below, middle = (count & 0xFFFF) * low, (count >> 16) * low
    middle_too = (count & 0xFFFF) * high
    carry = ((below >> 16) + (middle & 0xFFFF) + (middle_too & 0xFFFF)) >> 16
    upper = (count >> 16) * high + (middle >> 16) + (middle_too >> 16) + carry
    return jnp.stack([count * np.uint32(factor & 0xFFFFFFFF), upper], -1)


def _array(program: Program, operand: Operand, arrays: dict[str, Any]) -> Any:
    """The array of an input."""
    role = operand.role
    if role.startswith("offsets."):
        of = role.removeprefix("offsets.")
        heads, width = arrays[{"q": "q", "d_q": "q", "k": "k", "d_k": "k"}.get(of, "v")].shape[1:]
        if of in ("o", "d_o", "stats"):
            heads, width = arrays["q"].shape[1], 1 if of == "stats" else width
        return _words(arrays["ends_k" if of in ("k", "v", "d_k", "d_v") else "ends_q"], heads * width)
    if role in ("page_table_k", "page_table_v"):
        return jnp.reshape(arrays["page_table"], operand.dims)
    array = arrays[operand.name or role]
    return array if operand.dtype == "i64" else jnp.reshape(array, _shape(program, operand, arrays))


def _results(kind: Kind, attention: Attention, arrays: dict[str, Any]) -> dict[str, Any]:
    """The types of the results of the custom call by name, in its order."""
    found = {}
    for operand in attention.operands:
        if operand.output and not operand.constant and not operand.scalar:
            shape, order = _shape(kind.program, operand, arrays), _order(kind.program, operand.role)
            found[operand.name or operand.role] = _like(arrays["q"], shape, _JAX[operand.dtype], order)
    return found


def _types(kind: Kind, batch: int, arrays: dict[str, Any]) -> list:
    found = _results(kind, kind.attention(arrays, batch), arrays)
    return [found[name] for name in kind.outputs]


def _bound(kind: Kind, batch: int, arrays: dict[str, Any]) -> tuple:
    """Binds the custom call."""
    attention = kind.attention(arrays, batch)
    values, results = kind.program.values(kind.scale), _results(kind, attention, arrays)
    operands = [operand for operand in attention.operands if not operand.constant]
    scalars = [values[operand.name or operand.role] for operand in operands if operand.scalar]
    given = [_array(kind.program, one, arrays) for one in operands if not one.scalar and not one.output]
    attributes = {
        "key": attention.key, "text": attention.text, "scalars": np.array(scalars, np.float64), "v": np.int32(1),
    }  # fmt: skip
    if kind.program.shared is not None:
        if kind.d_sink and not any(one.role == "sink" for one in operands):
            given.append(jnp.reshape(arrays["sink"], (1, -1, 1, 1)))  # Ranks read it, and no description names it.
        found = _ranks.bound([*results.values()], [*given, arrays["place"]], attributes, attention, kind.program.shared)
        return tuple(dict(zip(results, found))[name] for name in kind.outputs)
    scratch = workspace(attention)
    types = [*results.values(), _like(arrays["q"], (scratch + 255 if scratch else 0,), jnp.uint8, (None,))]
    found = jax.ffi.ffi_call(TARGET, types)(*given, **attributes)
    by_name = dict(zip(results, found))
    return tuple(by_name[name] for name in kind.outputs)


def run(kind: Kind, arrays: dict[str, Any]) -> dict[str, Any]:
    """The results of a call by name."""
    traced = any(isinstance(array, jax.core.Tracer) for array in arrays.values())
    folded = _once(_foldable(kind, arrays["q"].shape[0], traced))
    return dict(zip(kind.outputs, folded(*(arrays[name] for name in kind.names))))


def _once(compute: Callable) -> Callable:
    """A function of arrays whose derivative is an error that says what there is instead."""

    @jax.custom_jvp
    def function(*arrays):
        return compute(*arrays)

    @function.defjvp
    def derivative(primals, tangents):
        raise ArgumentError(
            "qkvault has first derivatives of an attention, in reverse mode; for second ones and Hessians, "
            "differentiate an attention of jnp operations, such as jax.nn.dot_product_attention(implementation='xla')"
        )

    return function


def _foldable(kind: Kind, batch: int, traced: bool) -> Any:
    """The call as a function that `vmap` folds into the batch. `batch` is the batch that the user's functions know.
    What is not `traced` runs at once, and is no program that is divided."""

    @custom_vmap
    def called(*arrays):
        with kind.program.words.speaking():
            if traced:
                return partitioned(kind, batch, _bound, _types)(*arrays)
            return _bound(kind, batch, dict(zip(kind.names, arrays)))

    @called.def_vmap
    def rule(count, batched, *arrays):
        sinks = [is_batched for name, is_batched in zip(kind.names, batched) if name == "sink"]
        program = kind.program
        if any(sinks) or kind.d_sink or program.dropout or program.packed is not None or program.paged:
            return _one_by_one(called, batched, arrays)
        wanted = {f"t{number}" for number in kind.grads} if kind.backward else set()
        rows = dict(zip(kind.names, arrays))["q"].shape[int(batched[kind.names.index("q")])]
        with whole():
            folded = [
                _fold(name, array, is_batched, count, rows, name in wanted)
                for name, array, is_batched in zip(kind.names, arrays, batched)
            ]
        results = called(*folded)
        shapes = {name: array.shape[int(is_batched):] for name, array, is_batched in zip(kind.names, arrays, batched)}
        opened = [_unfold(name, result, count, shapes) for name, result in zip(kind.outputs, results)]
        return tuple(opened), (True,) * len(opened)

    return called


def _fold(name: str, array: Any, batched: bool, count: int, rows: int, alone: bool) -> Any:
    """An array of a call whose batch is `count` times as large."""
    if name in ("sink", "place"):
        return array  # They have no batch, and a call with sinks that are mapped is made one by one.
    if not batched:
        if name not in WHOLE and array.shape[0] == 1 and not alone:
            return array
        array = jnp.broadcast_to(array[None], (count, *array.shape))
    if array.shape[1] != rows:
        array = jnp.broadcast_to(array, (count, rows, *array.shape[2:]))
    return jnp.reshape(array, (count * rows, *array.shape[2:]))


def _unfold(name: str, result: Any, count: int, shapes: dict[str, tuple]) -> Any:
    opened = jnp.reshape(result, (count, result.shape[0] // count, *result.shape[1:]))
    if name.startswith("d_t") and shapes[name[2:]][0] == 1:
        return opened.sum(1, keepdims=True)
    return opened


def _one_by_one(called: Any, batched: Any, arrays: Any) -> tuple:
    """One call after the other, where a batch cannot have what differs: sinks and seeds are those of a whole batch."""
    moving = [array for array, is_batched in zip(arrays, batched) if is_batched]

    def one(some):
        left = iter(some)
        return called(*(next(left) if is_batched else array for array, is_batched in zip(arrays, batched)))

    results = jax.lax.map(one, moving)
    return results, (True,) * len(results)
