"""Sequences one after another, at rows and with lengths that a launch reads.

FlashAttention-4 itself brings the rows behind a sequence too and multiplies them by 0, which leaves what is no number.
Here every tensor map has two dims more, by which a copy ends where its sequence ends, and brings zeros from there on
(`quack.copy_utils.create_ragged_tensor_for_tma` says how). A map so made has no lower end, so a tile of queries that
sees no key looks at the first tile of keys, which its mask hides, and not at the one before it.
"""

import contextlib

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync
from flash_attn.cute.block_info import BlockInfo
from flash_attn.cute.seqlen_info import SeqlenInfoQK
from quack import copy_utils


@contextlib.contextmanager
def sequences(packed):
    """Changes what the kernels do while they are compiled, if sequences lie one after another."""
    if not packed:
        yield
        return
    extended = copy_utils.create_ragged_tensor_for_tma
    atom = cpasync.make_tiled_tma_atom
    of_queries, of_keys = SeqlenInfoQK.offset_batch_Q, SeqlenInfoQK.offset_batch_K
    tiles = BlockInfo.get_n_block_min_max

    def ends(tensor, offset, length):
        return copy_utils.offset_ragged_tensor(tensor, offset, length, ragged_dim=0, ptr_shift=False)

    def queries(self, tensor, *args, **kwargs):
        if cute.rank(tensor) == 5:
            return ends(tensor, self.offset_q, self.seqlen_q)
        return of_queries(self, tensor, *args, **kwargs)

    def keys(self, tensor, *args, **kwargs):
        if cute.rank(tensor) == 5:
            return ends(tensor, self.offset_k, self.seqlen_k)
        return of_keys(self, tensor, *args, **kwargs)

    def at_least_one(self, *args, **kwargs):
        first, end = tiles(self, *args, **kwargs)
        return first, cutlass.max(end, 1)

    def ragged_atom(op, tensor, *args, **kwargs):
        return atom(op, extended(tensor, ragged_dim=0, ptr_shift=False), *args, **kwargs)

    changed = [
        (cpasync, "make_tiled_tma_atom", ragged_atom),
        (copy_utils, "create_ragged_tensor_for_tma", lambda tensor, **_: tensor),
        (SeqlenInfoQK, "offset_batch_Q", queries),
        (SeqlenInfoQK, "offset_batch_K", keys),
        (BlockInfo, "get_n_block_min_max", at_least_one),
    ]
    before = [getattr(owner, name) for owner, name, _ in changed]
    for owner, name, value in changed:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(changed, before):
            setattr(owner, name, value)
