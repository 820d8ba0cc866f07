"""Process groups as ranks of the library, and the attentions that they have prepared."""

from __future__ import annotations

import os
import socket
from collections import OrderedDict
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from .._attention import Attention
from .._errors import ArgumentError, Error
from .._ranks import Communicator, Rank, meeting, of_sharding
from ._context import context, on_cpu
from ._exchange import group_of
from ._fake import BETWEEN
from ._spec import described

#: Most attentions that a group keeps: each has memory for what it gathers.
_MOST = 64
_links: dict = {}


class RankLink:
    """A process group that has met in the library, and what it has prepared, the last used at the end."""

    def __init__(self, key: tuple, communicator: Communicator):
        self.key, self.communicator = key, communicator
        self.kept: OrderedDict[tuple, SharedAttention] = OrderedDict()

    def lost(self, error: Error) -> None:
        """Ranks that do not come together meet anew at the next call, as all of them hear of it."""
        if not of_sharding(error):
            _links.pop(self.key, None)


def link(group: Any, device: torch.device) -> RankLink:
    """The ranks of a group, which meet in its first call."""
    import torch.distributed as dist

    group, ranks, rank = group_of(group)
    group = dist.group.WORLD if group is None else group
    if device.type == "cpu" and not on_cpu():
        raise ArgumentError("q is on the CPU; move it to a GPU, or for tests call qkvault.torch.configure(cpu=True)")
    number = None if device.type == "cpu" else device.index
    key = (group, number, context())
    found = _links.get(key)
    if found is None:
        for old in [other for other in _links if other[:2] == key[:2]]:  # Of a context before configure().
            del _links[old]
        hosts: list = [None] * ranks
        dist.all_gather_object(hosts, socket.gethostname(), group=group)
        first = dist.get_global_rank(group, 0)
        place = [meeting(_address(first, hosts)) if rank == 0 else None]
        dist.broadcast_object_list(place, src=first, group=group)
        assert place[0] is not None
        made = Communicator(context(), rank, ranks, place[0], device=number, deadline=_deadline(group, device))
        found = _links[key] = RankLink(key, made)
    return found


def _deadline(group: Any, device: torch.device) -> float:
    """Seconds that ranks wait for each other: the timeout of the group."""
    try:
        return group._get_backend(device).options._timeout.total_seconds()
    except (AttributeError, RuntimeError):
        return 300.0


def _address(first: int, hosts: list) -> str:
    """The address of a group's first rank: of the launcher where that is rank 0 of all."""
    if len(set(hosts)) == 1:
        return "127.0.0.1"
    launcher = os.environ.get("MASTER_ADDR")
    return launcher if launcher and first == 0 else socket.gethostbyname(hosts[0])


class SharedAttention:
    """One description on this rank: its forward, and its backward as soon as a gradient is asked for."""

    def __init__(self, link: RankLink, forward: Attention, scheme: str, order: str, choices: dict):
        self.link, self._forward, self._sharding, self._choices = link, forward, (scheme, order), choices
        self.forward = Rank(link.communicator, forward, *self._sharding)
        self._backward: Optional[Rank] = None

    @property
    def backward(self) -> Rank:
        if self._backward is None:
            self._backward = Rank(self.link.communicator, self._forward.backward(**self._choices), *self._sharding)
        return self._backward

    def run(self, rank: Rank, given: dict, numbers: dict, lengths: Optional[tuple]) -> dict:
        """The outputs of a run, by name, from its inputs."""
        if lengths is not None:
            rank.set_lengths(*lengths)
        device = given["q"].device
        tensors, made = {}, {}
        for own in rank.operands:
            name = own.name or own.role
            if own.output:
                tensors[name] = made[name] = torch.empty_strided(
                    own.dims, own.strides, dtype=_DTYPES[own.dtype], device=device)
            elif not own.constant:
                tensors[name] = _laid_out(given[name], own.strides)
        stream = 0 if device.type == "cpu" else torch.cuda.current_stream(device).cuda_stream
        rank.run({name: tensor.data_ptr() for name, tensor in tensors.items()}, numbers, stream)
        return made

    def own(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of a further tensor."""
        for place, own in enumerate(self.forward.operands):
            if name == (own.name or own.role):
                cuts = [tuple(slice(at, at + n) for at, n in zip(start, dims))
                        for start, _, dims in self.forward.parts(place)]
                return torch.cat([whole[cut] for cut in cuts], 2)
        return whole


_DTYPES = {
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "i32": torch.int32, "i64": torch.int64,
    "u8": torch.uint8,
}  # fmt: skip


def _laid_out(tensor: Tensor, strides: tuple) -> Tensor:
    """The tensor in the strides of a rank's memory, and where kernels read 16 bytes at once."""
    same = all(n == 1 or has == wanted for n, has, wanted in zip(tensor.shape, tensor.stride(), strides))
    if same and tensor.data_ptr() % 16 == 0:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def shared(of: RankLink, spec: str, parts: list[Tensor], stats: bool, scheme: str, order: str) -> SharedAttention:
    """The attention of a specification over the whole of what ranks have such parts of."""
    layouts = tuple((part.dtype, part.shape, part.stride(1) <= part.stride(2)) for part in parts)
    key = (spec, layouts, stats, scheme, order)
    found = of.kept.get(key)
    if found is None:
        lines = spec.split(BETWEEN)
        choices = {"deterministic": "deterministic: yes" in lines, "d_sink": "d_sink: yes" in lines}
        q, k, v = (_whole(*layout, of.communicator.ranks) for layout in layouts)
        text = described(spec, q, k, v, stats)
        found = told(of, lambda: SharedAttention(of, Attention(text), scheme, order, choices))
        of.kept[key] = found
        if len(of.kept) > _MOST:
            of.kept.popitem(last=False)
    of.kept.move_to_end(key)
    return found


def _whole(dtype: torch.dtype, part: tuple, heads_inside: bool, ranks: int) -> Tensor:
    """A whole tensor without memory."""
    b, h, s, d = part
    if heads_inside:
        return torch.empty((b, ranks * s, h, d), dtype=dtype, device="meta").transpose(1, 2)
    return torch.empty((b, h, ranks * s, d), dtype=dtype, device="meta")


def told(of: RankLink, make: Callable) -> Any:
    """What `make` gives. After an error of ranks the group meets anew."""
    try:
        return make()
    except Error as error:
        of.lost(error)
        raise
