"""SDPA's name and FlexAttention's for a block of code: calls that qkvault takes run on it, others go on as before."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.comptime import comptime
from torch.nn.attention import flex_attention as flex
from torch.overrides import TorchFunctionMode

from qkvault_record import Untraceable

from .._errors import ArgumentError, Error
from . import _flex as _flex_operator
from ._attention import attention
from ._placed import checked
from ._words import DOOR
from .flash_attn import flash_attn_varlen_func

try:
    from torch.nn.attention.varlen import varlen_attn as _VARLEN
except ImportError:
    _VARLEN = None

_log = logging.getLogger("qkvault")
_SDPA = F.scaled_dot_product_attention
_FLEX = flex.flex_attention


@DOOR.worded()
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` on qkvault. It raises where qkvault cannot compute a call."""
    if attn_mask is not None and is_causal:
        raise ArgumentError("attn_mask and is_causal are both given; give one, as for PyTorch's")
    if not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)):
        checked("(batch, head, query, head dim)", query=query, key=key, value=value)
    if query.dim() == 4:
        return attention(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
            enable_gqa=enable_gqa,
        )  # fmt: skip
    lead = query.shape[:-2]
    if len(lead) == 0 or key.shape[:-2] != lead or value.shape[:-2] != lead:
        raise ArgumentError(
            f"query has dims {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)}; give each "
            "(batch, head, query, head dim), or all alike with fewer or more dims before the query"
        )
    if attn_mask is not None and attn_mask.dim() > 2:
        dims = f"attn_mask has dims {list(attn_mask.shape)} and query {list(query.shape)}"
        raise ArgumentError(f"{dims}; give both four dims")
    q, k, v = (t.flatten(0, -3).unsqueeze(1) for t in (query, key, value))
    o = attention(q, k, v, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale)
    return o.squeeze(1).unflatten(0, lead)


_told: set = set()


def tell(what: str, query: Tensor, why: Exception) -> None:
    """Says once for each reason that a call is passed on. Dynamo, which traces no logging, does so as it compiles."""
    reason = why.args[0]
    comptime(_say_at_compile_time, lambda: _say(what, _dims(query), reason))


def _say_at_compile_time(context: Any) -> None:
    what, reason = (context.get_local(name).as_python_constant() for name in ("what", "reason"))
    _say(what, list(context.get_local("query").size()), reason)


def _dims(query: Tensor) -> Any:
    strided = query.is_nested and query.layout is torch.strided  # It has no shape.
    return "nested" if strided else list(query.shape)


def _say(what: str, shape: Any, reason: str) -> None:
    reason = reason.split("\n")[0]
    if (what, reason) not in _told:
        _told.add((what, reason))
        _log.warning("%s of q %s goes on without qkvault: %s", what, shape, reason)


class _Sdpa(TorchFunctionMode):
    """Takes calls of SDPA, under any name."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is not _SDPA:
            return func(*args, **kwargs)
        try:
            return scaled_dot_product_attention(*args, **kwargs)
        except (Error, Untraceable) as why:
            tell("scaled_dot_product_attention", args[0] if args else kwargs["query"], why)
            return func(*args, **kwargs)


def _flex(
    query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False, return_lse=False,
    kernel_options=None, **kwargs,
):  # fmt: skip
    """`flex_attention` on qkvault, or as before."""
    aux = kwargs.get("return_aux")
    try:
        if query.is_nested:
            raise ArgumentError("flex_attention counts positions of nested tensors otherwise")
        if getattr(aux, "max_scores", False):
            raise ArgumentError("return_aux asks for the largest scores")
        both = return_lse or getattr(aux, "lse", False)
        found = attention(
            query, key, value, score_mod=score_mod, block_mask=block_mask, scale=scale, enable_gqa=enable_gqa,
            return_lse=both,
        )  # fmt: skip
        if aux is not None:
            return (found[0], flex.AuxOutput(lse=found[1])) if both else (found, flex.AuxOutput())
        return found
    except (Error, Untraceable) as why:
        tell("flex_attention", query, why)
        given = (query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options)
        if torch.compiler.is_compiling():
            return _FLEX(*given, **kwargs)
        with _as_before():
            return _FLEX(*given, **kwargs)


@contextlib.contextmanager
def _as_before():
    """What is passed on is so whole, with FlexAttention's own operator."""
    with _lock:
        found = getattr(flex, "flex_attention_hop", None)
        if found is not None:
            flex.flex_attention_hop = _flex_operator.BEFORE
    try:
        yield
    finally:
        with _lock:
            if found is not None and _users:
                flex.flex_attention_hop = found


def _varlen(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *given, **kwargs):
    """`varlen_attn` on qkvault, or as before. Its causal masks and windows end at the bottom right."""
    known = {"return_aux", "scale", "window_size"}
    try:
        if given or set(kwargs) - known:
            raise ArgumentError(f"varlen_attn has {', '.join(sorted(set(kwargs) - known)) or 'further arguments'}")
        both = bool(getattr(kwargs.get("return_aux"), "lse", False))
        found = flash_attn_varlen_func(
            query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, softmax_scale=kwargs.get("scale"),
            window_size=kwargs.get("window_size", (-1, -1)), return_attn_probs=both,
        )  # fmt: skip
        return found[:2] if both else found
    except (Error, Untraceable) as why:
        tell("varlen_attn", query, why)
        return _VARLEN(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *given, **kwargs)


#: Functions that modules have by name, and what they are inside `use()`.
_NAMES = {"flex_attention": (_FLEX, _flex), "varlen_attn": (_VARLEN, _varlen)}
if (_HOP := _flex_operator.operator(tell)) is not None:
    _NAMES["flex_attention_hop"] = (_flex_operator.BEFORE, _HOP)
_lock = threading.Lock()
_users = 0
_changed: list = []


@contextlib.contextmanager
def use():
    """Inside, `scaled_dot_product_attention` (on this thread), `flex_attention` and `varlen_attn` run on qkvault where
    it takes them.

    A call that it does not take is logged once for each reason, under `qkvault`, and goes on as before. What
    `torch.compile` has compiled outside of the block is compiled once more inside, also a `flex_attention` by itself;
    inside of it, what a GPU refuses at a launch is an error.
    """
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            for module in list(sys.modules.values()):
                for name, (before, own) in _NAMES.items():
                    if before is not None and getattr(module, "__dict__", {}).get(name) is before:
                        _changed.append((module, name, before))
                        setattr(module, name, own)
    try:
        with _Sdpa():
            yield
    finally:
        with _lock:
            _users -= 1
            while _users == 0 and _changed:
                setattr(*_changed.pop())
