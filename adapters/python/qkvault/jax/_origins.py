"""Origins: the positions of the first query and the first key, as numbers of a launch or as arrays."""

from __future__ import annotations

import numbers
from typing import Any, Callable, Optional, Union

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import ArgumentError

Origin = Union[int, jax.Array, None]
#: The largest position of a first query or key.
MAX_ORIGIN = 1 << 23


def origins_of(query: Origin, key: Origin) -> tuple[Union[None, bool, tuple[int, int]], list]:
    """What a program is told of origins, and the arrays that it is given."""
    if query is None and key is None:
        return None, []
    both = [_checked(name, given) for name, given in (("query_origin", query), ("key_origin", key))]
    if all(isinstance(given, int) for given in both):
        return (both[0], both[1]), []
    return True, [jnp.reshape(jnp.asarray(given, jnp.int32), (1, 1, 1, 1)) for given in both]


def _checked(name: str, given: Origin) -> Any:
    if given is None:
        return 0
    if isinstance(given, jax.Array):
        if given.size != 1 or not jnp.issubdtype(given.dtype, jnp.integer):
            raise ArgumentError(f"{name} is an array {given.shape} of {given.dtype}; give one integer")
        return given
    integral = isinstance(given, numbers.Integral) and not isinstance(given, (bool, np.bool_))
    if not integral or not 0 <= int(given) <= MAX_ORIGIN:
        text = f"{name} is {given!r}; give a position: an integer of 0 to {MAX_ORIGIN}, or an array of one"
        raise ArgumentError(text)
    return int(given)


def within(band: str, inner: Optional[Callable], b: Any, h: Any, i: Any, j: Any) -> Any:
    """A band in the text form as a predicate of positions, and another predicate."""
    words, keep = band.split(), None
    right = 0 if words[0] == "causal" else int(words[words.index("right") + 1]) if "right" in words else None
    if right is not None:
        keep = j <= i + right
    if "left" in words:
        near = i - j < int(words[words.index("left") + 1])
        keep = near if keep is None else keep & near
    return keep if inner is None else keep & inner(b, h, i, j)
