"""flash-attn's functions by their names, on qkvault: `from qkvault.torch.flash_attn import flash_attn_func`.

Tensors are (batch, sequence, head, head dim), or tokens behind each other; causal masks and windows end at the bottom
right, as in flash-attn from 2.1 on. What qkvault does not do is an error in these functions' words.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from .._errors import ArgumentError, own
from ._attention import attention
from ._paged import paged_attention, places
from ._varlen import varlen_attention
from ._placed import checked
from ._words import DOOR

__all__ = [
    "flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
]  # fmt: skip

_ROWS = "(batch, sequence, head, head dim)"


def _options(
    softmax_scale: Optional[float], causal: bool, window_size: tuple, softcap: float, alibi_slopes: Optional[Tensor],
    same: bool,
) -> dict[str, Any]:  # fmt: skip
    """The options of a call in qkvault's words; `same` says that there are as many queries as keys."""
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise ArgumentError(f"window_size is {window_size!r}; give (left, right), where -1 is no limit")
    if alibi_slopes is not None and not causal and not same:
        raise ArgumentError(
            "alibi_slopes are given without causal=True, and with another number of queries than keys: flash-attn "
            "counts from the bottom right there; give the slopes in a score_mod of qkvault.torch.attention"
        )
    window = None if tuple(window_size) == (-1, -1) else tuple(window_size)
    return {
        "scale": softmax_scale, "is_causal": causal, "window": window, "bottom_right": causal or window is not None,
        "softcap": softcap or None, "alibi_slopes": alibi_slopes,
    }  # fmt: skip


@DOOR.worded()
def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
    causal: bool = False, window_size: tuple = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Union[Tensor, tuple[Tensor, Tensor, None]]:  # fmt: skip
    """`q`, `k`, `v` are (batch, sequence, head, head dim). With `return_attn_probs`, also the log-sum-exp (batch, head,
    query), and None for the probabilities, which no kernel writes."""
    checked(_ROWS, q=q, k=k, v=v)
    given = _options(softmax_scale, causal, window_size, softcap, alibi_slopes, q.shape[1] == k.shape[1])
    turned = [t.transpose(1, 2) for t in (q, k, v)]
    if return_attn_probs:
        o, lse = attention(*turned, dropout_p=dropout_p, deterministic=deterministic, return_lse=True, **given)
        return o.transpose(1, 2), lse, None
    return attention(*turned, dropout_p=dropout_p, deterministic=deterministic, **given).transpose(1, 2)


@DOOR.worded(flash_attn_func, k="kv[:, :, 0]", v="kv[:, :, 1]")
def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The same; `kv` is (batch, sequence, 2, head, head dim)."""
    checked("(batch, sequence, 2, head, head dim)", kv=kv)
    return flash_attn_func(q, kv[:, :, 0], kv[:, :, 1], *args, **kwargs)


@DOOR.worded(flash_attn_func, q="qkv[:, :, 0]", k="qkv[:, :, 1]", v="qkv[:, :, 2]")
def flash_attn_qkvpacked_func(qkv: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The same; `qkv` is (batch, sequence, 3, head, head dim)."""
    checked("(batch, sequence, 3, head, head dim)", qkv=qkv)
    return flash_attn_func(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], *args, **kwargs)


@DOOR.worded()
def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False, window_size: tuple = (-1, -1),
    softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
    return_attn_probs: bool = False, block_table: Optional[Tensor] = None,
) -> Union[Tensor, tuple[Tensor, Tensor, None]]:  # fmt: skip
    """`q`, `k`, `v` are (token, head, head dim), and `cu_seqlens` tell where sequences end. With `return_attn_probs`,
    also the log-sum-exp (head, token)."""
    if block_table is not None:
        raise ArgumentError(
            "block_table is given with sequences behind each other; use flash_attn_with_kvcache, a row for each"
        )
    given = _options(softmax_scale, causal, window_size, softcap, alibi_slopes, cu_seqlens_q is cu_seqlens_k)
    lens = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    if not return_attn_probs:
        return varlen_attention(q, k, v, *lens, dropout_p=dropout_p, deterministic=deterministic, **given)
    o, lse = varlen_attention(
        q, k, v, *lens, dropout_p=dropout_p, deterministic=deterministic, return_lse=True, **given
    )  # fmt: skip
    return o, lse.transpose(0, 1), None


@DOOR.worded()
def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor] = None, v: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None, rotary_sin: Optional[Tensor] = None,
    cache_seqlens: Union[int, Tensor, None] = None, cache_batch_idx: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None, block_table: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None, causal: bool = False, window_size: tuple = (-1, -1), softcap: float = 0.0,
    rotary_interleaved: bool = True, alibi_slopes: Optional[Tensor] = None, num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Union[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
    """Attention over a cache (batch, sequence, head, head dim), or, with `block_table`, over pages (page, row, head,
    head dim). `k` and `v` are written behind the `cache_seqlens` keys of each sequence first, in place, and belong to
    it."""
    for name, tensor in (("rotary_cos", rotary_cos), ("rotary_sin", rotary_sin)):
        if tensor is not None:
            raise own(ArgumentError(f"{name} is given; apply the rotary embedding to q and k before this call"))
    if cache_leftpad is not None:
        raise ArgumentError("cache_leftpad is given; let sequences begin at the first row of the cache")
    if (k is None) != (v is None):
        lacking = "k is given without v" if v is None else "v is given without k"
        raise own(ArgumentError(f"{lacking}; give both: the new keys and values of each sequence"))
    checked(_ROWS, q=q)
    checked(_ROWS if block_table is None else "(page, row, head, head dim)", k_cache=k_cache, v_cache=v_cache)
    if block_table is not None:
        checked("(sequence, page)", block_table=block_table)
    paged, count = block_table is not None, q.shape[0]
    rows = k_cache.shape[1]
    whole = rows * block_table.shape[1] if block_table is not None else rows
    if cache_seqlens is None:
        cache_seqlens = whole if k is None else 0
    if not isinstance(cache_seqlens, Tensor):
        cache_seqlens = torch.full((count,), int(cache_seqlens), dtype=torch.int32, device=q.device)
    lengths = cache_seqlens
    which = torch.arange(count, device=q.device) if cache_batch_idx is None else cache_batch_idx.to(torch.int64)
    if k is not None and v is not None:
        if block_table is not None:
            place = places(block_table, cache_seqlens, k.shape[1], rows)
        else:
            at = cache_seqlens.to(torch.int64)[:, None] + torch.arange(k.shape[1], device=q.device)
            place = (which[:, None].expand_as(at), at)
        k_cache[place] = k.to(k_cache.dtype)
        v_cache[place] = v.to(v_cache.dtype)
        lengths = cache_seqlens + k.shape[1]
    given = _options(softmax_scale, causal, window_size, softcap, alibi_slopes, False)
    query = q.transpose(1, 2)
    if paged:
        for name, asked in (("return_softmax_lse", return_softmax_lse), ("alibi_slopes", alibi_slopes is not None)):
            if asked:
                gathered = "k_cache[block_table].flatten(1, 2), and v_cache likewise"
                raise ArgumentError(f"{name} is given with block_table; gather the pages of the cache: {gathered}")
        more = {name: given[name] for name in ("scale", "is_causal", "window", "softcap")}
        assert block_table is not None
        return paged_attention(query, k_cache, v_cache, block_table, lengths, **more).transpose(1, 2)
    if cache_batch_idx is not None:
        k_cache, v_cache = k_cache[which], v_cache[which]
    keys, values = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    if return_softmax_lse:
        o, lse = attention(query, keys, values, kv_lengths=lengths, return_lse=True, **given)
        return o.transpose(1, 2), lse
    return attention(query, keys, values, kv_lengths=lengths, **given).transpose(1, 2)
