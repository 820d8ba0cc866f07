"""Arrays inside of a `shard_map`: each says over which axes of the mesh it varies, and operations want them alike."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import jax

from .._errors import ArgumentError


def _axes(x: Any) -> frozenset:
    """The axes of a `shard_map` over which an array varies, by the name that this version of JAX has for them."""
    known = jax.typeof(x)
    varying = getattr(getattr(known, "manual_axis_type", None), "varying", None)
    return getattr(known, "vma", frozenset()) if varying is None else varying


def varying(arrays: Any) -> Any:
    """The same arrays, all of which vary over the axes that any does; gradients of the others are sums."""
    every: frozenset = frozenset().union(*map(_axes, jax.tree.leaves(arrays)))

    def cast(x):
        missing = tuple(sorted(every - _axes(x), key=str))
        if not missing:
            return x
        return jax.lax.pcast(x, missing, to="varying") if hasattr(jax.lax, "pcast") else jax.lax.pvary(x, missing)

    return jax.tree.map(cast, arrays) if every else arrays


def manual() -> bool:
    """Whether this is inside of a `shard_map`, where arrays are the shards of one device."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh is not None and bool(getattr(mesh, "manual_axes", ()))


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """Around what is computed beside a call: JAX's error for arrays of an explicit mesh, with what helps."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "ShardingTypeError":
            raise
        first = str(error).strip().splitlines()[0]
        raise ArgumentError(
            "arrays of this attention are sharded in a way that cannot be followed here; call it inside of "
            f"jax.shard_map, which gives it the shards of one GPU: {first}"
        ) from None
