"""Sequences one after another, at rows and with lengths that a launch reads.

FlashAttention-4 itself brings the rows behind a sequence too and multiplies them by 0, which leaves what is no number.
Here every tensor map has two dims more, by which a copy ends where its sequence ends, and brings zeros from there on
(`quack.copy_utils.create_ragged_tensor_for_tma` says how). A map so made has no lower end, so a tile of queries that
sees no key looks at the first tile of keys, which its mask hides, and not at the one before it.

Keys and values in pages may have tables of their own: the kernels' one table has the page of the keys and the page of
the values beside each other, for each page of a sequence (`pages.cu`).
"""

import contextlib

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync
from flash_attn.cute import flash_fwd_sm90, utils
from flash_attn.cute.block_info import BlockInfo
from flash_attn.cute.paged_kv import PagedKVManager
from flash_attn.cute.seqlen_info import SeqlenInfoQK
from quack import copy_utils


@cute.jit
def pages_of_rows(self, n_block: cutlass.Int32):
    """For each row that a thread finds: which page of the sequence has it, -1 behind its end, and the row there."""
    beside, threads = self.gmem_threads_per_row, self.num_threads
    first = self.thread_idx % beside * (threads // beside) + self.thread_idx // beside
    for i in cutlass.range(self.page_entry_per_thread, unroll=1):
        row = first + i * threads
        at = n_block * self.n_block_size + row
        page, offset = divmod(at, self.page_size_divmod)
        there = row < self.n_block_size and at < self.seqlen_k
        self.tPrPage[i] = page if there else -1
        self.tPrPageOffset[i] = offset


@cute.jit
def addresses_of_rows(self, K_or_V: str, d_offset: int = 0):
    """The addresses of these rows among keys or values. Behind the end they are those of page 0, and no copy reads it."""
    found = cute.make_rmem_tensor((self.page_entry_per_thread,), cutlass.Int64)
    pool = self.mK_paged if cutlass.const_expr(K_or_V == "K") else self.mV_paged
    which = 0 if cutlass.const_expr(K_or_V == "K") else 1
    for i in cutlass.range(self.page_entry_per_thread, unroll=1):
        at = self.tPrPage[i]
        page = self.mPageTable[2 * at + which] if at >= 0 else 0
        found[i] = utils.elem_pointer(pool, (self.tPrPageOffset[i], d_offset, page)).toint()
    return found


@contextlib.contextmanager
def sequences(packed):
    """Changes what the kernels do while they are compiled, if sequences lie one after another."""
    if not packed:
        yield
        return
    extended = copy_utils.create_ragged_tensor_for_tma
    atom, atom_of_groups = cpasync.make_tiled_tma_atom, flash_fwd_sm90.make_packgqa_tiled_tma_atom
    of_queries, of_keys = SeqlenInfoQK.offset_batch_Q, SeqlenInfoQK.offset_batch_K
    tiles = BlockInfo.get_n_block_min_max

    def ends(tensor, offset, length, dim=0):
        return copy_utils.offset_ragged_tensor(tensor, offset, length, ragged_dim=dim, ptr_shift=False)

    def queries(self, tensor, *args, **kwargs):
        if cute.rank(tensor) != 5:
            return of_queries(self, tensor, *args, **kwargs)
        if cute.rank(tensor.shape[0]) == 1:
            return ends(tensor, self.offset_q, self.seqlen_q)
        # Rows of all heads of a group: the second part of the first dim is the sequence.
        parts = tensor[((None, None),) + (None,) * 4]
        return cute.group_modes(ends(parts, self.offset_q, self.seqlen_q, dim=1), 0, 2)

    def keys(self, tensor, *args, **kwargs):
        if cute.rank(tensor) == 5:
            return ends(tensor, self.offset_k, self.seqlen_k)
        return of_keys(self, tensor, *args, **kwargs)

    def at_least_one(self, *args, **kwargs):
        first, end = tiles(self, *args, **kwargs)
        return first, cutlass.max(end, 1)

    def ragged_atom(op, tensor, *args, **kwargs):
        grouped = cute.rank(tensor.shape[0]) > 1
        return atom(op, tensor if grouped else extended(tensor, ragged_dim=0, ptr_shift=False), *args, **kwargs)

    def ragged_atom_of_groups(op, tensor, *args, **kwargs):
        return atom_of_groups(op, extended(tensor, ragged_dim=0, ptr_shift=False), *args, **kwargs)

    changed = [
        (cpasync, "make_tiled_tma_atom", ragged_atom),
        (flash_fwd_sm90, "make_packgqa_tiled_tma_atom", ragged_atom_of_groups),
        (copy_utils, "create_ragged_tensor_for_tma", lambda tensor, **_: tensor),
        (SeqlenInfoQK, "offset_batch_Q", queries),
        (SeqlenInfoQK, "offset_batch_K", keys),
        (BlockInfo, "get_n_block_min_max", at_least_one),
        (PagedKVManager, "load_page_table", pages_of_rows),
        (PagedKVManager, "compute_X_ptr", addresses_of_rows),
    ]
    before = [getattr(owner, name) for owner, name, _ in changed]
    for owner, name, value in changed:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(changed, before):
            setattr(owner, name, value)
