"""Origins: the positions of the first query and the first key, as numbers of a launch."""

from __future__ import annotations

from typing import Any, Union

import torch
from torch import Tensor

from qkvault_record import MAX_ORIGIN

from .._errors import ArgumentError
from ._spec import Parts
from ._told import single

Origin = Union[int, Tensor, None]


def origins(made: Parts, query: Origin, key: Origin, bottom_right: bool) -> None:
    """Adds origins to a specification: their names, which are part of it, and their values, which are not."""
    if bottom_right:
        raise ArgumentError(
            "bottom_right goes without query_origin and key_origin, which say where the queries stand; leave one out"
        )
    made.origins = (number("query_origin", query), number("key_origin", key))
    made.lines.append("origins: any")
    for name, value in zip(("query_origin", "key_origin"), made.origins):
        made.number(name, value)


def number(name: str, given: Origin) -> Any:
    """The value of an origin."""
    if given is None:
        return 0
    if isinstance(given, Tensor):
        if given.numel() != 1 or given.is_floating_point() or given.dtype is torch.bool:
            raise ArgumentError(f"{name} has dims {list(given.shape)} and {given.dtype}; give one integer")
        given = single(name, given)
    if torch.compiler.is_compiling():  # It may be a symbol or a tensor, whose value the launch checks.
        return given
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= MAX_ORIGIN:
        raise ArgumentError(f"{name} is {given!r}; give a position: an integer of 0 to {MAX_ORIGIN}")
    return given
