"""Options beside Python functions: one function of the scores and one predicate that do both."""

from __future__ import annotations

import functools
from typing import Callable, Optional

import torch

from ._spec import by_head, placed, shaped


def composed(score_mod, mask_mod, mask, dims, q, softcap, alibi, bias, keep, origins=None) -> tuple:
    """A `score_mod` and a `mask_mod` that include the options; None where there is nothing. With origins, indices are
    positions, and tensors over queries and keys are read at what is left of them."""
    first = (0, 0) if origins is None else origins
    if softcap is None and alibi is None and bias is None:
        score = score_mod
    else:
        score = _score(score_mod, mask, dims, q, softcap, alibi, bias, first)
    if mask == "none" and keep is None:
        return score, mask_mod
    return score, _keep(mask_mod, mask, dims, q, keep, first)


def _read(tensor, first, b, h, i, j):
    i, j = (index - begin if begin else index for index, begin in zip((i, j), first))
    at = [(n, index) for n, index in zip(tensor.shape, (b, h, i, j)) if n > 1]
    # Without the dims of 1: PyTorch 2.10 asks for the value of an index beside an integer.
    return tensor.reshape([n for n, _ in at])[tuple(index for _, index in at)]


def _score(inner: Optional[Callable], mask, dims, q, softcap, alibi_slopes, bias, first) -> Callable:
    if alibi_slopes is not None:
        alibi_slopes = by_head(alibi_slopes, dims, q.device, "alibi_slopes")
    if bias is not None:
        bias = shaped(placed(bias, q.device, "bias"), dims, "bias")
    causal = "causal" in mask

    def score_mod(score, b, h, q_idx, kv_idx):
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if inner is not None:
            score = inner(score, b, h, q_idx, kv_idx)
        if alibi_slopes is not None:
            away = kv_idx - q_idx if causal else -torch.abs(q_idx - kv_idx)
            score = score + _read(alibi_slopes, first, b, h, q_idx, kv_idx) * away
        if bias is not None:
            score = score + _read(bias, first, b, h, q_idx, kv_idx)
        return score

    return score_mod


def _keep(inner: Optional[Callable], mask, dims, q, keep, first) -> Callable:
    words = mask.split()
    ahead = dims[3] - dims[2] if "bottom-right" in words else 0
    left = next((int(words[at + 1]) for at, word in enumerate(words) if word in ("window", "left")), None)
    right = 0 if "causal" in words else next((int(words[at + 1]) for at, w in enumerate(words) if w == "right"), None)
    if keep is not None:
        keep = shaped(placed(keep, q.device, "attn_mask"), dims, "attn_mask")

    def mask_mod(b, h, q_idx, kv_idx):
        seen = []
        if right is not None:
            seen.append(kv_idx - q_idx <= right + ahead)
        if left is not None:
            seen.append(q_idx - kv_idx < left - ahead)
        if keep is not None:
            seen.append(_read(keep, first, b, h, q_idx, kv_idx))
        if inner is not None:
            seen.append(inner(b, h, q_idx, kv_idx))
        return functools.reduce(torch.bitwise_and, seen)

    return mask_mod
