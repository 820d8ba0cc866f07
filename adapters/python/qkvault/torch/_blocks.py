"""FlexAttention's block masks: lists of blocks, and a predicate for those of them that are partly seen.

A key is seen if its block is in the full list, or if it is in the other list and `mask_mod` says so, as in
FlexAttention's kernels. Where the lists say what `mask_mod` says everywhere, as those of `create_block_mask` do, the
predicate alone is the mask; that is looked at once for each block mask. Otherwise the lists become tables that the
mask reads.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from .._errors import ArgumentError
from ._spec import placed

#: Scores that are looked at in one piece.
_PIECE = 1 << 26
_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


class _Looked:
    """What was found of a block mask, and of what: its lists, its predicate, and what this captured."""

    def __init__(self, block_mask: Any, dims: tuple, device: torch.device):
        self.of = (block_mask.mask_mod, dims, device, block_mask.seq_lengths, block_mask.BLOCK_SIZE)
        self.lists = [getattr(block_mask, name) for name in _LISTS]
        self.cells: list = []
        held = _held(block_mask.mask_mod, self.cells)
        self.versions = [(t, _version(t)) for t in (*self.lists, *held) if t is not None]
        self.found: Optional[Callable] = None

    def still(self, block_mask: Any, dims: tuple, device: torch.device) -> bool:
        """Whether nothing of it has changed."""
        counts, indices, full_counts, full_indices = self.lists
        return (
            block_mask.mask_mod is self.of[0]
            and self.of[1:] == (dims, device, block_mask.seq_lengths, block_mask.BLOCK_SIZE)
            and block_mask.kv_num_blocks is counts and block_mask.kv_indices is indices
            and block_mask.full_kv_num_blocks is full_counts and block_mask.full_kv_indices is full_indices
            and all([_version(t) == version for t, version in self.versions])
            and all([cell.cell_contents is content for cell, content in self.cells])
        )  # fmt: skip


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def predicate(block_mask: Any, dims: tuple, device: torch.device) -> Optional[Callable]:
    """The mask that a block mask is; None if everything is seen."""
    compiling = torch.compiler.is_compiling()
    looked = None if compiling else getattr(block_mask, "_qkvault_looked", None)
    if looked is not None and looked.still(block_mask, dims, device):
        kept: Optional[Callable] = looked.found
        return kept
    found = getattr(block_mask, "mask_mod", None)
    if found is None:
        raise ArgumentError(f"block_mask is {type(block_mask).__name__}; give one of create_block_mask")
    name = getattr(found, "__name__", "")
    if name == "_sliced_mask_mod_error":
        raise ArgumentError(
            "block_mask is a part of another one, whose mask_mod counts from the first query; set its own: "
            "block_mask.mask_mod = lambda b, h, q_idx, kv_idx: mask_mod(b, h, q_idx + first, kv_idx)"
        )
    size = [min(block, extent) for block, extent in zip(block_mask.BLOCK_SIZE, dims[2:])]
    if name == "noop_mask" and block_mask.BLOCK_SIZE[0] == block_mask.BLOCK_SIZE[1] >= 1 << 30:
        return None  # FlexAttention's own, for calls without a mask.
    made = tuple(block_mask.seq_lengths)
    if made != tuple(dims[2:]):
        fits = all(n % block == 0 and n <= before for n, block, before in zip(dims[2:], block_mask.BLOCK_SIZE, made))
        adjust = f", or adjust it: block_mask._adjust({dims[2]}, {dims[3]})" if fits else ""
        raise ArgumentError(
            f"block_mask is for {made[0]} queries and {made[1]} keys, and there are {dims[2]} and {dims[3]}; make it "
            f"with create_block_mask(..., {dims[2]}, {dims[3]}){adjust}"
        )
    counts = block_mask.kv_num_blocks
    if "meta" not in (device.type, counts.device.type):  # Such calls are asked about, and not run.
        placed(counts, device, "block_mask")
    blocks = tuple(-(-extent // block) for extent, block in zip(dims[2:], size))
    lead = tuple(counts.shape[:-1])
    lead = (1,) * (2 - len(lead)) + lead
    if counts.shape[-1] != blocks[0] or len(lead) != 2 or any(n not in (1, of) for n, of in zip(lead, dims)):
        raise ArgumentError(
            f"block_mask has lists of dims {list(counts.shape)}, and {dims[0]} sequences of {dims[1]} heads have "
            f"{blocks[0]} blocks of queries; make it with create_block_mask(mask_mod, B, H, ...), where B and H are "
            "these numbers or None"
        )
    plain = None if name == "noop_mask" else found
    if compiling:
        if plain is None:
            return _listed(block_mask, None, size, blocks, lead)
        agree = _same(found, _tables(block_mask, blocks, lead), size, dims, lead, _points(size, dims, device))
        torch._assert_async(agree, _DIFFER)
        return plain
    looked = _Looked(block_mask, dims, device)
    with torch.inference_mode(False), torch.no_grad():
        try:
            agrees = _agrees(block_mask, found, size, blocks, dims, lead, counts.device)
        except ArgumentError:
            raise
        except Exception:  # What is wrong with the predicate shows where it is traced, with its line.
            agrees = False
        looked.found = plain if agrees else _listed(block_mask, plain, size, blocks, lead)
    block_mask._qkvault_looked = looked
    return looked.found


_DIFFER = (
    "the lists of a block_mask say something else than its mask_mod; make it with create_block_mask, or call the "
    "attention outside of what is compiled, where lists are read"
)


def _table(counts: Tensor, indices: Tensor, blocks: tuple, lead: tuple) -> Tensor:
    """Which blocks are in a list: (batch, head, block of queries, block of keys)."""
    indices = indices.reshape(*lead, blocks[0], indices.shape[-1]).to(torch.int64)
    given = torch.arange(indices.shape[-1], device=counts.device) < counts.reshape(*lead, blocks[0], 1)
    known = torch.where(given & (indices < blocks[1]), indices, blocks[1])
    table = torch.zeros((*lead, blocks[0], blocks[1] + 1), dtype=torch.bool, device=counts.device)
    return table.scatter(-1, known, True)[..., :-1]


def _tables(block_mask: Any, blocks: tuple, lead: tuple) -> tuple[Tensor, Tensor]:
    """The blocks of which `mask_mod` decides, and those that are full."""
    listed = _table(block_mask.kv_num_blocks, block_mask.kv_indices, blocks, lead)
    if block_mask.full_kv_num_blocks is None:
        return listed, torch.zeros_like(listed)
    return listed, _table(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, blocks, lead)


def _listed(block_mask: Any, mask_mod: Optional[Callable], size: list, blocks: tuple, lead: tuple) -> Callable:
    """The mask that lists and a predicate make."""
    # Without axes of one: PyTorch 2.10 takes no index of integers beside tensors in what is compiled.
    listed, full = (table.reshape([extent for extent in lead if extent > 1] + list(blocks))
                    for table in _tables(block_mask, blocks, lead))
    every = listed | full
    rows, keys = size
    batches, heads = lead

    def at(table: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        places = (i // rows, j // keys)
        places = (h, *places) if heads > 1 else places
        return table[(b, *places) if batches > 1 else places]

    if mask_mod is None:
        return lambda b, h, q_idx, kv_idx: at(every, b, h, q_idx, kv_idx)
    return lambda b, h, q_idx, kv_idx: (
        at(full, b, h, q_idx, kv_idx) | (at(listed, b, h, q_idx, kv_idx) & mask_mod(b, h, q_idx, kv_idx))
    )


def _points(size: list, dims: tuple, device: torch.device) -> list[Tensor]:
    """Some queries and keys of each block: the first, the last, and two between."""
    found = []
    for block, extent in zip(size, dims[2:]):
        first = torch.arange(0, extent, block, device=device)[:, None]
        within = torch.tensor([0, block // 3, 2 * block // 3, block - 1], device=device)
        found.append((first + within).clamp(max=extent - 1).flatten())
    return found


def _same(mask_mod: Callable, tables: tuple, size: list, dims: tuple, lead: tuple, points: list[Tensor]) -> Tensor:
    """Whether full blocks are seen and blocks in no list are not, at some points."""
    queries, keys = points
    seen = create_mask(
        lambda b, h, i, j: mask_mod(b, h, queries[i], keys[j]), *lead, len(queries), len(keys), device=str(queries.device)
    )
    listed, full = (t[:, :, queries // size[0]][..., keys // size[1]] for t in tables)
    return torch.where(full, seen, ~seen | listed).all()


def _agrees(
    block_mask: Any, mask_mod: Callable, size: list, blocks: tuple, dims: tuple, lead: tuple, device: torch.device
) -> bool:  # fmt: skip
    if device.type == "meta":
        return True
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise ArgumentError("block_mask is new in the capture of a CUDA graph; call the attention once before it")
    tables = _tables(block_mask, blocks, lead)
    step = max(1, _PIECE // (lead[0] * lead[1] * dims[3] * size[0])) * size[0]
    every = torch.arange(dims[3], device=device)
    pieces = (torch.arange(at, min(at + step, dims[2]), device=device) for at in range(0, dims[2], step))
    agrees = bool(torch.stack([_same(mask_mod, tables, size, dims, lead, [rows, every]) for rows in pieces]).all())
    if agrees and lead != tuple(dims[:2]):
        listed, full = (t.expand(*dims[:2], *blocks) for t in tables)
        if not _same(mask_mod, (listed, full), size, dims, tuple(dims[:2]), _points(size, dims, device)):
            raise ArgumentError(
                f"block_mask is for {lead[0]} sequences and {lead[1]} heads, and its mask_mod is another for others; "
                f"make it with create_block_mask(mask_mod, {dims[0]}, {dims[1]}, ...)"
            )
    return agrees


def _held(given: Any, cells: list, depth: int = 4) -> list[Tensor]:
    """The tensors that a function captured, and those that functions which it captured did, with the cells of all."""
    if isinstance(given, Tensor):
        return [given]
    if not depth:
        return []
    if isinstance(given, (tuple, list)):
        return [t for one in given for t in _held(one, cells, depth - 1)]
    own = [(cell, cell.cell_contents) for cell in getattr(given, "__closure__", None) or ()]
    cells += own
    return [t for _, content in own for t in _held(content, cells, depth - 1)]
