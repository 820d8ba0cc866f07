"""Ranks of one attention over several GPUs: how they meet, and a rank of a description, prepared once."""

from __future__ import annotations

import ctypes
import secrets
import socket
from functools import cached_property
from typing import Mapping, Optional, Sequence

from . import _abi
from ._attention import Attention, Operand, operand
from ._context import Context
from ._errors import Error
from ._library import Handle, call, handle, sized, text
from ._plan import number

SCHEMES = {
    "gather": _abi.SCHEME_GATHER, "heads": _abi.SCHEME_HEADS, "ring": _abi.SCHEME_RING, "decode": _abi.SCHEME_DECODE,
}  # fmt: skip
ORDERS = {"zigzag": _abi.ORDER_ZIGZAG, "contiguous": _abi.ORDER_CONTIGUOUS}


def meeting(address: str) -> tuple[str, int, str]:
    """A place for ranks to meet: address, a port that is free on this machine, and a secret. Rank 0 makes it, and tells
    it to the others over what they have in common already."""
    with socket.socket() as free:
        free.bind(("", 0))
        return address, free.getsockname()[1], secrets.token_hex(32)


class Communicator(Handle):
    """This rank among others. All of them make it at the same time; after an error of ranks, make a new one. With
    `threads`, ranks that are threads of one process copy from GPU to GPU too."""

    _free = "qkv_communicator_free"

    def __init__(
        self, context: Context, rank: int, ranks: int, place: tuple[str, int, str], *, device: Optional[int] = None,
        deadline: float = 300.0, threads: bool = False,
    ):  # fmt: skip
        address, port, secret = place
        world = sized(
            _abi.qkv_world, rank=rank, ranks=ranks, device=_abi.NO_GPU if device is None else device, port=port,
            address=address.encode(), secret=secret.encode(), deadline_ms=int(deadline * 1000), threads=int(threads),
        )
        super().__init__(handle("qkv_communicator_join", context._address, ctypes.byref(world)))
        self.rank, self.ranks, self.device = rank, ranks, device

    def check(self) -> None:
        """Raises what is known of a rank that is lost, without waiting."""
        call("qkv_communicator_check", self._address)


class Rank(Handle):
    """This rank of an attention that all ranks of a communicator compute together."""

    _free = "qkv_rank_free"

    def __init__(self, communicator: Communicator, attention: Attention, scheme: str, order: str, count: int = 0):
        sharding = _abi.qkv_sharding(scheme=SCHEMES[scheme], order=ORDERS[order], number=count)
        super().__init__(
            handle("qkv_rank_prepare", communicator._address, attention._address, ctypes.byref(sharding))
        )
        self.communicator = communicator
        self._lengths: Optional[tuple] = None
        self._names = [own.name or own.role for own in self.operands if not own.constant]
        self._memory = (_abi.qkv_named_buffer * len(self._names))()
        taken = (own for own in self.operands if not own.constant)
        for row, own in zip(self._memory, taken):
            row.name, row.buffer.bytes = own.role.encode(), own.bytes

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The tensors that its runs read and write, as they lie in its memory."""
        count = ctypes.c_size_t()
        call("qkv_rank_operand_count", self._address, ctypes.byref(count))
        return tuple(operand("qkv_rank_operand", self._address, place) for place in range(count.value))

    def parts(self, place: int) -> list[tuple[list[int], list[int], list[int]]]:
        """Which parts of a whole operand it has: where each begins there, where here, and its extents."""
        count = ctypes.c_size_t()
        call("qkv_rank_parts", self._address, place, None, ctypes.byref(count))
        rows = (_abi.qkv_part * count.value)()
        call("qkv_rank_parts", self._address, place, rows, ctypes.byref(count))
        return [(list(row.start), list(row.at), list(row.dims)) for row in rows]

    def set_lengths(self, queries: Sequence[int], keys: Sequence[int]) -> None:
        """Sets the lengths of the whole sequences; if they are other ones, it waits for the last run."""
        given = (tuple(queries), tuple(keys))
        if given != self._lengths:
            rows = ctypes.c_int64 * len(given[0])
            call("qkv_rank_set_lengths", self._address, rows(*given[0]), rows(*given[1]), len(given[0]))
            self._lengths = given

    def run(self, addresses: Mapping[str, int], numbers: Mapping[str, float], stream: int = 0) -> None:
        """Queues a run on a CUDA stream, with the address of each tensor by its name in expressions, or its role."""
        for row, name in zip(self._memory, self._names):
            row.buffer.address = addresses[name]
        rows = (_abi.qkv_named_number * len(numbers))()
        for row, (name, value) in zip(rows, numbers.items()):
            row.name, row.number = name.encode(), number("f32", value)
        args = sized(
            _abi.qkv_rank_args, tensors=self._memory, tensor_count=len(self._memory), scalars=rows,
            scalar_count=len(rows), stream=stream,
        )
        call("qkv_rank_run", self._address, ctypes.byref(args))

    def wait(self, deadline: float) -> None:
        """Waits for the last run; for a rank that is lost no longer than so many seconds."""
        call("qkv_rank_wait", self._address, int(deadline * 1000))

    def explain(self) -> str:
        """What the ranks do, in words."""
        return text("qkv_rank_explain", self._address)


def of_sharding(error: Error) -> bool:
    """Whether an attention cannot be shared so: every rank hears it, and their communicator is as it was."""
    return bool(error.reasons) and all(reason.code.startswith("shard.") for reason in error.reasons)
