"""Trees of drafts: which new tokens of a sequence each of them sees, as a speculative decoder verifies them."""

from __future__ import annotations

import torch
from torch import Tensor

from .._errors import ArgumentError
from ._spec import Parts, placed

#: The most drafts of a sequence: each has a bit.
MOST = 64


def drafts(made: Parts, given: Tensor, device: torch.device, rows: tuple[int, ...], axes: str) -> None:
    """Adds a tree: int64 of these rows, whose bit j is for draft j, or truth values with an axis of drafts behind."""
    given = placed(given, device, "draft_tree")
    wide = given.dtype is torch.bool
    if given.dtype not in (torch.bool, torch.int64) or tuple(given.shape[: len(rows)]) != tuple(rows) or (
        given.dim() != len(rows) + wide or (wide and given.shape[-1] > MOST)
    ):
        raise ArgumentError(
            f"draft_tree has dims {list(given.shape)} and {given.dtype}; give int64 {axes} of dims {list(rows)}, "
            f"whose bit j is for draft j, or truth values with an axis of at most {MOST} drafts behind"
        )
    if wide:
        given = (given.to(torch.int64) << torch.arange(given.shape[-1], device=device)).sum(-1)
    first = rows[0] if len(rows) == 2 else 1
    made.tensor("draft_tree", given.contiguous().view(torch.int32).reshape(first, 1, rows[-1], 2))
    made.lines.append("draft_tree: yes")
