"""The attention of a program as a function of its arrays, with its derivative."""

from __future__ import annotations

import functools
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from ._call import Kind, run
from ._program import Program
from ._shards import manual, varying, whole


@jax.tree_util.register_static
class _Fixed:
    """What a forward tells its backward besides arrays."""

    def __init__(self, **values: Any):
        self.values = values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and self.values == other.values

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.values)))


def called(program: Program, scale: float, arrays: dict, more: dict, tensors: list, *, backward: bool = False,
           dense: bool = False, grads: frozenset = frozenset(), d_sink: bool = False, stats: bool = False) -> dict:
    """The results of one call, by name."""
    given = {name: array for name, array in arrays.items() if name != "captured"}
    given.update({f"t{number}": tensor for number, tensor in enumerate(tensors)}, **more)
    kind = Kind(program, scale, backward, dense, grads, d_sink, stats, tuple(given))
    return run(kind, given)


def _written(program: Program, arrays: dict, name: str, rows: Any) -> Any:
    """Rows of Q, K or V with zeros where cuDNN writes nothing: behind a sequence's length, behind the last sequence."""
    if not program.lengths:
        return rows
    zero, own = jnp.zeros((), rows.dtype), "q" if name == "q" else "k"
    if program.packed is not None:
        ends, most = arrays[f"ends_{own}"], program.packed[1 if own == "q" else 2]
        kept = jax.lax.broadcasted_iota(jnp.int32, rows.shape, 0) < ends[-1]
        # Rows of a sequence that is longer than was said are computed by nobody.
        wrong = jnp.any(jnp.diff(ends) > most)
        # A constant: `jax_debug_nans` looks at what is computed.
        return jnp.where(wrong, np.asarray(np.nan, rows.dtype), jnp.where(kept, rows, zero))
    at = 1 if program.layout == "bshd" else 2
    lengths = arrays["seq_len_q" if name == "q" else "seq_len_kv"]
    kept = jax.lax.broadcasted_iota(jnp.int32, rows.shape, at) < jnp.reshape(lengths, (-1, 1, 1, 1))
    if name == "q":
        kept &= jnp.reshape(arrays["seq_len_kv"], (-1, 1, 1, 1)) > 0
    return jnp.where(kept, rows, zero)


def _lse(program: Program, stats: Any) -> Any:
    """Stats as they are given out: over (batch, query, head) or as the layout has it; over (token, head)."""
    if program.packed is not None:
        return stats
    stats = jnp.squeeze(stats, -1)
    return jnp.swapaxes(stats, 1, 2) if program.layout == "bshd" else stats


def operator(program: Program, scale: float, lse: bool = False) -> Callable:
    """The attention of a program: O, and the log-sum-exp of rows if it is wanted, which has no gradient."""

    @jax.custom_vjp
    def function(arrays):
        with whole():
            tensors = program.tensors(False, arrays["captured"], program.sizes(arrays), place=arrays.get("place"))
        found = called(program, scale, arrays, {}, tensors, stats=lse)
        o = _written(program, arrays, "q", found["o"])
        return (o, _lse(program, found["stats"])) if lse else o

    def forward(primals):
        is_leaf = lambda x: hasattr(x, "perturbed")  # noqa: E731
        arrays = jax.tree.map(lambda x: x.value, primals, is_leaf=is_leaf)
        moved = jax.tree.map(lambda x: x.perturbed, primals, is_leaf=is_leaf)
        wanted = frozenset(number for number, moves in enumerate(moved["captured"]) if moves)
        dense = bool(wanted)
        values = program.expressions(dense).tensors
        grads = frozenset(number for number, value in enumerate(values) if value.captured & wanted)
        with whole():
            tensors = program.tensors(
                dense, arrays["captured"], program.sizes(arrays), arrays["q"].dtype, grads, arrays.get("place"))
        fixed = _Fixed(dense=dense, grads=grads, d_sink=bool(moved.get("sink")))
        found = called(program, scale, arrays, {}, tensors, stats=True, **fixed.values)
        o = _written(program, arrays, "q", found["o"])
        result = (o, _lse(program, found["stats"])) if lse else o
        return result, (arrays, found["o"], found["stats"], fixed)

    def backward(saved, given):
        arrays, o, stats, fixed = saved
        d_o = given[0] if lse else given
        if isinstance(d_o, SymbolicZero):
            d_o = jnp.zeros(o.shape, o.dtype)
        dense, grads, sizes = fixed.values["dense"], fixed.values["grads"], program.sizes(arrays)
        compute = functools.partial(
            program.tensors, dense, sizes=sizes, dtype=o.dtype, grads=grads, place=arrays.get("place"))
        tensors, pull = jax.vjp(compute, arrays["captured"]) if grads else (compute(arrays["captured"]), None)
        more = {"o": o, "stats": stats, "d_o": jnp.asarray(d_o, o.dtype)}
        found = called(program, scale, arrays, more, tensors, backward=True, **fixed.values)
        # What does not move has zeros, so that the result has the same places whatever moves: JAX asserts that.
        result: dict[str, Any] = jax.tree.map(_zero, arrays)
        result.update({name: _written(program, arrays, name, found[f"d_{name}"]) for name in "qkv"})
        if "d_sink" in found:
            # Ranks are told the sum of all of them.
            sink = found["d_sink"] / program.shared.ranks if program.shared else found["d_sink"]
            result["sink"] = jnp.reshape(sink, arrays["sink"].shape)
        if pull is not None:
            zeros = [_zero(tensor) for tensor in tensors]
            given = [found.get(f"d_t{number}", zero) for number, zero in enumerate(zeros)]
            (result["captured"],) = pull(given)
        return (result,)

    function.defvjp(forward, backward, symbolic_zeros=True)
    # A `shard_map` that is not compiled itself runs no derivative rule with symbolic zeros, and runs compiled functions.
    return jax.jit(function) if manual() else function


def _zero(tensor: Any) -> Any:
    """The gradient of an array that nothing depends on."""
    if jnp.issubdtype(tensor.dtype, jnp.floating):
        return varying([jnp.zeros(tensor.shape, tensor.dtype), tensor])[0]
    return np.zeros(tensor.shape, jax.dtypes.float0)
