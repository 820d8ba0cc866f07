"""Valid lengths of sequences in a batch: queries and keys behind them are as if they were not there."""

from __future__ import annotations

from typing import Optional, Union

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .._errors import ArgumentError
from ._spec import Parts, placed


def lengths(parts: Parts, q: Tensor, keys: int, of_q: Optional[Tensor], of_k: Optional[Tensor]) -> None:
    """Adds lengths to a specification. They are cut to what there is, because kernels follow them to memory."""
    parts.lines.append("lengths: per-sequence")
    for name, given, most in (("q_lengths", of_q, q.shape[2]), ("kv_lengths", of_k, keys)):
        if given is None:
            numbers = torch.full((q.shape[0], 1, 1, 1), most, dtype=torch.int32, device=q.device)
        else:
            numbers = checked(name, given, q).clamp(0, most).to(torch.int32).reshape(-1, 1, 1, 1).contiguous()
        parts.tensor("seq_len_q" if name == "q_lengths" else "seq_len_kv", numbers)


def checked(name: str, given: Tensor, q: Tensor) -> Tensor:
    given = placed(given, q.device, name)
    if given.dim() != 1 or given.shape[0] != q.shape[0] or given.is_floating_point() or given.dtype is torch.bool:
        raise ArgumentError(
            f"{name} has dims {list(given.shape)} and {given.dtype}; give one integer for each of {q.shape[0]} "
            "sequences"
        )
    return given


_listed: WeakIdKeyDictionary = WeakIdKeyDictionary()


def listed(given: Tensor, most: int) -> list[int]:
    """Lengths on the host, cut to what there is; read once for what the tensor holds."""
    version = None if given.is_inference() else given._version
    kept = _listed.get(given)
    if kept is None or version is None or kept[0] != version:
        kept = _listed[given] = (version, given.tolist())
    return [min(max(n, 0), most) for n in kept[1]]


def rows(given: Tensor, at: Tensor) -> Tensor:
    """Which rows, by their positions, are beyond the lengths: (batch, 1, row, 1)."""
    return (at >= given[:, None])[:, None, :, None]


def dead(of_q: Optional[Tensor], of_k: Optional[Tensor], at: Union[int, Tensor, None]) -> Optional[Tensor]:
    """Which rows of O are zero: those beyond the lengths, and all of a sequence without keys. `at` has the positions of
    rows, or is their number."""
    beyond = None if of_q is None else rows(of_q, _positions(at, of_q))
    if of_k is None:
        return beyond
    none = (of_k <= 0)[:, None, None, None]
    return none if beyond is None else beyond | none


def _positions(at: Union[int, Tensor, None], like: Tensor) -> Tensor:
    return at if isinstance(at, Tensor) else torch.arange(at, device=like.device)


def log_sums(
    stats: Tensor, of_q: Optional[Tensor], of_k: Optional[Tensor], sinks: Optional[Tensor],
    at: Optional[Tensor] = None,
) -> Tensor:  # fmt: skip
    """The log-sum-exp, of which kernels need not write the rows that see nothing: there it is that of the sink."""
    beyond = dead(of_q, of_k, stats.shape[2] if at is None else at)
    return stats if beyond is None else of_sinks(stats, beyond, None if sinks is None else sinks.reshape(1, -1, 1))


def of_sinks(stats: Tensor, unseen: Tensor, sinks: Optional[Tensor]) -> Tensor:
    """The log-sum-exp with what it is in rows that see nothing: the sink, laid out as it is, or minus infinity."""
    alone = stats.new_full((), -torch.inf) if sinks is None else sinks.to(stats.dtype)
    return torch.where(unseen.squeeze(-1), alone, stats)


class Padded(torch.autograd.Function):
    """The tensor itself, whose gradient is zero in rows of padding, where kernels need not write."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor, padding):
        return tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, gradient):
        (padding,) = ctx.saved_tensors
        return gradient.masked_fill(padding, 0), None


def padded(tensor: Tensor, given: Optional[Tensor], at: Optional[Tensor] = None) -> Tensor:
    """A tensor with zeros for its gradient beyond the lengths; `at` has the positions of its rows, if they are others."""
    if given is None or not (torch.is_grad_enabled() and tensor.requires_grad):
        return tensor
    made: Tensor = Padded.apply(tensor, rows(given, _positions(tensor.shape[2] if at is None else at, given)))
    return made
