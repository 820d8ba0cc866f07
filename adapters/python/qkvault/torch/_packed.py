"""Several sequences in a row: where they end, from what a model tells."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor


#: What a mask is that has a key more with every token, of a cache that grows.
GROWS = object()


class Packed(NamedTuple):
    """Sequences of queries and keys behind each other, rows of a batch too, and the most tokens of one."""

    of_q: Tensor
    of_k: Tensor
    most_q: int
    most_k: int

    def few(self) -> Packed:
        """The same for which few plans are needed, of more sequences, which are empty, and a longer most of one."""
        more = rounded(self.of_q.shape[0] - 1) + 1 - self.of_q.shape[0]
        of_q = torch.cat([self.of_q, self.of_q[-1:].expand(more)])
        of_k = of_q if self.of_k is self.of_q else torch.cat([self.of_k, self.of_k[-1:].expand(more)])
        return Packed(of_q, of_k, rounded(self.most_q), rounded(self.most_k, 64))

    def apart(self, query: Tensor, key: Tensor) -> Tensor:
        """Which keys are of the sequence of a query: (batch, 1, query, key)."""
        of_q, of_k = (
            torch.searchsorted(ends, torch.arange(t.shape[0] * t.shape[2], device=ends.device), right=True)
            .view(t.shape[0], t.shape[2])
            for ends, t in ((self.of_q, query), (self.of_k, key))
        )  # fmt: skip
        return (of_q[:, :, None] == of_k[:, None, :])[:, None]


def rounded(count: int, least: int = 8) -> int:
    """The next power of two: a plan is for sizes, and each batch has others. Kernels stop at the end of a sequence."""
    return max(least, 1 << (count - 1).bit_length())


def begun(begins: Tensor) -> Packed:
    """Sequences that begin at these of (batch, token). It waits for the GPU."""
    flat = begins.flatten().cpu()
    ends = torch.cat([flat.nonzero()[:, 0], torch.tensor([flat.shape[0]], device="cpu")])
    most = int(ends.diff().max())
    ends = ends.to(device=begins.device, dtype=torch.int32)
    return Packed(ends, ends, most, most)


def restarted(position_ids: Any, query: Tensor) -> Optional[Packed]:
    """Sequences whose positions begin anew within a row. It waits for the GPU, once for all layers of a step."""
    if not isinstance(position_ids, Tensor) or position_ids.dim() != 2 or position_ids.shape[1] != query.shape[2]:
        return None
    if recording():
        return None
    version = 0 if position_ids.is_inference() else position_ids._version
    known = getattr(position_ids, "_qkvault_packed", None)
    if known is None or known[0] != (version, query.shape[0]):
        begins = position_ids.diff(prepend=position_ids[:, :1] - 1) < 1
        found = None
        if begins.any():
            begins[:, 0] = True
            found = begun(begins.expand(query.shape[0], -1))
        known = ((version, query.shape[0]), found)
        position_ids._qkvault_packed = known  # type: ignore[attr-defined]
    packed: Optional[Packed] = known[1]
    return packed


def given(kwargs: dict[str, Any], query: Tensor, key: Tensor) -> Optional[Packed]:
    """What FlashAttentionKwargs of transformers tell."""
    words = [kwargs.get(name) for name in ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")]
    if any(word is None for word in words):
        return None
    of_q, of_k, *most = words
    tokens = (query.shape[0] * query.shape[2], key.shape[0] * key.shape[2])
    if torch.compiler.is_compiling():  # A number on the GPU would break the program.
        most = [n if isinstance(one, Tensor) else one for one, n in zip(most, tokens)]
    return Packed(of_q, of_k, int(most[0]), int(most[1]))


def recording() -> bool:
    """Whether a program is traced or a graph is recorded, so that nothing may be read from the GPU."""
    return torch.compiler.is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
