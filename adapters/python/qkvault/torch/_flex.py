"""`flex_attention` inside of what `torch.compile` compiles, also if that was compiled before: its operator of higher
order, redirected while `use()` is on.

Dynamo compiles anew where a global has changed that a program has. In the place of FlexAttention's operator it finds
one of another name here, so that no cache of programs takes one for the other.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.nn.attention import flex_attention as flex

from qkvault_record import Untraceable

from .._errors import ArgumentError, Error
from . import _compiled, _context, _told
from ._attention import attention
from ._operands import same_type

#: What `flex_attention` calls where Dynamo sees it; None if this PyTorch has it elsewhere.
BEFORE = getattr(flex, "flex_attention_hop", None)


class _Flex(HigherOrderOperator):
    """Has FlexAttention's signature and results: O, and Stats with 2 as the base of logarithms."""

    def __init__(self, tell: Callable):
        super().__init__("qkvault_flex_attention", cacheable=True)
        self.tell = tell

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, score_mod: Callable, block_mask: tuple, scale: Any,
        kernel_options: dict, score_mod_other_buffers: tuple = (), mask_mod_other_buffers: tuple = (),
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        captured = (tuple(score_mod_other_buffers), tuple(mask_mod_other_buffers))
        try:
            _taken(query, key, value, kernel_options)
            o, stats = _computed(query, key, value, score_mod, block_mask[-1], scale, kernel_options, captured)
        except (Error, Untraceable) as why:
            self.tell("flex_attention", query, why)
            assert BEFORE is not None
            return BEFORE(query, key, value, score_mod, block_mask, scale, kernel_options, *captured)
        return o, stats / math.log(2), query.new_empty((0,), dtype=torch.float32)


def _computed(q, k, v, score_mod, mask_mod, scale, kernel_options, captured) -> tuple[Tensor, Tensor]:
    both = bool(kernel_options.get("OUTPUT_LOGSUMEXP", True))
    if not isinstance(score_mod, torch.fx.GraphModule):  # Something watches operations, and Dynamo stands aside.
        return attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod, scale=scale, return_lse=True)
    functions = tuple(
        functools.partial(_compiled.called, graph, read) for graph, read in zip((score_mod, mask_mod), captured)
    )
    flags = {"both": both, "grad": torch.is_grad_enabled(), "origins": False, "local": False}
    dims = (*q.shape[:3], k.shape[2])
    return _compiled.computed(q, k, v, functions, dims, ("", "scale", "", scale, (), ()), flags)


def _taken(q: Tensor, k: Tensor, v: Tensor, kernel_options: dict) -> None:
    """What is refused before a launch: a program that is compiled passes on no call later."""
    same_type(q, k, v)
    if kernel_options.get("OUTPUT_MAX", False):
        raise ArgumentError("return_aux asks for the largest scores")
    if q.device.type == "cpu" and not _context.on_cpu():
        raise ArgumentError("query is on the CPU; move it to a GPU")
    if not (_told.constant(q.shape[0] == k.shape[0]) and q.shape[0] == k.shape[0]):
        raise ArgumentError(f"query has {q.shape[0]} sequences, and key {k.shape[0]}; expand key and value")


def operator(tell: Callable) -> Any:
    """The operator that stands in the place of `BEFORE`, if Dynamo takes it."""
    return _Flex(tell) if BEFORE is not None and _compiled.known_as("qkvault_flex_attention") else None
