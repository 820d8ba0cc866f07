"""Sequences of different lengths behind each other: tokens by heads, with cumulative lengths."""

from __future__ import annotations

from typing import Literal, Optional, Union, overload

import torch
from torch import Tensor

from .._errors import ArgumentError
from . import _operators
from ._spec import Parts, Window, band, placed


@overload
def varlen_attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    *, is_causal: bool = False, window: Window = None, bottom_right: bool = False, softcap: Optional[float] = None,
    scale: Optional[float] = None, return_lse: Literal[True], deterministic: bool = False,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


@overload
def varlen_attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    *, is_causal: bool = False, window: Window = None, bottom_right: bool = False, softcap: Optional[float] = None,
    scale: Optional[float] = None, return_lse: Literal[False] = False, deterministic: bool = False,
) -> Tensor: ...  # fmt: skip


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    is_causal: bool = False,
    window: Window = None,
    bottom_right: bool = False,
    softcap: Optional[float] = None,
    scale: Optional[float] = None,
    return_lse: bool = False,
    deterministic: bool = False,
) -> Union[Tensor, tuple[Tensor, Tensor]]:
    """Attention within sequences that lie behind each other: `q`, `k`, `v` are (token, head, head dim).

    `cu_seqlens_q` and `cu_seqlens_k` (int32, sequences + 1, on the GPU) begin with 0 and tell where each sequence ends,
    as in flash-attention; `max_seqlen_q` and `max_seqlen_k` are the most of one. Plans are for these sizes: round
    tokens and the most of one up, so that few are needed. Wrong numbers on the GPU make kernels read and write
    anywhere.
    """
    if q.dim() != 3:
        raise ArgumentError(f"q has dims {list(q.shape)}; give (token, head, head dim)")
    parts = Parts(q.shape[-1] ** -0.5 if scale is None else float(scale))
    dims = (cu_seqlens_q.shape[0] - 1, q.shape[1], max_seqlen_q, max_seqlen_k)
    parts.lines += [f"varlen: {dims[0]} {max_seqlen_q} {max_seqlen_k}", "lengths: per-sequence"]
    parts.options(band(is_causal, window, bottom_right), dims, q, softcap, None, None, None)
    ends_q, ends_k = placed(cu_seqlens_q, q.device, "cu_seqlens_q"), placed(cu_seqlens_k, q.device, "cu_seqlens_k")
    parts.tensor("seq_len_q", ends_q.diff().to(torch.int32).reshape(-1, 1, 1, 1))
    parts.tensor("seq_len_kv", ends_k.diff().to(torch.int32).reshape(-1, 1, 1, 1))
    rows, keys = ends_q.to(torch.int64).reshape(-1, 1, 1, 1), ends_k.to(torch.int64).reshape(-1, 1, 1, 1)
    head_v = v.shape[-1]
    steps = {
        "q": rows * q.stride(0), "k": keys * k.stride(0), "v": keys * v.stride(0), "o": rows * (q.shape[1] * head_v),
        "stats": rows * q.shape[1],
    }  # fmt: skip
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        steps["d_o"] = steps["o"]
        steps["d_q"] = rows * (q.shape[1] * q.shape[2])
        steps["d_k"] = keys * (k.shape[1] * k.shape[2])
        steps["d_v"] = keys * (v.shape[1] * head_v)
    for name, offsets in steps.items():
        parts.tensor(f"offsets.{name}", offsets)
    if deterministic:
        parts.lines.append("deterministic: yes")
    o, stats = _operators.run(q, k, v, parts.tensors, parts.spec(), parts.values, return_lse)
    return (o, stats) if return_lse else o
