"""The keys that windows see: each rank is sent what its queries see of its neighbours' chunks, and no more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._sequence import Piece, Seen, parts_of
from ._exchange import group_of


def _swapped(sent: list[list[Tensor]], found: list[list[Tensor]], like: Tensor, group: Any) -> None:
    """Sends tensors to each rank, and writes what each rank sends over the tensors for it. None is for this rank."""
    import torch.distributed as dist

    sizes = [[sum(tensor.numel() for tensor in one) for one in side] for side in (found, sent)]
    flat = torch.cat([tensor.reshape(-1) for one in sent for tensor in one] or [like.new_empty(0)])
    got = like.new_empty(sum(sizes[0]))
    dist.all_to_all_single(got, flat, *sizes, group=group)
    places = [tensor for one in found for tensor in one]
    for place, rows in zip(places, got.split([place.numel() for place in places])):
        place.copy_(rows.view(place.shape))


class Halo(torch.autograd.Function):
    """The keys for each of a rank's attentions, zeros where none of its queries sees. Gradients are added in float32
    in the order of the ranks that saw."""

    @staticmethod
    def forward(ctx, part, dim, group, order, seen: Seen, pieces: list[Piece]):
        group, ranks, rank = group_of(group)
        size = part.shape[dim] // parts_of(order)
        ctx.given = (dim, group, ranks, rank, size, pieces, part.dtype)
        shape = list(part.shape)
        shape[dim] = seen.count
        keys = [part.new_zeros(shape) for _ in range(parts_of(order))]
        sent, found = ([[] for _ in range(ranks)] for _ in range(2))
        for piece in pieces:
            rows = piece.end - piece.begin
            if piece.to == rank:
                own = keys[piece.launch].narrow(dim, piece.at, rows)
                if piece.source == rank:
                    own.copy_(part.narrow(dim, piece.slot * size + piece.begin, rows))
                else:
                    found[piece.source].append(own)
            elif piece.source == rank:
                sent[piece.to].append(part.narrow(dim, piece.slot * size + piece.begin, rows))
        _swapped(sent, found, part, group)
        ctx.set_materialize_grads(False)
        return tuple(keys)

    @staticmethod
    def backward(ctx, *gradients):
        dim, group, ranks, rank, size, pieces, dtype = ctx.given
        like = next(gradient for gradient in gradients if gradient is not None)
        shape = list(like.shape)
        shape[dim] = size * len(gradients)
        total = like.new_zeros(shape, dtype=torch.float32)
        sent, found = ([[] for _ in range(ranks)] for _ in range(2))
        terms = []
        for piece in pieces:
            rows = piece.end - piece.begin
            if rank not in (piece.to, piece.source):
                continue
            term = None
            if piece.to == rank:
                given = gradients[piece.launch]
                term = total.new_zeros(()) if given is None else given.narrow(dim, piece.at, rows).float()
            if piece.source == rank:
                own = total.narrow(dim, piece.slot * size + piece.begin, rows)
                if term is None:
                    term = torch.empty_like(own, memory_format=torch.contiguous_format)
                    found[piece.to].append(term)
                terms.append((own, term))
            else:
                assert term is not None
                sent[piece.source].append(term.expand(*shape[:dim], rows, *shape[dim + 1:]))
        _swapped(sent, found, total, group)
        for own, term in terms:
            own.add_(term)
        return total.to(dtype), None, None, None, None, None
