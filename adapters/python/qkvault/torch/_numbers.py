"""Which floats that a modification reads are numbers of a launch: those that a trace only passes on, as a second trace
with other values shows."""

from __future__ import annotations

import functools
import math
import re
from collections import OrderedDict
from typing import Callable, Optional

from qkvault_record import Traced

#: Most texts of which it is kept what a second trace showed.
_MOST = 128
_DIMS = re.compile(r"\[([0-9, ]+)\]")
#: What a second trace showed, by all that it depends on but for sizes.
_shown: OrderedDict = OrderedDict()


def found(traced: Traced, followed: list, dims: tuple, moves: bool, trace: Callable) -> tuple[list, list]:
    """`_asked`, whose second trace is not needed for further sizes: where the same reads give the same text but for
    sizes, they give it for the same reason."""
    if not traced.scalars:
        return [], [set(), set()]
    extents = lambda found: "[" + ", ".join("1" if n == "1" else "n" for n in found[1].split(", ")) + "]"  # noqa: E731
    text = tuple(_DIMS.sub(extents, line) for line in traced.lines())
    reads = tuple(None if f is None else tuple((r.path, r.kind) for r in f.reads) for f in followed)
    used = tuple(None if f is None else tuple(n.used for n in f.numbers.values()) for f in followed)
    key = (text, reads, used, tuple(traced.scalars), moves)
    if key not in _shown:
        numbers, bound = _asked(traced, followed, dims, moves, trace)
        _shown[key] = [place for _, _, place in numbers], bound
        if len(_shown) > _MOST:
            _shown.popitem(last=False)
        return numbers, bound
    places, bound = _shown[key]
    return [(name, value, place) for (name, value), place in zip(traced.scalars.items(), places)], bound


def _asked(traced: Traced, followed: list, dims: tuple, moves: bool, trace: Callable) -> tuple[list, list]:
    """The numbers of a trace, as (name, value, place among the numbers that a call reads or None), and the places among
    each function's reads of those that a call reads.

    A float is such a number if the trace only passes it on: with another value, nothing but the number changes.
    """
    candidates = [
        (which, place)
        for which, f in enumerate(followed) if f is not None
        for place, number in f.numbers.items()
        if not number.used and float(number) not in (0.0, 1.0, -1.0) and math.isfinite(float(number))
    ]  # fmt: skip
    places: dict = {}
    if traced.scalars:
        passed = functools.partial(_passed_on, traced, followed, dims, moves, trace)
        places = passed(candidates)
        if places is None and 1 < len(candidates) <= 4:
            places = passed([one for one in candidates if passed([one]) is not None])
    bound: list[set] = [set(), set()]
    for which, place in (places or {}).values():
        bound[which].add(place)
    order = [(which, place) for which in (0, 1) for place in sorted(bound[which])]
    return [
        (name, value, order.index(places[name]) if places and name in places else None)
        for name, value in traced.scalars.items()
    ], bound  # fmt: skip


def _passed_on(
    traced: Traced, followed: list, dims: tuple, moves: bool, trace: Callable, candidates: list
) -> Optional[dict]:  # fmt: skip
    """The floats that numbers of a trace are, by name; None if others change more than numbers."""
    instead: list[dict] = [{}, {}]
    of_value = {}
    for at, (which, place) in enumerate(candidates):
        other = float(followed[which].numbers[place]) * (1.0 + (at + 1) * 2.0**-20)
        instead[which][followed[which].reads[place].path] = other
        of_value[other] = (which, place)
    if len(of_value) != len(candidates) or not candidates:
        return None
    again = [None if f is None else f.again(instead[which]) for which, f in enumerate(followed)]
    try:
        second = trace([None if f is None else f.function for f in again], dims, moves, again)
    except Exception:
        return None
    if second.lines() != traced.lines() or list(second.scalars) != list(traced.scalars):
        return None
    shown = {name: of_value[value] for name, value in second.scalars.items() if value in of_value}
    # All others are what they were.
    if any(value != traced.scalars[name] for name, value in second.scalars.items() if name not in shown):
        return None
    return shown
