"""One attention whose sequence is shared by the ranks of a process group."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor

from .. import _sequence as sequence
from .._errors import ArgumentError
from . import _operators
from ._attention import attention, parts
from ._exchange import Gather, ToHeads, ToRows, group_of
from ._halo import Halo
from ._lengths import log_sums, padded, rows
from ._placed import checked
from ._spec import Window, band
from ._words import DOOR


@DOOR.worded()
def context_parallel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Any = None,
    strategy: str = "gather",
    order: str = "zigzag",
    prefixes: int = 4,
    score_mod: Optional[Callable] = None,
    mask_mod: Optional[Callable] = None,
    bias: Optional[Tensor] = None,
    attn_mask: Optional[Tensor] = None,
    is_causal: bool = False,
    window: Window = None,
    softcap: Optional[float] = None,
    sinks: Optional[Tensor] = None,
    alibi_slopes: Optional[Tensor] = None,
    scale: Optional[float] = None,
    q_lengths: Optional[Tensor] = None,
    kv_lengths: Optional[Tensor] = None,
    return_lse: bool = False,
    deterministic: bool = False,
) -> Union[Tensor, tuple[Tensor, Tensor]]:
    """Attention over a sequence that the ranks of `group` share: a process group, a mesh of one dim, or all processes.

    `q`, `k` and `v` (batch, head, row, head dim) are a rank's rows, and the result is too; rows of `bias` and
    `attn_mask` as well, whose columns are the whole sequence's. Everything counts in the whole sequence: `q_idx` and
    `kv_idx` of functions, what these capture, causal masks, windows, ALiBi, lengths. All ranks call it alike.

    * `order`: `"zigzag"`, in which ranks have the same work under a causal mask: a rank has the chunks `rank` and
      `2 * ranks - 1 - rank` (`context_parallel_shard` gives them); or `"contiguous"`, for attentions without a mask and
      for windows, whose work is even as it is.
    * `strategy`: `"gather"` brings all keys and values to every rank, or what its queries see of them through a window
      with two sides, where that is less; `"heads"` (Ulysses) exchanges rows for heads, of which Q as well as K have a
      multiple of the ranks then.
    * `prefixes`: a chunk under a causal mask is given the keys before its end, of which there are about so many
      lengths, and as many plans; with 1, all chunks are given all keys and share one plan.

    Gradients of K and V are added over ranks in float32, in their order. Those of `sinks`, `bias` and captured tensors
    are a rank's part, as those of parameters are: add them over ranks (`all_reduce`). Other arguments are those of
    `attention`; dropout is missing, because ranks would draw a part's mask and not that of the whole.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if hasattr(tensor, "placements"):
            raise ArgumentError(f"{name} is a DTensor; give this rank's rows: {name}.to_local()")
    checked("(batch, head, row, head dim)", q=q, k=k, v=v)
    group, ranks, rank = group_of(group)
    size = sequence.divided(q.shape[2], order, "kv_lengths")
    own_keys = sequence.divided(k.shape[2], order, "kv_lengths")
    side = band(is_causal, window, False)
    sequence.checked(strategy, side, q.shape[2], k.shape[2], prefixes)
    options = {
        "is_causal": is_causal, "window": window, "softcap": softcap, "scale": scale, "deterministic": deterministic,
    }  # fmt: skip
    if strategy == "heads":
        return _by_heads(
            q, k, v, group, ranks, rank, order, return_lse, bias=bias, attn_mask=attn_mask, score_mod=score_mod,
            mask_mod=mask_mod, sinks=sinks, alibi_slopes=alibi_slopes, q_lengths=q_lengths, kv_lengths=kv_lengths,
            **options,
        )  # fmt: skip
    chunks, around, every = sequence.chunks_of(rank, ranks, order), sequence.sides(side), ranks * k.shape[2]
    pieces = sequence.halo(around, own_keys, ranks, order)
    if pieces is None:
        of_keys, of_values = (Gather.apply(t, 2, group, order, len(chunks)) for t in (k, v))
    else:
        window_of = sequence.seen(around, own_keys, every, chunks, prefixes)
        of_keys, of_values = (Halo.apply(t, 2, group, order, window_of, pieces) for t in (k, v))
    found = []
    for at, chunk in enumerate(chunks):
        own, first = slice(at * size, (at + 1) * size), chunk * size
        given = sequence.seen(around, size, every, [chunk], prefixes)
        start, end = given.start(first), given.start(first) + given.count
        seen = slice(start, end)
        q_part, k_part, v_part = q[:, :, own], of_keys[at], of_values[at]
        if pieces is None:
            k_part, v_part = k_part[:, :, seen], v_part[:, :, seen]
        of_q, of_k = (_left(given, begin) for given, begin in ((q_lengths, first), (kv_lengths, start)))
        made = parts(
            q_part, k_part, score_mod, mask_mod, None, _of_part(bias, "bias", own, seen, q, every),
            _of_part(attn_mask, "attn_mask", own, seen, q, every), is_causal, window, False, softcap,
            sinks, alibi_slopes, scale, 0.0, deterministic, of_q, of_k, first, start,
        )  # fmt: skip
        if side != "none" and of_k is of_q is None:  # Its own key, at least: masked backwards are faster with it.
            made.lines[made.lines.index("origins: any")] = "origins: every-query-sees-a-key"
        o, lse = _operators.run(
            padded(q_part, of_q), padded(k_part, of_k), padded(v_part, of_k), made.tensors, made.spec(), made.values,
            True,
        )  # fmt: skip
        lse = log_sums(lse, of_q, of_k, sinks) if return_lse else lse
        found.append((o if of_q is None else o.masked_fill(rows(of_q, size), 0), lse))
    o = torch.cat([o for o, _ in found], 2)
    return (o, torch.cat([lse for _, lse in found], 2)) if return_lse else o


def _left(lengths: Optional[Tensor], begin: int) -> Optional[Tensor]:
    """Lengths of what begins later."""
    return None if lengths is None else (lengths - begin).clamp(min=0)


def _of_part(given: Optional[Tensor], name: str, own: slice, seen: slice, q: Tensor, keys: int) -> Optional[Tensor]:
    """The rows and columns of a chunk of a tensor over (batch, head, query, key)."""
    if given is None:
        return None
    if given.dim() < 2 or given.shape[-2] not in (1, q.shape[2]) or given.shape[-1] not in (1, keys):
        raise ArgumentError(
            f"{name} has dims {list(given.shape)}; it has a rank's {q.shape[2]} rows, and columns of all {keys} keys"
        )
    given = given if given.shape[-2] == 1 else given[..., own, :]
    return given if given.shape[-1] == 1 else given[..., seen]


def _by_heads(q, k, v, group, ranks, rank, order, return_lse, *, bias, attn_mask, score_mod, mask_mod, sinks,
              alibi_slopes, **options):  # fmt: skip
    """All ranks compute all heads together, each some of them over the whole sequence."""
    sequence.checked_heads(ranks, {"q": q.shape[1], "k": k.shape[1]}, {"bias": bias, "attn_mask": attn_mask})
    heads = q.shape[1] // ranks
    own = slice(rank * heads, (rank + 1) * heads)
    number = torch.arange(own.start, own.stop, device=q.device)
    o, lse = attention(
        *(ToHeads.apply(t, group, ranks, order) for t in (q, k, v)), score_mod=_of_head(score_mod, number, 2),
        mask_mod=_of_head(mask_mod, number, 1), sinks=None if sinks is None else sinks.reshape(-1)[own],
        alibi_slopes=None if alibi_slopes is None else alibi_slopes.reshape(-1, q.shape[1])[:, own], return_lse=True,
        **options,
    )  # fmt: skip
    o = ToRows.apply(o, group, ranks, order)
    return (o, ToRows.apply(lse, group, ranks, order)) if return_lse else o


def _of_head(function: Optional[Callable], number: Tensor, at: int) -> Optional[Callable]:
    """A function that is told the numbers of heads among those of all ranks: a tensor, so that ranks share a plan."""
    if function is None:
        return None
    return lambda *given: function(*given[:at], number[given[at]], *given[at + 1 :])
