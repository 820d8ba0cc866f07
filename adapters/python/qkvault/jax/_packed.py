"""Sequences behind each other, and K and V in pages: what serving and packed training need."""

from __future__ import annotations

import numbers
from typing import Any, Callable, Optional

import jax
import jax.numpy as jnp

from .._errors import ArgumentError
from ._arguments import Number, Window, is_array, program_of
from ._operator import operator
from ._segments import integers
from ._shards import varying
from ._words import DOOR


@DOOR.worded()
def varlen_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    cu_seqlens_q: jax.Array,
    cu_seqlens_k: Optional[jax.Array] = None,
    *,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    score_mod: Optional[Callable[..., Any]] = None,
    mask_mod: Optional[Callable[..., Any]] = None,
    is_causal: bool = False,
    window: Window = None,
    bottom_right: bool = False,
    softcap: Number = None,
    sinks: Optional[jax.Array] = None,
    scale: Number = None,
    deterministic: bool = False,
) -> jax.Array:
    """Attention within sequences that lie behind each other: `q` [T, N, H] over `k` and `v` [S, K, H].

        ends = jnp.asarray([0, 700, 710, 1000])  # three sequences in 1024 rows
        o = qj.varlen_attention(q, k, v, ends, max_seqlen_q=768, max_seqlen_k=768, is_causal=True)

    `cu_seqlens_q` and `cu_seqlens_k` (integers, one more than sequences; the second is the first by default) begin with
    0 and tell where each sequence ends, as in flash-attention. `max_seqlen_q` and `max_seqlen_k` are the most rows of
    one sequence, known while tracing: all rows by default, which is right and slower. If a sequence is longer, the
    result is NaN. Rows behind the last sequence are zeros. Plans are for the sizes of arrays and the most of one, so
    round these up; the lengths may change from call to call.

    In `score_mod` and `mask_mod`, `b` is the sequence, and rows count from its first. Other arguments are those of
    `attention`; with `bottom_right`, the last query of a sequence sees its last key.
    """
    for name, x in (("q", q), ("k", k)):
        is_array(name, x)
    if len(q.shape) == 3 and len(k.shape) == 3:
        max_seqlen_q = q.shape[0] if max_seqlen_q is None else max_seqlen_q
        max_seqlen_k = k.shape[0] if max_seqlen_k is None else max_seqlen_k
    both: list[jax.Array] = []
    for name, ends, rows in (("cu_seqlens_q", cu_seqlens_q, q), ("cu_seqlens_k", cu_seqlens_k, k)):
        ends = both[0] if ends is None else integers(name, ends)
        if ends.ndim != 1 or ends.shape[0] < 2 or (both and ends.shape != both[0].shape):
            raise ArgumentError(f"{name} has the shape {ends.shape}; it is one list, as long as sequences + 1")
        # Kernels follow them to memory: whatever they are, rows of the arrays are read and written.
        both.append(jnp.clip(jax.lax.cummax(ends), 0, rows.shape[0]) if rows.shape else ends)
    for name, most in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if most is not None and (not isinstance(most, numbers.Integral) or most < 1):
            raise ArgumentError(f"{name} is {most!r}; give a whole number of at least 1, known while tracing")
    packed = (both[0].shape[0] - 1, int(max_seqlen_q or 1), int(max_seqlen_k or 1))
    # Sequences of the same rows have one corner, and more engines take a mask that ends at the bottom right.
    same = cu_seqlens_k is None or cu_seqlens_k is cu_seqlens_q
    same = same and q.shape[0] == k.shape[0] and packed[1] == packed[2]
    bottom_right = bottom_right or (same and is_causal and window is None)
    program, arrays, fixed = program_of(
        q, k, v, score_mod=score_mod, mask_mod=mask_mod, is_causal=is_causal, window=window, softcap=softcap,
        sinks=sinks, scale=scale, deterministic=deterministic, bottom_right=bottom_right, packed=packed,
    )
    arrays["ends_q"], arrays["ends_k"] = both
    for name, ends, most in (("seq_len_q", both[0], packed[1]), ("seq_len_kv", both[1], packed[2])):
        arrays[name] = jnp.minimum(jnp.diff(ends), most)
    found: jax.Array = operator(program, fixed)(varying(arrays))
    return found


@DOOR.worded()
def paged_attention(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    page_table: jax.Array,
    key_value_seq_lengths: jax.Array,
    *,
    query_seq_lengths: Optional[jax.Array] = None,
    score_mod: Optional[Callable[..., Any]] = None,
    mask_mod: Optional[Callable[..., Any]] = None,
    is_causal: bool = True,
    window: Window = None,
    softcap: Number = None,
    sinks: Optional[jax.Array] = None,
    scale: Number = None,
    layout: str = "bshd",
) -> jax.Array:
    """Attention of `q` [B, T, N, H], the last T rows of each sequence, over keys and values in pages.

        o = qj.paged_attention(q, k_pages, v_pages, page_table, lengths)  # a decode, with T = 1

    `k_pages` and `v_pages` are pools [pages, rows of a page, K, H] (with `layout="bhsd"`, [pages, K, rows, H]), and
    `page_table` [B, pages of a sequence] has the pages of each sequence in order. `key_value_seq_lengths` [B] counts
    the keys of each, those of these rows included. With `is_causal`, the last query sees the last key.

    There is no gradient: gather the pages for it.
    """
    is_array("q", q)
    for name, x in (("k_pages", k_pages), ("v_pages", v_pages), ("page_table", page_table)):
        is_array(name, x)
        if len(x.shape) != (2 if name == "page_table" else 4):
            raise ArgumentError(f"{name} has the shape {tuple(x.shape)}; it is {_SHAPES[name]}")
    if k_pages.shape[:3] != v_pages.shape[:3]:
        shapes = f"k_pages have the shape {k_pages.shape} and v_pages {v_pages.shape}"
        raise ArgumentError(f"{shapes}; give pages that are alike but for the head dim")
    rows = k_pages.shape[1 if layout == "bshd" else 2]
    # Kernels follow it to memory.
    table = jnp.clip(integers("page_table", page_table), 0, k_pages.shape[0] - 1)
    if table.shape[0] != q.shape[0]:
        raise ArgumentError(f"page_table has {table.shape[0]} rows; give one for each of {q.shape[0]} sequences")
    program, arrays, fixed = program_of(
        q, k_pages, v_pages, score_mod=score_mod, mask_mod=mask_mod, is_causal=is_causal, window=window,
        softcap=softcap, sinks=sinks, scale=scale, query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths, layout=layout, bottom_right=is_causal or window is not None,
        keys=table.shape[1] * rows,
    )
    arrays["page_table"] = table
    found: jax.Array = operator(program, fixed)(varying(arrays))
    return found


_SHAPES = {
    "k_pages": "(page, row, head, head dim), or (page, head, row, head dim) with layout='bhsd'",
    "v_pages": "(page, row, head, head dim), or (page, head, row, head dim) with layout='bhsd'",
    "page_table": "(sequence, page)",
}
