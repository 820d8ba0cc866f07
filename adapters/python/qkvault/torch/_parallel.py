"""One attention whose sequence is shared by the ranks of a process group."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor

from .._errors import ArgumentError
from . import _operators
from ._attention import attention, parts
from ._exchange import Gather, ToHeads, ToRows, chunks_of, group_of, parts_of, to_rows
from ._lengths import padded, rows
from ._spec import Window, band


def context_parallel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Any = None,
    strategy: str = "gather",
    order: str = "zigzag",
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
    * `strategy`: `"gather"` brings all keys and values to every rank; `"heads"` (Ulysses) exchanges rows for heads, of
      which Q as well as K have a multiple of the ranks then.

    Gradients of K and V are added over ranks in float32, in their order. Those of `sinks`, `bias` and captured tensors
    are a rank's part, as those of parameters are: add them over ranks (`all_reduce`). Other arguments are those of
    `attention`; dropout is missing, because ranks would draw a part's mask and not that of the whole.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if hasattr(tensor, "placements"):
            raise ArgumentError(f"{name} is a DTensor; give this rank's rows: {name}.to_local()")
        if tensor.dim() != 4:
            raise ArgumentError(f"{name} has dims {list(tensor.shape)}; give (batch, head, row, head dim)")
    group, ranks, rank = group_of(group)
    size = _divided(q.shape[2], order)
    _divided(k.shape[2], order)
    side = band(is_causal, window, False)
    if side != "none" and q.shape[2] != k.shape[2]:
        counts = f"a rank has {q.shape[2]} queries and {k.shape[2]} keys"
        raise ArgumentError(f"{counts}; under is_causal and window it has as many of both")
    options = {
        "is_causal": is_causal, "window": window, "softcap": softcap, "scale": scale, "deterministic": deterministic,
    }  # fmt: skip
    if strategy == "heads":
        return _by_heads(
            q, k, v, group, ranks, rank, order, return_lse, bias=bias, attn_mask=attn_mask, score_mod=score_mod,
            mask_mod=mask_mod, sinks=sinks, alibi_slopes=alibi_slopes, q_lengths=q_lengths, kv_lengths=kv_lengths,
            **options,
        )  # fmt: skip
    if strategy != "gather":
        raise ArgumentError(f"strategy is {strategy!r}; it is 'gather' or 'heads'")
    chunks = chunks_of(rank, ranks, order)
    of_keys, of_values = (Gather.apply(t, 2, group, order, len(chunks)) for t in (k, v))
    found = []
    for at, chunk in enumerate(chunks):
        own, first = slice(at * size, (at + 1) * size), chunk * size
        start, end = _seen(side, first, size, ranks * k.shape[2])
        seen = slice(start, end)
        q_part, k_part, v_part = q[:, :, own], of_keys[at][:, :, seen], of_values[at][:, :, seen]
        of_q, of_k = (_left(given, begin) for given, begin in ((q_lengths, first), (kv_lengths, start)))
        made = parts(
            q_part, k_part, score_mod, mask_mod, None, _of_part(bias, "bias", own, seen, q, ranks * k.shape[2]),
            _of_part(attn_mask, "attn_mask", own, seen, q, ranks * k.shape[2]), is_causal, window, False, softcap,
            sinks, alibi_slopes, scale, 0.0, deterministic, of_q, of_k, first, start,
        )  # fmt: skip
        if side != "none" and of_k is of_q is None:  # Its own key, at least: masked backwards are faster with it.
            made.lines[made.lines.index("origins: any")] = "origins: every-query-sees-a-key"
        o, lse = _operators.run(
            padded(q_part, of_q), padded(k_part, of_k), padded(v_part, of_k), made.tensors, made.spec(), made.values,
            True,
        )  # fmt: skip
        found.append((o if of_q is None else o.masked_fill(rows(of_q, size), 0), lse))
    o = torch.cat([o for o, _ in found], 2)
    return (o, torch.cat([lse.detach() for _, lse in found], 2)) if return_lse else o


def _divided(count: int, order: str) -> int:
    """The rows of a chunk."""
    if count % parts_of(order):
        raise ArgumentError(
            f"a rank has {count} rows, which are not 2 equal chunks; pad the sequence, and give kv_lengths, or use "
            "order='contiguous'"
        )
    return count // parts_of(order)


def _seen(side: str, first: int, size: int, keys: int) -> tuple[int, int]:
    """The keys that a chunk of queries from `first` on is given: all, so that one plan serves every chunk and hidden
    blocks are skipped; of a window as many as one chunk sees."""
    words = side.split()
    left = next((int(words[at + 1]) - 1 for at, word in enumerate(words) if word in ("window", "left")), None)
    right = 0 if "causal" in words else next((int(words[at + 1]) for at, w in enumerate(words) if w == "right"), None)
    if left is None or right is None:
        return 0, keys
    count = min(keys, left + size + right)
    start = min(max(first - left, 0), keys - count)
    return start, start + count


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
    for name, tensor in (("q", q), ("k", k)):
        if tensor.shape[1] % ranks:
            raise ArgumentError(
                f"{name} has {tensor.shape[1]} heads, which {ranks} ranks do not share evenly; use strategy='gather', "
                "or repeat the heads of k and v"
            )
    for name, tensor in (("bias", bias), ("attn_mask", attn_mask)):
        if tensor is not None:
            raise ArgumentError(f"{name} is not exchanged for heads; give score_mod or mask_mod, or strategy='gather'")
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
    return (o, to_rows(lse.detach(), group, ranks, order)) if return_lse else o


def _of_head(function: Optional[Callable], number: Tensor, at: int) -> Optional[Callable]:
    """A function that is told the numbers of heads among those of all ranks: a tensor, so that ranks share a plan."""
    if function is None:
        return None
    return lambda *given: function(*given[:at], number[given[at]], *given[at + 1 :])
