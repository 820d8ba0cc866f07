"""Arrays inside of a `shard_map`: each says over which axes of the mesh it varies, and operations want them alike."""

from __future__ import annotations

from typing import Any

import jax


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
