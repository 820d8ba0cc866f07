"""From the arguments of a call to a program and its arrays, with every mistake named."""

from __future__ import annotations

import functools
import numbers
from typing import Any, Callable, Optional, Union

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import ArgumentError
from ._origins import Origin, origins_of
from ._origins import within as _within
from ._program import DTYPES, Program
from ._segments import array, integers, segments
from ._sharing import Sharing
from ._shards import whole

Window = Union[int, tuple[Optional[int], Optional[int]], None]
Number = Union[float, jax.Array, None]

_AXES = {"bshd": ("batch", "sequence", "head", "head dim"), "bhsd": ("batch", "head", "sequence", "head dim")}
_TOKENS = ("token", "head", "head dim")


def checked(q: Any, k: Any, v: Any, layout: str, *, packed: bool = False) -> None:
    """Raises what is wrong in Q, K and V, whatever else a call has."""
    if layout not in _AXES:
        raise ArgumentError(f"layout is {layout!r}; it is 'bshd' (batch, sequence, head, head dim) or 'bhsd'")
    axes = _TOKENS if packed else _AXES[layout]
    for name, x in (("q", q), ("k", k), ("v", v)):
        is_array(name, x)
        if len(x.shape) != len(axes) or not all(isinstance(extent, int) for extent in x.shape):
            raise ArgumentError(
                f"{name} has the shape {tuple(x.shape)}; it has {len(axes)} known sizes: {', '.join(axes)}"
            )
        if not all(x.shape):
            raise ArgumentError(f"{name} has the shape {tuple(x.shape)}, which is empty; skip the call")
        if jnp.dtype(x.dtype).name not in DTYPES:
            raise ArgumentError(f"{name} is {x.dtype}; give bfloat16 or float16: {name}.astype(jnp.bfloat16)")
        if x.dtype != q.dtype:
            raise ArgumentError(f"{name} is {x.dtype} and q is {q.dtype}; cast one: {name}.astype(q.dtype)")
        _whole(name, x, axes)
    at = axes.index("head")
    heads = [x.shape[at] for x in (q, k, v)]
    if heads[1] != heads[2]:
        raise ArgumentError(f"k has {heads[1]} heads and v {heads[2]}; give both as many")
    if q.shape[-1] != k.shape[-1]:
        raise ArgumentError(f"q has the head dim {q.shape[-1]} and k {k.shape[-1]}; give both the same")


def is_array(name: str, given: Any) -> None:
    """Raises what has no shape and type."""
    if not hasattr(given, "shape") or not hasattr(given, "dtype"):
        raise ArgumentError(f"{name} is of type {type(given).__name__}; give an array: jnp.asarray({name})")


def _whole(name: str, x: Any, axes: tuple) -> None:
    """Raises if an array is known to be sharded over an axis that one attention needs whole."""
    try:
        sharding = x.sharding if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) else (
            jax.typeof(x).sharding)
        spec = tuple(sharding.spec)
    except (AttributeError, TypeError):
        return
    for axis, over in zip(axes, spec):
        if over is not None and axis in ("sequence", "token", "head dim"):
            raise ArgumentError(
                f"{name} is sharded over its {axis} (mesh axis {over!r}), and an attention needs that axis whole; "
                "shard batch or heads, with jax.shard_map, or gather it first: jax.device_put or jax.sharding.reshard"
            )


def program_of(
    q: Any,
    k: Any,
    v: Any,
    *,
    bias: Any = None,
    mask: Any = None,
    score_mod: Optional[Callable[..., Any]] = None,
    mask_mod: Optional[Callable[..., Any]] = None,
    is_causal: bool = False,
    window: Window = None,
    softcap: Number = None,
    sinks: Any = None,
    scale: Number = None,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    segment_ids: Any = None,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    layout: str = "bshd",
    deterministic: bool = False,
    bottom_right: bool = False,
    packed: Optional[tuple[int, int, int]] = None,
    keys: Optional[int] = None,
    query_origin: Origin = None,
    key_origin: Origin = None,
    shared: Optional[Sharing] = None,
) -> tuple[Program, dict[str, Any], float]:
    """A program, its arrays, and its scale. `keys` is the capacity of a sequence, if K and V are pools of pages. Of an
    attention that is `shared`, arrays are a rank's parts."""
    checked(q, k, v, layout, packed=packed is not None)
    full = _extents(q, k, layout, packed, keys, shared)
    if packed is None and keys is None and (k.shape[0] != full[0] or v.shape[0] != full[0]):
        batches = f"{q.shape[0]}, {k.shape[0]} and {v.shape[0]}"
        raise ArgumentError(f"q, k and v have the batches {batches}; give all the same")
    at = 0 if packed is not None else (1 if layout == "bshd" else 2)
    if k.shape[at] != v.shape[at]:
        raise ArgumentError(f"k has {k.shape[at]} rows and v {v.shape[at]}; give both as many")
    for name, function, what in (("score_mod", score_mod, "score, "), ("mask_mod", mask_mod, "")):
        if function is not None and not callable(function):
            raise ArgumentError(
                f"{name} is of type {type(function).__name__}; give a function of ({what}b, h, q_idx, kv_idx), or an "
                f"array as {'mask' if name == 'mask_mod' else 'bias'}"
            )
    own: list[Any] = []
    if bias is not None:
        bias = array("bias", bias)
        if bias.dtype == jnp.bool_:
            raise ArgumentError("bias is bool; give it as mask, true where a key stays, or give numbers")
        if not jnp.issubdtype(bias.dtype, jnp.floating) and not jnp.issubdtype(bias.dtype, jnp.integer):
            raise ArgumentError(f"bias is {bias.dtype}; give numbers, which are added, or truth values as mask")
        bias = bias.astype(jnp.float32) if jnp.issubdtype(bias.dtype, jnp.integer) else bias
        own.append(broadcast("bias", bias, full))
    if mask is not None:
        mask = array("mask", mask)
        if mask.dtype != jnp.bool_:
            raise ArgumentError(f"mask is {mask.dtype}; give bool, true where a key stays, or give numbers as bias")
        own.append(broadcast("mask", mask, full))
    if segment_ids is not None:
        own += segments(segment_ids, full)
    if isinstance(scale, numbers.Real) or scale is None:
        fixed = float(q.shape[-1] ** -0.5 if scale is None else scale)
    else:
        # A scale that a program is given is a tensor, and the first factor of the score.
        fixed, given, inner = 1.0, _one("scale", scale), score_mod
        if bias is not None or softcap is not None:
            raise ArgumentError("a scale that is an array goes with score_mod alone; multiply q by it in other cases")
        score_mod = functools.partial(_scaled, given, inner)
    if softcap is not None:
        if isinstance(softcap, numbers.Real) and not 0 < softcap < float("inf"):
            raise ArgumentError(f"softcap is {softcap}; give a finite number above 0, or None")
        softcap = float(softcap) if isinstance(softcap, numbers.Real) else _one("softcap", softcap)
        own += [] if isinstance(softcap, float) else [softcap]
    origins, begins = origins_of(query_origin, key_origin)
    side = band(is_causal, window, bottom_right)
    if origins is not None:
        if bottom_right:
            raise ArgumentError("bottom_right goes without query_origin and key_origin, which say where queries stand")
        if origins is True and side != "none":
            # Arrays are tensors of the kernel, and a band takes numbers alone.
            mask_mod, side = functools.partial(_within, side, mask_mod), "none"
    own += begins
    lengths = packed is not None or keys is not None or not (query_seq_lengths is key_value_seq_lengths is None)
    with whole():
        program = Program(
            layout, side, score_mod, mask_mod, softcap, bias is not None,
            mask is not None, lengths, sinks is not None, deterministic, segment_ids is not None,
            _rate(dropout_rate, dropout_rng), packed, keys is not None, origins, shared, arrays=own,
        )
        program.expressions(False)
    arrays: dict[str, Any] = {"q": q, "k": k, "v": v, "captured": list(program.arrays)}
    if lengths and packed is None:
        for role, name, given, extent in (
            ("seq_len_q", "query_seq_lengths", query_seq_lengths, full[2]),
            ("seq_len_kv", "key_value_seq_lengths", key_value_seq_lengths, full[3]),
        ):
            given = jnp.full(q.shape[:1], extent, jnp.int32) if given is None else integers(name, given)
            if given.shape != q.shape[:1]:
                raise ArgumentError(f"{name} have the shape {given.shape}; give one for each of {q.shape[0]} sequences")
            # Kernels follow them to memory.
            arrays[role] = jnp.clip(given, 0, extent)
    if sinks is not None:
        sinks = array("sinks", sinks)
        if sinks.shape != (full[1],):
            raise ArgumentError(f"sinks have the shape {sinks.shape}; give one for each of {full[1]} heads")
        arrays["sink"] = jnp.asarray(sinks, jnp.float32)
    if program.dropout:
        # Sixty-two random bits, as two words: the lower one first.
        arrays["dropout_seed"] = jax.random.bits(dropout_rng, (2,), jnp.uint32) >> jnp.arange(2, dtype=jnp.uint32) * 2
        arrays["dropout_offset"] = jnp.zeros((2,), jnp.uint32)
    return program, arrays, fixed


def _extents(
    q: Any, k: Any, layout: str, packed: Optional[tuple], keys: Optional[int], shared: Optional[Sharing]
) -> tuple:
    """The extents of the scores: batch, query heads, queries, keys. A rank is given its rows of them, or all if it
    computes some heads."""
    if packed is not None:
        return (packed[0], q.shape[1], packed[1], packed[2])
    h, s = (2, 1) if layout == "bshd" else (1, 2)
    if shared is not None:
        rows = q.shape[s] * (shared.ranks if shared.strategy == "heads" else 1)
        return (q.shape[0], q.shape[h], rows, k.shape[s] * shared.ranks)
    return (q.shape[0], q.shape[h], q.shape[s], k.shape[s] if keys is None else keys)


def _rate(rate: float, rng: Any) -> float:
    if not isinstance(rate, numbers.Real) or not 0 <= rate < 1:
        raise ArgumentError(f"dropout_rate is {rate!r}; give a number of at least 0 and below 1, known while tracing")
    if rate and rng is None:
        raise ArgumentError(f"dropout_rate is {rate}, and dropout_rng is missing; give a key: jax.random.key(seed)")
    return float(rate)


def _scaled(scale, inner, score, b, h, q_idx, kv_idx):
    return score * scale if inner is None else inner(score * scale, b, h, q_idx, kv_idx)


def _one(name: str, given: Any) -> Any:
    given = array(name, given)
    if given.size != 1:
        raise ArgumentError(f"{name} has the shape {given.shape}; it is one number, or an array of one")
    return jnp.reshape(given, ()).astype(jnp.float32) if name == "scale" else jnp.reshape(given, (1, 1, 1, 1))


def broadcast(name: str, given: Any, full: tuple) -> Any:
    """An array over (batch, head, query, key), with extents of 1 where it is the same."""
    shape = (1,) * (4 - given.ndim) + given.shape
    if len(shape) != 4 or any(extent not in (1, whole) for extent, whole in zip(shape, full)):
        raise ArgumentError(
            f"{name} has the shape {given.shape}; give what broadcasts to (batch, head, query, key): {full}"
        )
    return jnp.reshape(given, shape)


def band(is_causal: bool, window: Window, bottom_right: bool = False) -> str:
    """The value of the field `mask`."""
    if not isinstance(is_causal, (bool, np.bool_)):
        raise ArgumentError(f"is_causal is {is_causal!r}; give True or False: it is part of the kernel")
    sides: Any = (window, window) if isinstance(window, numbers.Integral) else window or (None, None)
    if not isinstance(sides, (tuple, list)) or len(sides) != 2:
        raise ArgumentError(f"window is {window!r}; give one number, or (left, right) with None for no limit")
    left, right = sides
    if any(side is not None and (not isinstance(side, numbers.Integral) or side < 0) for side in (left, right)):
        raise ArgumentError(f"window is {window}; both sides are at least 0, or None")
    corner = " bottom-right" if bottom_right else ""
    if is_causal:
        right = 0 if right is None else min(right, 0)
    if left is None and right is None:
        return "none"
    if left is None and right == 0:
        return f"causal{corner}"
    # A band counts the query itself to its left side.
    words = [*([] if left is None else [f"left {left + 1}"]), *([] if right is None else [f"right {right}"])]
    return f"band {' '.join(words)}{corner}"
