"""Integers that a call is given, as int32, which kernels read: whatever type they have, none becomes another."""

from __future__ import annotations

from typing import Any, Sequence

import jax.numpy as jnp

from .._errors import ArgumentError


def array(name: str, given: Any) -> Any:
    """An array of what may be a list or a number."""
    try:
        return jnp.asarray(given)
    except (TypeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise ArgumentError(f"{name} is of type {type(given).__name__}; give an array of numbers: {first}") from None


def integers(name: str, given: Any) -> Any:
    """An array of integers, as int32. Larger ones are the largest."""
    given = array(name, given)
    if not jnp.issubdtype(given.dtype, jnp.integer):
        raise ArgumentError(f"{name} has the element type {given.dtype}; give integers")
    own, wanted = jnp.iinfo(given.dtype), jnp.iinfo(jnp.int32)
    if own.max > wanted.max:
        given = jnp.clip(given, max(own.min, wanted.min), wanted.max)
    return given.astype(jnp.int32)


def narrow(name: str, both: Sequence[Any]) -> list:
    """Numbers that are compared alone, of at most 32 bits."""
    arrays = [array(name, ids) for ids in both]
    for ids in arrays:
        if jnp.issubdtype(ids.dtype, jnp.integer) and ids.dtype.itemsize > 4:
            raise ArgumentError(f"{name} are {ids.dtype}; give int32, which kernels compare: ids.astype(jnp.int32)")
    return [ids.view(jnp.int32) if ids.dtype == jnp.uint32 else ids for ids in arrays]


def both_of(given: Any) -> Sequence[Any]:
    """Segment ids of queries, and of keys."""
    both = given if isinstance(given, (tuple, list)) else (given, given)
    if len(both) != 2:
        raise ArgumentError(f"segment_ids are {len(both)} arrays; give one, or one for queries and one for keys")
    return both


def segments(given: Any, full: tuple) -> list:
    """Segment ids of queries and keys over (batch, head, query, key)."""
    both = [array("segment_ids", ids) for ids in both_of(given)]
    for name, ids, extent in zip(("queries", "keys"), both, full[2:]):
        if not jnp.issubdtype(ids.dtype, jnp.integer):
            raise ArgumentError(f"segment_ids of {name} has the element type {ids.dtype}; give integers")
        if ids.shape != (full[0], extent):
            raise ArgumentError(
                f"segment_ids of {name} have the shape {ids.shape}; they are (batch, sequence): {(full[0], extent)}"
            )
    shapes = (full[0], 1, full[2], 1), (full[0], 1, 1, full[3])
    return [jnp.reshape(ids, shape) for ids, shape in zip(_alike(*both), shapes)]


def _alike(queries: Any, keys: Any) -> list:
    """Numbers of int32 that are alike where those are."""
    kind = jnp.promote_types(queries.dtype, keys.dtype)
    if not jnp.issubdtype(kind, jnp.integer):
        raise ArgumentError(f"segment_ids of queries are {queries.dtype} and of keys {keys.dtype}; give one type")
    both = [ids.astype(kind) for ids in (queries, keys)]
    if kind.itemsize <= 4:
        return [ids.astype(jnp.int32) for ids in both]
    # Their places among all of them: the numbers themselves may differ in high bits alone.
    every = jnp.sort(jnp.concatenate([ids.reshape(-1) for ids in both]))
    return [jnp.searchsorted(every, ids).astype(jnp.int32) for ids in both]
