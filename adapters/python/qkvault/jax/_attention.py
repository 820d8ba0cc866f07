"""`attention`: cuDNN attention with modifications of its scores, and its derivative."""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional, Union

import jax
import jax.numpy as jnp
import numpy as np

from .._attention import Attention, Explanation
from .._errors import ArgumentError
from ._call import Kind, described, run, trained
from ._config import settings
from ._program import Program, Sizes, dtype_word
from ._shards import varying

Window = Union[int, tuple[Optional[int], Optional[int]], None]


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    bias: Optional[jax.Array] = None,
    mask: Optional[jax.Array] = None,
    score_mod: Optional[Callable] = None,
    mask_mod: Optional[Callable] = None,
    is_causal: bool = False,
    window: Window = None,
    softcap: Union[float, jax.Array, None] = None,
    sinks: Optional[jax.Array] = None,
    scale: Union[float, jax.Array, None] = None,
    query_seq_lengths: Optional[jax.Array] = None,
    key_value_seq_lengths: Optional[jax.Array] = None,
    layout: str = "bshd",
    deterministic: bool = False,
) -> jax.Array:
    """Attention of `q` [B, T, N, H] over `k` and `v` [B, S, K, H], where K divides N; bfloat16 or float16.

    Scores are `q @ k * scale`, then `+ bias`, `softcap`, `score_mod(score, b, h, q_idx, kv_idx)`. Masks: `is_causal`,
    `window` (keys to the left and to the right of a query; None is no limit), `mask` (true where a key stays),
    `mask_mod(b, h, q_idx, kv_idx)` and the lengths. Rows count from the first query, as in `jax.nn`. `bias` and `mask`
    broadcast over [B, N, T, S]; `sinks` [N] are one more score per head, which takes weight and has no value.

    The functions are traced on numbers into cuDNN's kernel: arrays that they capture become tensors, floats become
    numbers that no plan depends on. `softcap` and `scale` may be arrays of one element: then a program takes another
    value without being traced again. The derivative follows from the functions; it is that of q, k, v, sinks, bias and
    of captured arrays that are added to the score.

    `layout` is `bshd` or `bhsd`. Under `shard_map` and `pmap`, indices count within a shard.

    Raises `Refused` with every reason where cuDNN cannot, and `PlanMissing` where a plan may not be built.
    """
    program, arrays, fixed = _program(
        q, k, v, bias, mask, score_mod, mask_mod, is_causal, window, softcap, sinks, scale, query_seq_lengths,
        key_value_seq_lengths, layout, deterministic,
    )
    return _operator(program, fixed)(varying(arrays))


def explain(q: Any, k: Any, v: Any, *, gpu: Optional[str] = None, cudnn: Optional[str] = None,
            backward: bool = False, **options: Any) -> Explanation:
    """What the rules say of a call of `attention` with these arguments; nothing is compiled or run.

    `q`, `k` and `v` may be `jax.ShapeDtypeStruct`s. It is true if the call is supported; its text has every reason and
    what is nearest.
    """
    found: list[Attention] = []

    def traced(q, k, v):
        names = ("bias", "mask", "score_mod", "mask_mod", "is_causal", "window", "softcap", "sinks", "scale",
                 "query_seq_lengths", "key_value_seq_lengths", "layout", "deterministic")
        unknown = set(options) - set(names)
        if unknown:
            raise TypeError(f"attention has no parameter {', '.join(sorted(unknown))}")
        defaults = {"is_causal": False, "layout": "bshd", "deterministic": False}
        program, arrays, _ = _program(q, k, v, *(options.get(name, defaults.get(name)) for name in names))
        sizes = _sizes(program, arrays)
        tensors = program.tensors(False, arrays["captured"], sizes)
        text = program.text(sizes, q.dtype, tensors, False, frozenset())
        found.append(trained(text, program.deterministic, False)[1] if backward else described(text))
        return q

    jax.eval_shape(traced, q, k, v)
    return found[0].explain(gpu or settings().target or "h200", cudnn, context=settings().context)


def _program(q, k, v, bias, mask, score_mod, mask_mod, is_causal, window, softcap, sinks, scale, q_lengths, kv_lengths,
             layout, deterministic) -> tuple[Program, dict, float]:
    """A program, its arrays, and its scale."""
    if layout not in ("bshd", "bhsd"):
        raise ArgumentError(f"layout is {layout!r}; it is 'bshd' (batch, sequence, head, head dim) or 'bhsd'")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if len(x.shape) != 4 or not all(isinstance(extent, int) for extent in x.shape):
            raise ArgumentError(f"{name} has the shape {x.shape}; it has four known extents: {', '.join(layout)}")
        dtype_word(x.dtype)
        if x.dtype != q.dtype:
            raise ArgumentError(f"{name} is {x.dtype} and q is {q.dtype}; cast one: they have one element type")
    if k.shape[0] != q.shape[0] or v.shape[0] != q.shape[0]:
        raise ArgumentError(f"q, k and v have the batches {q.shape[0]}, {k.shape[0]} and {v.shape[0]}; they have one")
    h, s = (2, 1) if layout == "bshd" else (1, 2)
    own, full = [], (q.shape[0], q.shape[h], q.shape[s], k.shape[s])
    if bias is not None:
        own.append(_broadcast("bias", bias, full))
    if mask is not None:
        own.append(_broadcast("mask", mask, full))
    if isinstance(scale, (int, float)) or scale is None:
        fixed = float(q.shape[3] ** -0.5 if scale is None else scale)
    else:
        # A scale that a program is given is a tensor, and the first factor of the score.
        fixed, given, inner = 1.0, _one("scale", scale), score_mod
        if bias is not None or softcap is not None:
            raise ArgumentError("a scale that is an array goes with score_mod alone; multiply q by it in other cases")
        score_mod = functools.partial(_scaled, given, inner)
    if softcap is not None:
        softcap = float(softcap) if isinstance(softcap, (int, float)) else _one("softcap", softcap)
        own += [] if isinstance(softcap, float) else [softcap]
    lengths = q_lengths is not None or kv_lengths is not None
    program = Program(
        layout, _band(is_causal, window), score_mod, mask_mod, softcap, bias is not None, mask is not None, lengths,
        sinks is not None, deterministic, arrays=own,
    )
    program.expressions(False)
    arrays: dict[str, Any] = {"q": q, "k": k, "v": v, "captured": list(program.arrays)}
    if lengths:
        for name, given, extent in (("seq_len_q", q_lengths, full[2]), ("seq_len_kv", kv_lengths, full[3])):
            given = jnp.full(q.shape[:1], extent, jnp.int32) if given is None else jnp.asarray(given, jnp.int32)
            if given.shape != q.shape[:1]:
                raise ArgumentError(f"lengths have the shape {given.shape}; there is one for each of {q.shape[0]}")
            arrays[name] = given
    if sinks is not None:
        if sinks.shape != (full[1],):
            raise ArgumentError(f"sinks have the shape {sinks.shape}; they are one for each of {full[1]} heads")
        arrays["sink"] = jnp.asarray(sinks, jnp.float32)
    return program, arrays, fixed


def _scaled(scale, inner, score, b, h, q_idx, kv_idx):
    return score * scale if inner is None else inner(score * scale, b, h, q_idx, kv_idx)


def _one(name: str, given: Any) -> Any:
    if given.size != 1:
        raise ArgumentError(f"{name} has the shape {given.shape}; it is one number")
    return jnp.reshape(given, ()).astype(jnp.float32) if name == "scale" else jnp.reshape(given, (1, 1, 1, 1))


def _broadcast(name: str, given: Any, full: tuple) -> Any:
    shape = (1,) * (4 - given.ndim) + given.shape
    if len(shape) != 4 or any(extent not in (1, whole) for extent, whole in zip(shape, full)):
        raise ArgumentError(f"{name} has the shape {given.shape}; it broadcasts over (batch, head, query, key): {full}")
    return jnp.reshape(given, shape)


def _band(is_causal: bool, window: Window) -> str:
    left, right = (window, window) if isinstance(window, int) else window or (None, None)
    if is_causal:
        right = 0 if right is None else min(right, 0)
    if left is None and right is None:
        return "none"
    if any(side is not None and side < 0 for side in (left, right)):
        raise ArgumentError(f"the window is {window}; both sides are at least 0, or None")
    if left is None and right == 0:
        return "causal"
    # A band counts the query itself to its left side.
    words = [*([] if left is None else [f"left {left + 1}"]), *([] if right is None else [f"right {right}"])]
    return f"band {' '.join(words)}"


def _sizes(program: Program, arrays: dict) -> Sizes:
    return Sizes.of(program.layout, arrays["q"], arrays["k"], arrays["v"], arrays["q"].shape[0])


@jax.tree_util.register_static
class _Fixed:
    """What a forward tells its backward besides arrays."""

    def __init__(self, **values: Any):
        self.values = values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and self.values == other.values

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.values)))


def _called(program: Program, scale: float, arrays: dict, more: dict, tensors: list, *, backward: bool = False,
            dense: bool = False, grads: frozenset = frozenset(), d_sink: bool = False, stats: bool = False) -> dict:
    given = {name: array for name, array in arrays.items() if name != "captured"}
    given.update({f"t{number}": tensor for number, tensor in enumerate(tensors)}, **more)
    kind = Kind(program, scale, backward, dense, grads, d_sink, stats, tuple(given))
    return run(kind, given)


def _whole(program: Program, arrays: dict, name: str, rows: Any) -> Any:
    """Rows of Q, K or V with zeros behind each sequence's length, where cuDNN writes nothing."""
    if not program.lengths:
        return rows
    at = 1 if program.layout == "bshd" else 2
    lengths = arrays["seq_len_q" if name == "q" else "seq_len_kv"]
    kept = jax.lax.broadcasted_iota(jnp.int32, rows.shape, at) < jnp.reshape(lengths, (-1, 1, 1, 1))
    return jnp.where(kept, rows, jnp.zeros((), rows.dtype))


def _operator(program: Program, scale: float) -> Callable:
    """The attention of a program, with its derivative."""

    @jax.custom_vjp
    def operator(arrays):
        tensors = program.tensors(False, arrays["captured"], _sizes(program, arrays))
        return _whole(program, arrays, "q", _called(program, scale, arrays, {}, tensors)["o"])

    def forward(primals):
        is_leaf = lambda x: hasattr(x, "perturbed")  # noqa: E731
        arrays = jax.tree.map(lambda x: x.value, primals, is_leaf=is_leaf)
        moved = jax.tree.map(lambda x: x.perturbed, primals, is_leaf=is_leaf)
        wanted = frozenset(number for number, moves in enumerate(moved["captured"]) if moves)
        dense = bool(wanted)
        values = program.expressions(dense).tensors
        grads = frozenset(number for number, value in enumerate(values) if value.captured & wanted)
        tensors = program.tensors(dense, arrays["captured"], _sizes(program, arrays), arrays["q"].dtype, grads)
        fixed = _Fixed(dense=dense, grads=grads, d_sink=bool(moved.get("sink")))
        found = _called(program, scale, arrays, {}, tensors, stats=True, **fixed.values)
        return _whole(program, arrays, "q", found["o"]), (arrays, found["o"], found["stats"], fixed)

    def backward(saved, d_o):
        arrays, o, stats, fixed = saved
        if not isinstance(d_o, jax.Array):
            d_o = jnp.zeros(o.shape, o.dtype)
        dense, grads, sizes = fixed.values["dense"], fixed.values["grads"], _sizes(program, arrays)
        compute = functools.partial(program.tensors, dense, sizes=sizes, dtype=o.dtype, grads=grads)
        tensors, pull = jax.vjp(compute, arrays["captured"]) if grads else (compute(arrays["captured"]), None)
        more = {"o": o, "stats": stats, "d_o": d_o.astype(o.dtype)}
        found = _called(program, scale, arrays, more, tensors, backward=True, **fixed.values)
        # What does not move has zeros, so that the result has the same places whatever moves: JAX asserts that.
        result: dict[str, Any] = jax.tree.map(_zero, arrays)
        result.update({name: _whole(program, arrays, name, found[f"d_{name}"]) for name in "qkv"})
        if "d_sink" in found:
            result["sink"] = jnp.reshape(found["d_sink"], arrays["sink"].shape)
        if pull is not None:
            zeros = [_zero(tensor) for tensor in tensors]
            given = [found.get(f"d_t{number}", zero) for number, zero in enumerate(zeros)]
            (result["captured"],) = pull(given)
        return (result,)

    operator.defvjp(forward, backward, symbolic_zeros=True)
    return operator


def _zero(tensor: Any) -> Any:
    """The gradient of an array that nothing depends on."""
    if jnp.issubdtype(tensor.dtype, jnp.floating):
        return varying([jnp.zeros(tensor.shape, tensor.dtype), tensor])[0]
    return np.zeros(tensor.shape, jax.dtypes.float0)
