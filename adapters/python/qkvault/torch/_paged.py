"""Keys and values in pages, as servers of language models keep them."""

from __future__ import annotations

from typing import Callable, Optional

import torch
from torch import Tensor

from .._errors import ArgumentError
from . import _operators
from ._attention import Number, parts
from ._drafts import drafts
from ._lengths import dead, lengths
from ._operands import same_type
from ._placed import checked
from ._spec import Window, placed
from ._words import DOOR

_SHAPES = {"nhd": "(page, row, head, head dim)", "hnd": "(page, head, row, head dim)"}


@DOOR.worded()
def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    kv_lengths: Tensor,
    *,
    q_lengths: Optional[Tensor] = None,
    score_mod: Optional[Callable] = None,
    mask_mod: Optional[Callable] = None,
    is_causal: bool = True,
    window: Window = None,
    softcap: Number = None,
    sinks: Optional[Tensor] = None,
    alibi_slopes: Optional[Tensor] = None,
    scale: Number = None,
    invariant: bool = False,
    draft_tree: Optional[Tensor] = None,
    layout: str = "nhd",
) -> Tensor:
    """Attention of `q` (batch, head, query, head dim), the last rows of each sequence, over keys and values in pages.

    `k_pages` and `v_pages` are pools (page, row of a page, key head, head dim), or with `layout="hnd"` (page, key head,
    row of a page, head dim). `page_table` (batch, pages of a sequence) has the pages of each sequence in order, and
    `kv_lengths` (batch) how many keys it has, those of these queries included: integers on the GPU, which may change
    from call to call, also between replays of a CUDA graph. The plan is for the width of the table, so keep it constant
    or round it up. With `is_causal`, the last query sees the last key. In `score_mod` and `mask_mod`, `q_idx` is the
    row of `q` and `kv_idx` the key of the sequence. `draft_tree` (batch, query), int64: the queries are drafts, the
    last keys are theirs, and bit `j` of a row says whether that query sees draft `j`; at most 64, and truth values
    (batch, query, draft) are packed here. There is no gradient: gather the pages for one.
    """
    if layout not in _SHAPES:
        raise ArgumentError(f"layout is {layout!r}; it is 'nhd' or 'hnd'")
    checked("(batch, head, query, head dim)", q=q)
    checked(_SHAPES[layout], k_pages=k_pages, v_pages=v_pages)
    if k_pages.shape[:3] != v_pages.shape[:3]:
        raise ArgumentError(
            f"k_pages has dims {list(k_pages.shape)} and v_pages {list(v_pages.shape)}; give pages that are alike but "
            "for the head dim"
        )
    checked("(sequence, page)", page_table=page_table)
    if page_table.shape[0] != q.shape[0] or page_table.is_floating_point():
        raise ArgumentError(
            f"page_table has dims {list(page_table.shape)} and {page_table.dtype}; give integers (sequence, page), a "
            f"row for each of {q.shape[0]} sequences"
        )
    if torch.is_grad_enabled() and any(t.requires_grad for t in (q, k_pages, v_pages)):
        raise ArgumentError("attention over pages has no gradient; use torch.no_grad(), or gather the pages")
    q, k_pages, v_pages = same_type(q, k_pages, v_pages, ("q", "k_pages", "v_pages"))
    if layout == "nhd":
        k_pages, v_pages = k_pages.transpose(1, 2), v_pages.transpose(1, 2)
    keys = page_table.shape[1] * k_pages.shape[2]
    corner = (is_causal or window is not None) and (q.shape[2] > 1 or window is not None)
    dims = (q.shape[0], q.shape[1], q.shape[2], keys)
    made = parts(
        q, k_pages, score_mod, mask_mod, None, None, None, is_causal and corner, window if corner else None, True,
        softcap, sinks, alibi_slopes, scale, 0.0, False, dims=dims, invariant=invariant,
    )  # fmt: skip
    made.lines.insert(0, f"paged: {keys}")
    if draft_tree is not None:
        drafts(made, draft_tree, q.device, (q.shape[0], q.shape[2]), "(batch, query)")
    # Kernels follow pages and lengths to memory.
    table = placed(page_table, q.device, "page_table").clamp(0, k_pages.shape[0] - 1).to(torch.int32)
    table = table.reshape(q.shape[0], 1, -1, 1).contiguous()
    made.tensor("page_table_k", table)
    made.tensor("page_table_v", table)
    lengths(made, q, keys, q_lengths, kv_lengths)
    o, _ = _operators.run_parts(made, q, k_pages, v_pages, False)
    return o.masked_fill(dead(q_lengths, kv_lengths, o.shape[2]), 0)


def places(page_table: Tensor, lengths: Tensor, count: int, rows: int) -> tuple[Tensor, Tensor]:
    """The pages, and the rows in them, of so many rows behind the `lengths` of each sequence. A sequence of -1 rows only
    fills a batch, and has the first row of the first page."""
    at = (lengths.to(torch.int64)[:, None] + torch.arange(count, device=lengths.device)).clamp(min=0)
    return page_table.to(torch.int64).gather(1, at // rows).clamp(min=0), at % rows
