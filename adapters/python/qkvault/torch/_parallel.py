"""One attention whose sequence is shared by the ranks of a process group."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor

from .. import _sequence as sequence
from .._errors import ArgumentError
from . import _ranks, _shared
from ._attention import parts
from ._exchange import context_parallel_shard, group_of
from ._lengths import checked as length
from ._lengths import dead, listed, log_sums, padded
from ._placed import checked
from ._spec import Window, band
from ._words import DOOR


@torch.compiler.disable
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
    * `strategy`: `"gather"` brings a rank the keys and values that its queries see, some heads while it computes others;
      `"heads"` (Ulysses) exchanges rows for heads, of which Q has a multiple of the ranks then, and K a multiple or a
      divisor of them.
    * `prefixes` changes nothing any more: each chunk is given the keys that it sees.

    The schedule, the exchange over NCCL and the launches are the library's. A group meets in its first call, and plans
    of a shape are loaded in the first call of that shape, on all ranks. What no schedule takes raises `qkvault.Refused`
    with codes `shard.`; a rank that is lost or calls for something else, with codes `ranks.` that name it, and the
    group meets anew in its next call. Lengths beside a window with a right side become a predicate, because no gather
    takes both. `q_lengths` and `kv_lengths` are read on the host, once for what they hold. Tensors over queries are
    made whole on each rank, and cut.

    Gradients of K and V are added over ranks in float32, in their order. Those of `sinks`, `bias` and captured tensors
    are a rank's part, as those of parameters are: add them over ranks (`all_reduce`). Other arguments are those of
    `attention`; dropout is missing, because ranks would draw a part's mask and not that of the whole.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if hasattr(tensor, "placements"):
            raise ArgumentError(f"{name} is a DTensor; give this rank's rows: {name}.to_local()")
    checked("(batch, head, row, head dim)", q=q, k=k, v=v)
    group, ranks, _ = group_of(group)
    sequence.divided(q.shape[2], order, "kv_lengths")
    sequence.divided(k.shape[2], order, "kv_lengths")
    side = band(is_causal, window, False)
    sequence.checked(strategy, side, q.shape[2], k.shape[2], prefixes)
    if strategy == "heads":
        sequence.checked_exchange(ranks, q.shape[1], {"bias": bias, "attn_mask": attn_mask})
    if kv_lengths is not None and strategy == "gather" and "right" in side:
        mask_mod = _within(mask_mod, length("kv_lengths", kv_lengths, q))
    dims = (q.shape[0], q.shape[1], ranks * q.shape[2], ranks * k.shape[2])
    rows = columns = None
    if not (q_lengths is kv_lengths is bias is attn_mask is None):
        rows, columns = (
            context_parallel_shard(torch.arange(n, device=q.device), 0, group=group, order=order) for n in dims[2:]
        )
    made = parts(
        q, k, score_mod, mask_mod, None, _rows(bias, "bias", rows, q, dims), _rows(attn_mask, "attn_mask", rows, q, dims),
        is_causal, window, False, softcap, sinks, alibi_slopes, scale, 0.0, deterministic, dims=dims,
    )  # fmt: skip
    lengths = None
    if not (q_lengths is kv_lengths is None or strategy == "gather" and "right" in side):
        made.lines.append("lengths: per-sequence")
        pairs = (("q_lengths", q_lengths, dims[2]), ("kv_lengths", kv_lengths, dims[3]))
        lengths = tuple([n] * q.shape[0] if given is None else listed(length(name, given, q), n)
                        for name, given, n in pairs)
    qkv = [padded(t, of, at) for t, of, at in ((q, q_lengths, rows), (k, kv_lengths, columns), (v, kv_lengths, columns))]
    training = torch.is_grad_enabled() and any(t.requires_grad for t in (*qkv, *made.tensors))
    spec = made.spec()
    link = _ranks.link(group, q.device)
    of = _ranks.shared(link, spec, qkv, return_lse or training, strategy, order)
    o, stats = _shared.run(of, spec, dict(zip(made.numbers, made.values)), lengths, qkv, made.tensors)
    unseen = dead(q_lengths, kv_lengths, rows)
    o = o if unseen is None else o.masked_fill(unseen, 0)
    if not return_lse:
        return o
    assert stats is not None
    return o, log_sums(stats, q_lengths, kv_lengths, sinks, rows)


def _within(inner: Optional[Callable], lengths: Tensor) -> Callable:
    """Lengths of keys as a predicate: no gather moves lengths beside a window with a right side."""

    def mask_mod(b, h, q_idx, kv_idx):
        seen = kv_idx < lengths[b]
        return seen if inner is None else seen & inner(b, h, q_idx, kv_idx)

    return mask_mod


def _rows(given: Optional[Tensor], name: str, rows: Optional[Tensor], q: Tensor, dims: tuple) -> Optional[Tensor]:
    """A tensor over (batch, head, query, key) of which a rank has rows, among those of the whole: it is cut again for
    the rank, whose description is that of the whole."""
    if given is None:
        return None
    if given.dim() < 2 or given.shape[-2] not in (1, q.shape[2]) or given.shape[-1] not in (1, dims[3]):
        raise ArgumentError(
            f"{name} has dims {list(given.shape)}; it has a rank's {q.shape[2]} rows, and columns of all {dims[3]} keys"
        )
    sequence.checked_rows(name, q.shape[2], "score_mod")
    if given.shape[-2] == 1:
        return given
    assert rows is not None
    return given.new_zeros((*given.shape[:-2], dims[2], given.shape[-1])).index_copy(-2, rows, given)
