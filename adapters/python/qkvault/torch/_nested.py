"""Nested tensors of the jagged layout, as SDPA takes them: sequences behind each other."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._errors import ArgumentError


@torch.compiler.disable(
    reason="attention of nested tensors is called between compiled parts: a plan is for the longest sequence, which a "
    "compiled program does not know; for fullgraph=True, give varlen_attention the most of one sequence"
)
def attention(q: Any, k: Any, v: Any, both: bool, dense: dict[str, Any], options: dict[str, Any]) -> Any:
    """Attention of (batch, head, ragged sequence, head dim), nested as Q is. `dense` are options that only tensors of
    one length have."""
    for name, given in dense.items():
        if given is not None:
            lengths = "the nested tensors' own lengths"
            instead = "mask_mod" if "mask" in name else "score_mod" if name == "bias" else lengths
            raise ArgumentError(
                f"{name} with nested tensors, whose sequences have lengths of their own; give {instead}"
            )
    rows, keys = _packed("q", q), _packed("k", k)
    values = _packed("v", v)
    if k.offsets() is not v.offsets() and not torch.equal(k.offsets(), v.offsets()):
        raise ArgumentError(
            "k and v are nested with other lengths; make v with those of k: "
            "torch.nested.nested_tensor_from_jagged(values, k.offsets())"
        )
    if q.shape[0] != k.shape[0]:
        raise ArgumentError(f"q has {q.shape[0]} sequences and k {k.shape[0]}; give as many of both")
    from ._varlen import varlen_attention

    most_q, most_k = _rounded(q._get_max_seqlen()), _rounded(k._get_max_seqlen())
    count = rows.shape[0]
    rows, keys, values = (_longer(t) for t in (rows, keys, values))
    found = varlen_attention(rows, keys, values, q.offsets(), k.offsets(), most_q, most_k, return_lse=both, **options)
    if not both:
        return _nested(found[:count], q)
    o, lse = found
    return _nested(o[:count], q), _nested(lse[:count], q)


def _packed(name: str, tensor: Any) -> Tensor:
    """The tokens of all sequences: (token, head, head dim)."""
    if not tensor.is_nested:
        raise ArgumentError(
            f"{name} is no nested tensor and another of q, k and v is; give all of them nested, or none"
        )
    if tensor.layout is not torch.jagged:
        raise ArgumentError(
            f"{name} is a nested tensor of the strided layout; give the jagged one: torch.nested.nested_tensor("
            "[t.transpose(0, 1) for t in parts], layout=torch.jagged).transpose(1, 2)"
        )
    if tensor.dim() != 4 or tensor._ragged_idx != 2:
        raise ArgumentError(
            f"{name} has dims {list(tensor.shape)}; give (batch, head, ragged sequence, head dim): a nested tensor of "
            "(batch, ragged sequence, head, head dim), transposed with .transpose(1, 2)"
        )
    if tensor.lengths() is not None:
        raise ArgumentError(
            f"{name} has holes between its sequences, as torch.nested.narrow makes them; give a copy of it"
        )
    packed: Tensor = tensor.transpose(1, 2).values()
    return packed


def _rounded(count: int) -> int:
    """Some more, so that few sizes have plans: eight of each doubling."""
    step = 1 << max(int(count - 1).bit_length() - 4, 4)
    return -(-count // step) * step


def _longer(packed: Tensor) -> Tensor:
    """Tokens with rows of no sequence behind them."""
    more = _rounded(packed.shape[0]) - packed.shape[0]
    return packed if more == 0 else F.pad(packed, (0, 0, 0, 0, 0, more))


def _nested(packed: Tensor, like: Any) -> Tensor:
    """Tokens as a nested tensor that has the sequences of another one."""
    made: Tensor = torch.nested.nested_tensor_from_jagged(
        packed, like.offsets(), min_seqlen=like._maybe_min_seqlen, max_seqlen=like._maybe_max_seqlen
    ).transpose(1, 2)
    return made
