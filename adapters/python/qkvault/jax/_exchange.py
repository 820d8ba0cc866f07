"""Arrays over a sequence that the ranks of a mesh axis share: how they lie."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .._errors import ArgumentError
from .._sequence import dealt, even, parts_of, places


def zigzag(x: Any, ranks: int, axis: int = 1) -> jax.Array:
    """An array in the order in which ranks have balanced work under a causal mask: its `axis` may then be sharded over
    them. Of `2 * ranks` chunks, rank `r` has the chunks `r` and `2 * ranks - 1 - r`. `zigzag(jnp.arange(length), ranks,
    0)` are the positions, of which rotary embeddings are made."""
    x = jnp.asarray(x)
    chunks = jnp.split(x, even(x.shape[axis], ranks, "zigzag", "key_value_seq_lengths"), axis)
    return jnp.concatenate([chunks[at] for at in dealt(ranks, "zigzag")], axis)


def unzigzag(x: Any, ranks: int, axis: int = 1) -> jax.Array:
    """What `zigzag` was given."""
    return jnp.take(x, jnp.argsort(zigzag(jnp.arange(x.shape[axis]), ranks, 0)), axis)


def in_order(x: Any, ranks: int, axis: int, order: str) -> Any:
    """An array in the order of ranks, in that of the sequence: without a look-up, because both are known."""
    if order == "contiguous" or ranks == 1:
        return x
    chunks = jnp.split(x, parts_of(order) * ranks, axis)
    return jnp.concatenate([chunks[at] for at in places(ranks, order)], axis)


def whole_of(x: Any, axis_name: Any, axis: int, order: str) -> Any:
    """The whole sequence on every rank."""
    ranks = jax.lax.psum(1, axis_name)
    return in_order(jax.lax.all_gather(x, axis_name, axis=axis, tiled=True), ranks, axis, order)


def ranks_of(axis_name: Any) -> int:
    """How many ranks a mesh axis has."""
    try:
        return int(jax.lax.psum(1, axis_name))
    except (NameError, KeyError):
        raise ArgumentError(
            f"axis_name is {axis_name!r}, which is no axis here; call it inside of jax.shard_map over a mesh with it"
        ) from None
