"""Sequences of different lengths behind each other: tokens by heads, with cumulative lengths."""

from __future__ import annotations

import numbers
from typing import Callable, Literal, Optional, Union, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from .._errors import ArgumentError
from . import _operators
from ._attention import Number, parts
from ._drafts import drafts
from ._lengths import Padded, of_sinks
from ._operands import same_type, unrepeated
from ._placed import checked
from ._spec import Window, placed
from ._words import DOOR


@overload
def varlen_attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    *, score_mod: Optional[Callable] = None, mask_mod: Optional[Callable] = None, is_causal: bool = False,
    window: Window = None, bottom_right: bool = False, softcap: Number = None, sinks: Optional[Tensor] = None,
    alibi_slopes: Optional[Tensor] = None, scale: Number = None, dropout_p: float = 0.0,
    return_lse: Literal[True], deterministic: bool = False, invariant: bool = False,
    draft_tree: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


@overload
def varlen_attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    *, score_mod: Optional[Callable] = None, mask_mod: Optional[Callable] = None, is_causal: bool = False,
    window: Window = None, bottom_right: bool = False, softcap: Number = None, sinks: Optional[Tensor] = None,
    alibi_slopes: Optional[Tensor] = None, scale: Number = None, dropout_p: float = 0.0,
    return_lse: Literal[False] = False, deterministic: bool = False, invariant: bool = False,
    draft_tree: Optional[Tensor] = None,
) -> Tensor: ...  # fmt: skip


@DOOR.worded()
def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    score_mod: Optional[Callable] = None,
    mask_mod: Optional[Callable] = None,
    is_causal: bool = False,
    window: Window = None,
    bottom_right: bool = False,
    softcap: Number = None,
    sinks: Optional[Tensor] = None,
    alibi_slopes: Optional[Tensor] = None,
    scale: Number = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
    deterministic: bool = False,
    invariant: bool = False,
    draft_tree: Optional[Tensor] = None,
) -> Union[Tensor, tuple[Tensor, Tensor]]:
    """Attention within sequences that lie behind each other: `q`, `k`, `v` are (token, head, head dim).

    `cu_seqlens_q` and `cu_seqlens_k` (integers, sequences + 1, on the GPU) begin with 0 and tell where each sequence
    ends, as in flash-attention; `max_seqlen_q` and `max_seqlen_k` are the most of one. What they say beyond the tokens
    or beyond the most of one is cut off, so that nothing is read or written elsewhere. Rows behind the last sequence,
    and rows of a sequence without keys, are zero, and so are their gradients. Plans are for these sizes: round tokens
    and the most of one up, so that few are needed.

    `draft_tree` (token), int64: the queries of a sequence are drafts, its last keys are theirs, and bit `j` of a row
    says whether that query sees draft `j`; at most 64 of a sequence, and no gradient. Truth values (token, draft) are
    packed here.

    All other options are those of `attention`; `b`, `q_idx` and `kv_idx` of a modification are the sequence, and the
    places in it.
    """
    checked("(token, head, head dim)", q=q, k=k, v=v)
    for name, most in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if not isinstance(most, (numbers.Integral, torch.SymInt, Tensor)) or most < 1:
            raise ArgumentError(f"{name} is {most!r}; give the most rows of one sequence, 1 or more")
    q, k, v = unrepeated(*same_type(q, k, v))
    ends_q, ends_k = (
        _ends(name, given, q.device, tokens)
        for name, given, tokens in (
            ("cu_seqlens_q", cu_seqlens_q, q.shape[0]), ("cu_seqlens_k", cu_seqlens_k, k.shape[0]),
        )
    )  # fmt: skip
    if ends_q.shape != ends_k.shape:
        text = f"cu_seqlens_q tells {ends_q.shape[0] - 1} sequences and cu_seqlens_k {ends_k.shape[0] - 1}"
        raise ArgumentError(f"{text}; give as many of both")
    dims = (ends_q.shape[0] - 1, q.shape[1], int(max_seqlen_q), int(max_seqlen_k))
    # Sequences of the same rows have one corner, and more engines take a mask that ends at the bottom right.
    same = cu_seqlens_q is cu_seqlens_k and q.shape[0] == k.shape[0] and dims[2] == dims[3]
    bottom_right = bottom_right or (same and is_causal and window is None)
    made = parts(
        q, k, score_mod, mask_mod, None, None, None, is_causal, window, bottom_right, softcap, sinks, alibi_slopes,
        scale, dropout_p, deterministic, dims=dims, invariant=invariant,
    )  # fmt: skip
    made.lines = [f"varlen: {dims[0]} {dims[2]} {dims[3]}", "lengths: per-sequence", *made.lines]
    if draft_tree is not None:
        drafts(made, draft_tree, q.device, (q.shape[0],), "(token)")
    of_q, of_k = ends_q.diff().clamp(max=dims[2]), ends_k.diff().clamp(max=dims[3])
    made.tensor("seq_len_q", of_q.to(torch.int32).reshape(-1, 1, 1, 1))
    made.tensor("seq_len_kv", of_k.to(torch.int32).reshape(-1, 1, 1, 1))
    training = torch.is_grad_enabled() and any(
        t.requires_grad for t in (q, k, v, *(t for t in made.tensors if t.is_floating_point()))
    )
    if training:
        # A backward writes gradients with the steps of what it reads, and these have no gaps.
        q, k, v = (t.contiguous() for t in (q, k, v))
        if q.shape[2] % 16 and not deterministic:  # `backward.varlen-head-dim`; zeros change no score.
            q, k = (F.pad(t, (0, -t.shape[2] % 16)) for t in (q, k))
        dead_q, dead_k = _dead(ends_q, of_q, q), _dead(ends_k, of_k, k)
        q, k, v = Padded.apply(q, dead_q), Padded.apply(k, dead_k), Padded.apply(v, dead_k)
    rows, keys = ends_q.reshape(-1, 1, 1, 1), ends_k.reshape(-1, 1, 1, 1)
    head_v = v.shape[-1]
    steps = {
        "q": rows * q.stride(0), "k": keys * k.stride(0), "v": keys * v.stride(0), "o": rows * (q.shape[1] * head_v),
        "stats": rows * q.shape[1],
    }  # fmt: skip
    if training:
        steps["d_o"] = steps["o"]
        steps["d_q"] = rows * (q.shape[1] * q.shape[2])
        steps["d_k"] = keys * (k.shape[1] * k.shape[2])
        steps["d_v"] = keys * (v.shape[1] * head_v)
    for name, offsets in steps.items():
        made.tensor(f"offsets.{name}", offsets)
    o, stats = _operators.run_parts(made, q, k, v, return_lse)
    dead = _dead(ends_q, of_q, q, of_k)
    o = o.masked_fill(dead, 0)
    return (o, of_sinks(stats, dead, None if sinks is None else sinks.reshape(1, -1))) if return_lse else o


def _ends(name: str, given: Tensor, device: torch.device, tokens: int) -> Tensor:
    """Where sequences end, within the tokens and in order: kernels follow it to memory."""
    given = placed(given, device, name)
    if given.dim() != 1 or given.shape[0] < 2 or given.is_floating_point() or given.dtype is torch.bool:
        raise ArgumentError(
            f"{name} has dims {list(given.shape)} and {given.dtype}; give integers, one more than there are sequences, "
            "of which the first is 0"
        )
    return given.to(torch.int64).clamp(0, tokens).cummax(0).values


def _dead(ends: Tensor, lengths: Tensor, tensor: Tensor, of_keys: Optional[Tensor] = None) -> Tensor:
    """Which rows belong to no sequence, or to one whose keys are none: (token, 1, 1)."""
    at = torch.arange(tensor.shape[0], device=ends.device)
    sequence = torch.searchsorted(ends, at, right=True) - 1
    known = sequence.clamp(0, lengths.shape[0] - 1)
    dead = (sequence < 0) | (sequence >= lengths.shape[0]) | (at - ends[known] >= lengths[known])
    return (dead if of_keys is None else dead | (of_keys[known] == 0))[:, None, None]
