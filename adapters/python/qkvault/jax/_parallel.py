"""One attention whose sequence is sharded over a mesh axis, inside of `shard_map`: the devices of the axis are ranks of
the library, which has the schedule, the exchange and the launches."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

import jax
import jax.numpy as jnp

from .. import _sequence as sequence
from .._errors import ArgumentError
from ._arguments import Number, Window, band, checked, program_of
from ._exchange import ranks_of, whole_of
from ._operator import operator
from ._segments import both_of, integers, narrow
from ._sharing import Sharing, place_of, positions
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
      with two sides, where that is less; `"heads"` (Ulysses) exchanges rows for heads, of which Q has a multiple of
      the ranks then, and K a multiple or a divisor of them.
    * `prefixes` changes nothing any more: each chunk is given the keys that it sees.

    The schedule, the exchange and the launches are the library's. Ranks meet, and plans of a shape are loaded, when a
    device executes a call for the first time; processes meet through the coordinator of `jax.distributed`. What no
    schedule takes raises `qkvault.Refused` with codes `shard.` while the program is traced; a rank that is lost is an
    error of the run, which names it. What ranks gather lies beside XLA's pool of memory: where nothing is left for it,
    lower XLA_PYTHON_CLIENT_MEM_FRACTION. Lengths are predicates, because no program knows their numbers.

    Gradients of K and V are added over ranks in float32, in their order. Other arguments are those of `attention`;
    dropout is missing, because ranks would draw a part's mask and not that of the whole.
    """
    checked(q, k, v, layout)
    ranks, at = ranks_of(axis_name), 1 if layout == "bshd" else 2
    for x in (q, k):
        sequence.divided(x.shape[at], order, "key_value_seq_lengths")
    sequence.checked(strategy, band(is_causal, window), q.shape[at], k.shape[at], prefixes)
    if strategy == "heads":
        sequence.checked_exchange(ranks, q.shape[3 - at], {"bias": bias, "mask": mask})
    shared = Sharing(axis_name, ranks, strategy, order) if ranks > 1 else None
    for name, given in (("bias", bias), ("mask", mask)):
        _rows(name, given, q.shape[at])
    program, arrays, fixed = program_of(
        q, k, v, bias=bias, mask=mask, score_mod=score_mod, mask_mod=_keys_within(mask_mod, key_value_seq_lengths),
        is_causal=is_causal, window=window, softcap=softcap, sinks=sinks, scale=scale,
        segment_ids=_ids(segment_ids, axis_name, strategy, order), layout=layout, deterministic=deterministic,
        shared=shared,
    )
    arrays = varying(arrays)
    if shared is not None:
        arrays["place"] = place_of(axis_name)
    o, lse = operator(program, fixed, True)(arrays)
    o = _before(o, query_seq_lengths, axis_name, ranks, order, at)
    return (o, jax.lax.stop_gradient(lse)) if return_lse else o


def _rows(name: str, given: Any, rows: int) -> None:
    """Raises for an array over (batch, head, query, key) that has not a rank's rows."""
    if given is None or jnp.ndim(given) < 2:
        return
    sequence.checked_rows(name, rows, "score_mod")
    if jnp.shape(given)[-2] not in (1, rows):
        shape = jnp.shape(given)
        raise ArgumentError(f"{name} has the shape {shape}; it has a rank's {rows} rows, and columns of all ranks")


def _ids(given: Any, axis_name: Any, strategy: str, order: str) -> Any:
    """Segment ids of a rank's queries, or of all where it computes heads, and of all keys."""
    if given is None:
        return None
    queries, keys = (integers("segment_ids", ids) for ids in narrow("segment_ids", both_of(given)))
    if queries.ndim != 2 or keys.ndim != 2:
        text = f"segment_ids have the shapes {queries.shape} and {keys.shape}; they are (batch, a rank's rows)"
        raise ArgumentError(text)
    if strategy == "heads":
        queries = whole_of(queries, axis_name, 1, order)
    else:
        sequence.checked_rows("segment_ids", queries.shape[1], "mask_mod")
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


def _before(o: Any, lengths: Any, axis_name: Any, ranks: int, order: str, at: int) -> Any:
    """Rows with zeros behind the lengths of the whole sequences."""
    if lengths is None:
        return o
    places = positions(jax.lax.axis_index(axis_name), ranks, order, ranks * o.shape[at])
    kept = places[None, :] < integers("query_seq_lengths", lengths)[:, None]
    return jnp.where(jnp.expand_dims(kept, (2, 3) if at == 1 else (1, 3)), o, jnp.zeros((), o.dtype))
