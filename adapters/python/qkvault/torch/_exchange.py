"""Tensors over a sequence that ranks share: how it lies, and what travels, with gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._errors import ArgumentError
from .._sequence import chunks_of, dealt, even, parts_of, places

def group_of(group: Any) -> tuple:
    """The process group, how many ranks it has, and which one this is."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise ArgumentError(
            "torch.distributed is not initialized; call torch.distributed.init_process_group, and start one process "
            "for each GPU: torchrun --nproc-per-node=2 program.py"
        )
    if hasattr(group, "get_group"):  # A mesh of one dim.
        if group.ndim != 1:
            raise ArgumentError(f"group is a mesh of {group.ndim} dims; give one of them: mesh['cp']")
        group = group.get_group()
    rank = dist.get_rank(group)
    if rank < 0:
        raise ArgumentError("this process is no member of group; call the attention on its ranks alone")
    return group, dist.get_world_size(group), rank


def context_parallel_shard(tensor: Tensor, dim: int, *, group: Any = None, order: str = "zigzag") -> Tensor:
    """This rank's part of a tensor over the whole sequence, which is its dim `dim`: of `2 * ranks` chunks, the chunks
    `rank` and `2 * ranks - 1 - rank`, or with `order="contiguous"` one of `ranks` chunks. Positions are made so too:
    `context_parallel_shard(torch.arange(length), 0)`. The part lies in memory as the whole does: rows with all heads
    side by side are sent as they are."""
    _, ranks, rank = group_of(group)
    count = even(tensor.shape[dim], ranks, order, "kv_lengths")
    axes = list(range(tensor.dim()))
    if all(tensor.stride()) and tensor.stride(-1) == 1:  # Expanded and strange ones lie in the order of dims.
        axes.sort(key=lambda axis: -tensor.stride(axis))
    within = axes.index(dim % tensor.dim())
    chunks = tensor.permute(axes).chunk(count, within)
    part = torch.cat([chunks[at] for at in chunks_of(rank, ranks, order)], within)
    return part.permute([axes.index(axis) for axis in range(tensor.dim())])


def context_parallel_unshard(tensor: Tensor, dim: int, *, group: Any = None, order: str = "zigzag") -> Tensor:
    """The tensor over the whole sequence on every rank, of the parts of all ranks. It has gradients."""
    parts_of(order)
    whole: Tensor = Gather.apply(tensor, dim % tensor.dim(), group, order)
    return whole


def _joined(parts: list, dim: int, order: str) -> Tensor:
    """Parts of ranks in the order of the sequence."""
    chunks = [chunk for part in parts for chunk in part.chunk(parts_of(order), dim)]
    return torch.cat([chunks[at] for at in places(len(parts), order)], dim)


def _parted(whole: Tensor, ranks: int, dim: int, order: str) -> Tensor:
    """A whole as a stack of the parts of ranks, without gaps."""
    chunks, given = whole.chunk(parts_of(order) * ranks, dim), dealt(ranks, order)
    own = parts_of(order)
    return torch.stack([torch.cat([chunks[at] for at in given[n:n + own]], dim) for n in range(0, len(given), own)])


class Gather(torch.autograd.Function):
    """The whole sequence. Gradients of all ranks are added in float32, in the order of ranks."""

    @staticmethod
    def forward(ctx, part, dim, group, order):
        import torch.distributed as dist

        group, ranks, _ = group_of(group)
        ctx.given = (dim, group, order, ranks, part.dtype)
        stacked = part.new_empty((ranks, *part.shape))
        dist.all_gather_into_tensor(stacked.view(-1), part.contiguous().view(-1), group=group)
        return _joined(list(stacked.unbind(0)), dim, order)

    @staticmethod
    def backward(ctx, gradient):
        import torch.distributed as dist

        dim, group, order, ranks, dtype = ctx.given
        sent = _parted(gradient.float(), ranks, dim, order)
        parts = torch.empty_like(sent)
        dist.all_to_all_single(parts, sent, group=group)
        own = parts[0]
        for part in parts[1:]:
            own = own + part
        return own.to(dtype), None, None, None
