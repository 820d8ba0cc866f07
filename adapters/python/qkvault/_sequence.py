"""How ranks share a sequence: the rows that each one has, the keys that its queries see, and what of them travels.

It knows positions alone, no arrays, so that PyTorch's and JAX's `context_parallel_attention` share it. A sequence is
cut into chunks of equal size, of which a rank has one (`"contiguous"`) or two (`"zigzag"`), and computes an attention
for each. Positions count in the whole sequence, in rows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

from ._errors import ArgumentError

#: How many chunks of the sequence a rank has.
CHUNKS = {"zigzag": 2, "contiguous": 1}

#: Keys that a query sees before its own position and behind it; None for all of them.
Sides = tuple[Optional[int], Optional[int]]


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


def checked_heads(ranks: int, heads: dict[str, int], tensors: dict[str, Any]) -> None:
    """Raises what is wrong for an exchange of rows for heads."""
    for name, count in heads.items():
        if count % ranks:
            raise ArgumentError(
                f"{name} has {count} heads, which {ranks} ranks do not share evenly; use strategy='gather', or repeat "
                "the heads of k and v"
            )
    for name, given in tensors.items():
        if given is not None:
            raise ArgumentError(f"{name} is not exchanged for heads; give score_mod or mask_mod, or strategy='gather'")


def sides(band: str) -> Sides:
    """The sides of a band in the text form, which counts the query itself to those before it."""
    words = band.split()
    after = {word: int(words[at + 1]) for at, word in enumerate(words) if word in ("window", "left", "right")}
    left = after.get("window", after.get("left"))
    return None if left is None else left - 1, 0 if "causal" in words else after.get("right")


class Seen(NamedTuple):
    """The keys that the attentions of some chunks are given: `count` of them, from `start(first)` on."""

    #: Keys before the first query, if a chunk has its own part of the sequence; else where that part begins.
    before: Optional[int]
    begin: int
    count: int
    keys: int

    def start(self, first: Any, clip: Any = lambda x, least, most: min(max(x, least), most)) -> Any:
        """The first key for queries from `first` on."""
        return self.begin if self.before is None else clip(first - self.before, 0, self.keys - self.count)


def seen(around: Sides, size: int, keys: int, chunks: list[int], prefixes: int) -> Seen:
    """The keys that chunks of `size` queries are given, which have one plan for all of them.

    Under a window each has as many as one sees. Without a left side it is the beginning of the sequence, and without a
    right side its end, in steps of which the sequence has about `prefixes`: so many plans serve all ranks.
    """
    left, right = around
    if left is not None and right is not None:
        return Seen(left, 0, min(keys, left + size + right), keys)
    step = size * math.ceil(keys / size / prefixes)
    end = keys if right is None else min(keys, (max(chunks) + 1) * size + right)
    begin = 0 if left is None else max(0, min(chunks) * size - left)
    end, begin = min(keys, math.ceil(end / step) * step), begin // step * step
    return Seen(None, begin, end - begin, keys)


class Piece(NamedTuple):
    """Rows that lie in one chunk of the rank `source`, and that an attention of the rank `to` is given."""

    source: int
    #: Which of the source's chunks it is, and the rows in it.
    slot: int
    begin: int
    end: int
    to: int
    #: Which of the rank's attentions it is, and where among its keys the rows begin.
    launch: int
    at: int


def halo(around: Sides, size: int, ranks: int, order: str) -> Optional[list[Piece]]:
    """What each attention sees of every chunk, in the order of ranks; None if to gather all keys moves no more."""
    count = parts_of(order) * ranks
    left, right = around
    if left is None or right is None:
        return None
    given, found = seen(around, size, count * size, list(range(count)), 1), []
    lies = {chunk: divmod(place, parts_of(order)) for chunk, place in enumerate(places(ranks, order))}
    for chunk in dealt(ranks, order):
        to, launch = lies[chunk]
        first = chunk * size
        begin, end = max(0, first - left), min(count * size, first + size + right)
        for other in range(begin // size, (end - 1) // size + 1):
            source, slot = lies[other]
            rows = max(begin, other * size), min(end, (other + 1) * size)
            at = rows[0] - given.start(first)
            found.append(Piece(source, slot, rows[0] - other * size, rows[1] - other * size, to, launch, at))
    return found if moved(found) < ranks * (ranks - 1) * size * parts_of(order) else None


def moved(pieces: list[Piece]) -> int:
    """How many rows go from one rank to another."""
    return sum(piece.end - piece.begin for piece in pieces if piece.source != piece.to)
