"""One attention whose sequence is sharded over a mesh axis, inside of `shard_map`, with XLA's collectives.

Programs are the same on all ranks, so nothing that differs from rank to rank may be a number of a launch. A causal band
follows the lengths of the keys, which kernels read on the GPU and skip blocks for; functions read positions as arrays.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

import jax
import jax.numpy as jnp

from .. import _sequence as sequence
from .._errors import ArgumentError
from . import _by_heads
from ._arguments import Number, Window, band, checked, program_of
from ._exchange import gathered, ranks_of, whole_of
from ._halo import halo
from ._operator import operator
from ._segments import integers, narrow
from ._shards import varying
from ._words import DOOR


@DOOR.worded()
def context_parallel_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    axis_name: Any,
    strategy: str = "gather",
    order: str = "zigzag",
    prefixes: int = 4,
    bias: Optional[jax.Array] = None,
    mask: Optional[jax.Array] = None,
    score_mod: Optional[Callable[..., Any]] = None,
    mask_mod: Optional[Callable[..., Any]] = None,
    is_causal: bool = False,
    window: Window = None,
    softcap: Number = None,
    sinks: Optional[jax.Array] = None,
    scale: Number = None,
    query_seq_lengths: Optional[jax.Array] = None,
    key_value_seq_lengths: Optional[jax.Array] = None,
    segment_ids: Union[jax.Array, tuple[jax.Array, jax.Array], None] = None,
    layout: str = "bshd",
    deterministic: bool = False,
    return_lse: bool = False,
) -> Any:
    """Attention over a sequence that is sharded over the mesh axis `axis_name`; for the inside of `jax.shard_map`.

    `q`, `k` and `v` are a rank's rows, the result is too, and so are `segment_ids` and the rows of `bias` and `mask`,
    whose columns are the whole sequence's. Everything counts in the whole sequence: `q_idx` and `kv_idx` of functions,
    causal masks, windows, lengths.

    * `order`: `"zigzag"` (see `qj.zigzag`), in which ranks have the same work under a causal mask and what is like one,
      or `"contiguous"`, for attentions without a mask and for windows, whose work is even as it is.
    * `strategy`: `"gather"` brings all keys and values to every rank, or what its queries see of them through a window
      with two sides, where that is less; `"heads"` (Ulysses) exchanges rows for heads, of which Q as well as K have a
      multiple of the ranks then.
    * `prefixes`: chunks under a causal mask are given the keys before the end of the last one that any rank computes at
      the time, which is a part of so many of the sequence; with 1, all chunks are given all keys, and share one plan.

    Gradients of K and V are sums over ranks in float32. Other arguments are those of `attention`; dropout is missing,
    because ranks would draw a part's mask and not that of the whole.
    """
    checked(q, k, v, layout)
    ranks, at = ranks_of(axis_name), 1 if layout == "bshd" else 2
    rows = sequence.divided(q.shape[at], order, "key_value_seq_lengths")
    own_keys = sequence.divided(k.shape[at], order, "key_value_seq_lengths")
    side = band(is_causal, window)
    sequence.checked(strategy, side, q.shape[at], k.shape[at], prefixes)
    if strategy == "heads":
        return _by_heads.attention(
            q, k, v, axis_name, ranks, order, at, return_lse, layout=layout, bias=bias, mask=mask, score_mod=score_mod,
            mask_mod=mask_mod, is_causal=is_causal, window=window, softcap=softcap, sinks=sinks, scale=scale,
            query_seq_lengths=query_seq_lengths, key_value_seq_lengths=key_value_seq_lengths, segment_ids=segment_ids,
            deterministic=deterministic,
        )
    around, every = sequence.sides(side), ranks * k.shape[at]
    # Of each launch, the chunk of every rank: one program computes them all.
    launches = list(zip(*(sequence.chunks_of(rank, ranks, order) for rank in range(ranks))))
    pieces = sequence.halo(around, own_keys, ranks, order)
    if pieces is None:
        of_keys, of_values = (gathered(x, axis_name, at, order, len(launches)) for x in (k, v))
    else:
        of_keys, of_values = (halo(x, axis_name, at, order, around) for x in (k, v))
    ids = _ids(segment_ids, axis_name, order)
    found = []
    mine = sequence.chunks_of(jax.lax.axis_index(axis_name), ranks, order)
    for launch, (chunk, chunks) in enumerate(zip(mine, launches)):
        own, first = slice(launch * rows, (launch + 1) * rows), chunk * rows
        given = sequence.seen(around, rows, every, list(chunks), prefixes)
        start, count = jnp.int32(given.start(first, jnp.clip)), given.count

        def part(x, axis, start=start, count=count):
            return x if x.shape[axis] == count else jax.lax.dynamic_slice_in_dim(x, start, count, axis)

        options: dict[str, Any] = {
            "bias": _of_part(bias, "bias", own, q.shape[at], part),
            "mask": _of_part(mask, "mask", own, q.shape[at], part),
            "segment_ids": None if ids is None else (ids[0][:, own], part(ids[1], 1)), "is_causal": is_causal,
            "window": window, "mask_mod": _keys_within(mask_mod, key_value_seq_lengths),
        }
        if around[1] == 0:
            # The last key that is told of is the last query's own, and the band ends there.
            own_key = jnp.full(q.shape[:1], first + rows - start, jnp.int32)
            options.update(key_value_seq_lengths=own_key, bottom_right=True, band_moves=False)
        if side != "none" or score_mod is not None or options["mask_mod"] is not None:
            options.update(query_origin=jnp.int32(first), key_origin=jnp.int32(start))
        program, arrays, fixed = program_of(
            jax.lax.slice_in_dim(q, own.start, own.stop, axis=at), part(of_keys[launch], at),
            part(of_values[launch], at), score_mod=score_mod, softcap=softcap, sinks=sinks, scale=scale, layout=layout,
            deterministic=deterministic, **options,
        )
        o, lse = operator(program, fixed, True)(varying(arrays))
        found.append((_before(o, query_seq_lengths, first, at), lse))
    o, lse = (jnp.concatenate(parts, axis) for parts, axis in zip(zip(*found), (at, at)))
    return (o, jax.lax.stop_gradient(lse)) if return_lse else o


def _of_part(given: Any, name: str, own: slice, rows: int, part: Callable) -> Any:
    """The rows and columns of a chunk of an array over (batch, head, query, key)."""
    if given is None:
        return None
    given = jnp.asarray(given)
    if given.ndim >= 2 and given.shape[-2] not in (1, rows):
        text = f"{name} has the shape {given.shape}; it has a rank's {rows} rows, and columns of all ranks"
        raise ArgumentError(text)
    if given.ndim >= 2 and given.shape[-2] == rows:
        given = given[..., own, :]
    return given if given.shape[-1] == 1 else part(given, given.ndim - 1)


def _ids(given: Any, axis_name: Any, order: str) -> Any:
    """Segment ids of a rank's queries, and of all keys."""
    if given is None:
        return None
    both = given if isinstance(given, (tuple, list)) else (given, given)
    if len(both) != 2:
        raise ArgumentError(f"segment_ids are {len(both)} arrays; give one, or one for queries and one for keys")
    queries, keys = (integers("segment_ids", ids) for ids in narrow("segment_ids", both))
    if queries.ndim != 2 or keys.ndim != 2:
        text = f"segment_ids have the shapes {queries.shape} and {keys.shape}; they are (batch, a rank's rows)"
        raise ArgumentError(text)
    return queries, whole_of(keys, axis_name, 1, order)


def _keys_within(inner: Optional[Callable], lengths: Any) -> Optional[Callable]:
    """A predicate that hides keys behind the lengths of the whole sequences."""
    if lengths is None:
        return inner
    lengths = integers("key_value_seq_lengths", lengths)

    def keep(b, h, i, j):
        seen = j < lengths[b]
        return seen if inner is None else seen & inner(b, h, i, j)

    return keep


def _before(o: Any, lengths: Any, first: Any, at: int) -> Any:
    """Rows with zeros behind the lengths of the whole sequences."""
    if lengths is None:
        return o
    places = first + jax.lax.broadcasted_iota(jnp.int32, o.shape, at)
    kept = places < jnp.reshape(integers("query_seq_lengths", lengths), (-1, 1, 1, 1))
    return jnp.where(kept, o, jnp.zeros((), o.dtype))
