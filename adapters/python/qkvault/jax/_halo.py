"""The keys that windows see: each rank is sent what its queries see of its neighbours' chunks, and no more.

A program is the same on all ranks, so chunks travel by distance: at each distance, those that lie at the same place of
their ranks go together.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from .._sequence import Piece, Sides, chunks_of, parts_of, seen
from .._sequence import halo as pieces_of
from ._shards import varying


def _moved(x: Any, axis_name: Any, axis: int, group: list[Piece], size: int) -> Any:
    """Rows of a chunk, on the ranks that are sent them; zeros on others."""
    one, rank = group[0], jax.lax.axis_index(axis_name)
    rows = jax.lax.slice_in_dim(x, one.slot * size + one.begin, one.slot * size + one.end, axis=axis)
    away = [(piece.source, piece.to) for piece in group if piece.source != piece.to]
    here = [piece.to for piece in group if piece.source == piece.to]
    sent = jax.lax.ppermute(rows, axis_name, away) if away else None
    if not here:
        return sent
    own = functools.reduce(jnp.logical_or, (rank == own for own in here))
    return jnp.where(own, rows, jnp.zeros((), x.dtype) if sent is None else sent)


def _seen(x: Any, axis_name: Any, axis: int, order: str, around: Sides) -> tuple:
    """The keys for each of a rank's attentions, zeros where none of its queries sees."""
    ranks = jax.lax.psum(1, axis_name)
    size = x.shape[axis] // parts_of(order)
    keys, (left, right) = size * ranks * parts_of(order), around
    given = seen(around, size, keys, [0], 1)
    found = []
    for launch, chunk in enumerate(chunks_of(jax.lax.axis_index(axis_name), ranks, order)):
        # What is alike goes together: the same distance, the same rows, the same place among a rank's chunks.
        alike: dict[tuple, list[Piece]] = {}
        for piece in pieces_of(around, size, ranks, order) or []:
            if piece.launch == launch:
                away = chunks_of(piece.source, ranks, order)[piece.slot] - chunks_of(piece.to, ranks, order)[launch]
                alike.setdefault((away, piece.slot, piece.begin, piece.end), []).append(piece)
        beside: dict[int, Any] = {}
        for (away, *_), group in alike.items():
            rows = _moved(x, axis_name, axis, group, size)
            beside[away] = beside[away] + rows if away in beside else rows
        # From the first key that any query of the chunk sees to the last, as if the sequence had no ends; at the ends
        # of the sequence the place of the keys is moved, and zeros are where others have keys.
        first, shape = chunk * size, list(x.shape)

        def zeros(rows):
            return varying([jnp.zeros((*shape[:axis], rows, *shape[axis + 1:]), x.dtype), x])[0]  # noqa: B023

        ordered = [beside[away] for away in sorted(beside)]
        before = sum(rows.shape[axis] for away, rows in beside.items() if away < 0)
        behind = sum(rows.shape[axis] for away, rows in beside.items() if away > 0)
        parts = [zeros(right + left - before), *ordered, zeros(left + right - behind)]
        place = given.start(first, jnp.clip) - (first - left) + right
        found.append(jax.lax.dynamic_slice_in_dim(jnp.concatenate(parts, axis), place, given.count, axis))
    return tuple(found)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4, 5))
def _halo(x: Any, axis_name: Any, axis: int, order: str, around: Sides, rows: int) -> tuple:
    return _seen(x, axis_name, axis, order, around)


def _forward(x: Any, axis_name: Any, axis: int, order: str, around: Sides, rows: int) -> tuple:
    return _seen(x, axis_name, axis, order, around), None


def _backward(axis_name: Any, axis: int, order: str, around: Sides, rows: int, _: None, given: tuple) -> tuple:
    shape = list(given[0].shape)
    shape[axis] = rows
    like = varying([jnp.zeros(shape, jnp.float32), given[0]])[0]
    move = functools.partial(_seen, axis_name=axis_name, axis=axis, order=order, around=around)
    (own,) = jax.linear_transpose(move, like)(tuple(part.astype(jnp.float32) for part in given))
    return (own.astype(given[0].dtype),)


_halo.defvjp(_forward, _backward)


def halo(x: Any, axis_name: Any, axis: int, order: str, around: Sides) -> tuple:
    """The keys for each of a rank's attentions, zeros where none of its queries sees. Gradients are added in
    float32."""
    found: tuple = _halo(x, axis_name, axis, order, around, x.shape[axis])
    return found
