"""How ranks share a sequence: the rows that each one has, for PyTorch's and JAX's `context_parallel_attention`.

A sequence is cut into chunks of equal size, of which a rank has one (`"contiguous"`) or two (`"zigzag"`).
"""

from __future__ import annotations

from typing import Any

from ._errors import ArgumentError

#: How many chunks of the sequence a rank has.
CHUNKS = {"zigzag": 2, "contiguous": 1}


def parts_of(order: str) -> int:
    """How many chunks of the sequence a rank has."""
    if order not in CHUNKS:
        raise ArgumentError(f"order is {order!r}; it is 'zigzag' (balanced under causal masks) or 'contiguous'")
    return CHUNKS[order]


def chunks_of(rank: Any, ranks: int, order: str) -> list:
    """The numbers of a rank's chunks of the sequence; the rank may be an array."""
    return [rank, 2 * ranks - 1 - rank] if order == "zigzag" else [rank]


def dealt(ranks: int, order: str) -> list[int]:
    """The numbers of all chunks, in the order in which ranks have them."""
    return [chunk for rank in range(ranks) for chunk in chunks_of(rank, ranks, order)]


def places(ranks: int, order: str) -> list[int]:
    """Where among those of all ranks the chunks of the sequence are, in its order."""
    given = dealt(ranks, order)
    return [given.index(chunk) for chunk in range(len(given))]


def even(rows: int, ranks: int, order: str, lengths: str) -> int:
    """How many chunks a whole sequence is cut into."""
    count = parts_of(order) * ranks
    if rows % count:
        raise ArgumentError(
            f"the sequence has {rows} rows, which are not {count} equal chunks for {ranks} ranks; pad it to "
            f"{-(-rows // count) * count}, and give {lengths}"
        )
    return count


def divided(rows: int, order: str, lengths: str) -> int:
    """The rows of a chunk, of those that a rank has."""
    count = parts_of(order)
    if rows % count:
        raise ArgumentError(
            f"a rank has {rows} rows, which are not {count} equal chunks; pad the sequence, and give {lengths}, or use "
            "order='contiguous'"
        )
    return rows // count


def checked(strategy: str, side: str, queries: int, keys: int, prefixes: int) -> None:
    """Raises what is wrong for ranks, whatever else a call has."""
    if side != "none" and queries != keys:
        raise ArgumentError(
            f"a rank has {queries} queries and {keys} keys; under is_causal and window it has as many of both"
        )
    if strategy not in ("gather", "heads"):
        raise ArgumentError(f"strategy is {strategy!r}; it is 'gather' or 'heads'")
    if isinstance(prefixes, bool) or not isinstance(prefixes, int) or prefixes < 1:
        raise ArgumentError(f"prefixes is {prefixes!r}; give how many lengths of keys chunks may have, 1 or more")


def checked_rows(name: str, rows: int, instead: str) -> None:
    """Raises for a tensor that may have a rank's rows or one for all queries, where both are one."""
    if rows == 1:
        raise ArgumentError(f"a rank has one row, and it cannot be told whether {name} is over queries; give {instead}")


def checked_exchange(ranks: int, heads: int, tensors: dict[str, Any]) -> None:
    """Raises what is wrong for an exchange of rows for heads of queries; of keys, the schedule knows."""
    if heads % ranks:
        raise ArgumentError(f"q has {heads} heads, which {ranks} ranks do not share evenly; use strategy='gather'")
    for name, given in tensors.items():
        if given is not None:
            raise ArgumentError(f"{name} is not exchanged for heads; give score_mod or mask_mod, or strategy='gather'")
