"""Tensors that are distributed over a mesh of devices (DTensor): batch and heads may be sharded, each part computes."""

from __future__ import annotations

import re
from typing import Any

import torch

from .._errors import ArgumentError
from ._fake import BETWEEN


def check(q: Any, extra: list, spec: str) -> None:
    """Raises for distributed tensors with further ones, for which there is no rule, and for functions of an axis that
    is sharded. (The rules are not asked again for another specification, so they cannot tell.)"""
    placements = getattr(q, "placements", None)
    if placements is None or torch.compiler.is_compiling():
        return
    if extra:
        raise ArgumentError(
            "q is a DTensor, and this attention has further tensors, such as a bias, sinks or lengths, whose parts are "
            "not known; call it inside of torch.distributed.tensor.experimental.local_map"
        )
    read = " ".join(line for line in spec.split(BETWEEN) if line.startswith(("score_mod:", "mask_mod:")))
    for axis, word in enumerate(("batch", "head")):
        if re.search(rf"\b{word}\b", read) and any(place.is_shard(axis) for place in placements):
            raise ArgumentError(
                f"a modification reads the {word}, over which q is sharded, and each part counts from 0; redistribute "
                f"q, k and v over another axis, or call it inside of local_map with the part's own offset"
            )


def _axes(q: Any, k: Any) -> list[int]:
    """The axes that may be sharded: heads only if they go into equal parts."""
    return [0, 1] if k.shape[1] % max(q.mesh.shape) == 0 else [0]


def _register() -> None:
    try:
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.experimental import register_sharding
    except ImportError:  # A PyTorch without distributed tensors.
        return
    operators = torch.ops.qkvault

    def rules(axes: list[int], outputs: int, inputs: int) -> list:
        each = [Replicate(), *(Shard(axis) for axis in axes)]
        return [([place] * outputs, [place] * inputs + [None] * 3) for place in each]

    @register_sharding(operators.attend.default)
    def attend(q, k, v, extra, spec, numbers):
        return rules(_axes(q, k), 1, 3)

    @register_sharding([operators.forward.default, operators.forward_only.default])
    def forward(q, k, v, extra, spec, numbers):
        return rules(_axes(q, k), 2, 3)

    @register_sharding(operators.backward_plain.default)
    def backward_plain(d_o, q, k, v, o, stats, extra, spec, numbers):
        return rules(_axes(q, k), 3, 6)


_register()
