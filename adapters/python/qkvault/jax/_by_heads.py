"""Context parallelism by heads (Ulysses): each rank computes some heads over the whole sequence."""

from __future__ import annotations

from typing import Any, Callable, Optional

import jax
import jax.numpy as jnp

from .._errors import ArgumentError
from .._sequence import checked_heads
from ._arguments import program_of
from ._exchange import in_order, of_ranks, whole_of
from ._operator import operator
from ._shards import varying


def attention(q: Any, k: Any, v: Any, axis_name: Any, ranks: int, order: str, at: int, lse: bool, *, bias: Any,
              mask: Any, score_mod: Any, mask_mod: Any, sinks: Any, segment_ids: Any, **options: Any) -> Any:
    """The attention of a rank's rows, of which all ranks compute all heads together."""
    over = 3 - at
    checked_heads(ranks, {"q": q.shape[over], "k": k.shape[over]}, {"bias": bias, "mask": mask})

    def to_heads(x):
        moved = jax.lax.all_to_all(x, axis_name, split_axis=over, concat_axis=at, tiled=True)
        return in_order(moved, ranks, at, order)

    def to_rows(x):
        return jax.lax.all_to_all(of_ranks(x, ranks, at, order), axis_name, split_axis=at, concat_axis=over, tiled=True)

    heads = q.shape[over] // ranks
    first = jax.lax.axis_index(axis_name) * heads
    if sinks is not None:
        sinks = jnp.asarray(sinks)
        if sinks.shape != (q.shape[over],):
            raise ArgumentError(f"sinks have the shape {sinks.shape}; give one for each of {q.shape[over]} heads")
        sinks = jax.lax.dynamic_slice_in_dim(sinks, first, heads)
    if segment_ids is not None:
        both = segment_ids if isinstance(segment_ids, (tuple, list)) else (segment_ids, segment_ids)
        segment_ids = tuple(whole_of(jnp.asarray(ids), axis_name, 1, order) for ids in both)
    program, arrays, fixed = program_of(
        *(to_heads(x) for x in (q, k, v)), score_mod=_of_head(score_mod, first, 2),
        mask_mod=_of_head(mask_mod, first, 1), sinks=sinks, segment_ids=segment_ids, **options,
    )
    found = operator(program, fixed, lse)(varying(arrays))
    return (to_rows(found[0]), to_rows(jax.lax.stop_gradient(found[1]))) if lse else to_rows(found)


def _of_head(function: Optional[Callable], first: Any, at: int) -> Optional[Callable]:
    """A function that counts heads from those of the first rank on."""
    if function is None:
        return None
    return lambda *given: function(*given[:at], given[at] + first, *given[at + 1:])
