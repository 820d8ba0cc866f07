"""Products of an attention, for `torch.utils.flop_counter.FlopCounterMode`: as SDPA's are counted, without masks."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from . import _fake


def _forward(q: Any, k: Any, v: Any, extra: Any = (), spec: str = "", *_: Any, **__: Any) -> int:
    """Two operations for each product of queries and keys, and of probabilities and values."""
    rows, keys = _rows(q, k, spec)
    return 2 * rows * keys * (q[-1] + v[-1])


def _rows(q: Any, k: Any, spec: str) -> tuple[int, int]:
    """Rows of queries in all heads, and keys that each may see. Of sequences one after another: as many as one has."""
    packed = _fake.names_of(spec, "varlen")
    if packed:
        return q[0] * q[1], int(packed[2])
    pages = _fake.names_of(spec, "paged")
    return q[0] * q[1] * q[2], int(pages[0]) if pages else k[2]


def _backward(
    d_o: Any, q: Any, k: Any, v: Any, o: Any, stats: Any, extra: Any = (), spec: str = "", *_: Any, **__: Any
) -> int:  # fmt: skip
    """Scores again, and the gradients of values, probabilities, queries and keys."""
    rows, keys = _rows(q, k, spec)
    return 2 * rows * keys * (3 * q[-1] + 2 * v[-1])


def _forward_later(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return _forward(q, k, v)


def _backward_later(d_o: Any, q: Any, k: Any, v: Any, o: Any, stats: Any, *_: Any, **__: Any) -> int:
    return _backward(d_o, q, k, v, o, stats)


def register() -> None:
    names = torch.ops.qkvault
    register_flop_formula(names.forward_later)(_forward_later)
    register_flop_formula(names.backward_later)(_backward_later)
    register_flop_formula([names.attend, names.forward, names.forward_only, names.forward_told])(_forward)
    register_flop_formula([names.backward, names.backward_only, names.backward_plain, names.backward_told])(_backward)
