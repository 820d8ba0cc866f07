"""What would run for a call of the attention function, and its plans before the first call."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from .._attention import Attention, Explanation
from .._plan import Plan
from . import _attention
from ._context import context
from ._spec import described
from ._words import DOOR

_OPTIONS = (
    "score_mod", "mask_mod", "block_mask", "bias", "attn_mask", "is_causal", "window", "bottom_right", "softcap",
    "sinks", "alibi_slopes", "scale", "dropout_p", "deterministic", "invariant", "q_lengths", "kv_lengths",
    "query_origin", "key_origin",
)  # fmt: skip
_GPUS = ("h200", "h100", "a100", "l40s", "b200")


@DOOR.worded(_attention.attention, gpu="gpu")
def explain(
    q: Tensor, k: Tensor, v: Tensor, *, gpu: Optional[str] = None, cudnn: Optional[str] = None, **options: Any
) -> Explanation:
    """What would run for `attention(q, k, v, **options)`, or every reason why not. Nothing is computed or compiled.

    If the forward is supported and a gradient is needed, the answer is about the backward.

    `gpu` is a name such as `h200`: that of the tensors' GPU by default. The answer is true if the call is supported.
    """
    said = None
    for attention in _attentions(q, k, v, options):
        said = attention.explain(gpu or _gpu(q), cudnn, context=context())
        if not said:
            break
    assert said is not None
    return said


@DOOR.worded(_attention.attention, gpu="gpu")
def prepare(q: Tensor, k: Tensor, v: Tensor, *, gpu: Optional[str] = None, **options: Any) -> list[Plan]:
    """Loads the plans of `attention(q, k, v, **options)` before its first call, and of its backward if one is needed.

    Plans that the vault lacks are built, unless `configure(build=False)` forbids it. Several threads may prepare at a
    time. Nothing is computed, so the values of the tensors do not matter. With `gpu`, a name such as `h200`, the plans
    are compiled for that GPU into the vault, for which no GPU is needed; tensors may be on the meta device.
    """
    wanted = _attentions(q, k, v, options)
    if gpu is not None:
        return context().warm(wanted, gpu)
    stream = torch.cuda.current_stream(q.device).cuda_stream if q.device.type == "cuda" else 0
    return [context().prepare(attention, q.device.index or 0, stream=stream) for attention in wanted]


def _attentions(q: Tensor, k: Tensor, v: Tensor, options: dict) -> list[Attention]:
    """The forward of a call, and its backward if a gradient is needed."""
    unknown = set(options) - {*_OPTIONS, "enable_gqa", "return_lse", "copy"}
    if unknown:
        raise TypeError(f"attention has no option {', '.join(sorted(unknown))}; it has {', '.join(_OPTIONS)}")
    given = {name: options.get(name) for name in _OPTIONS}
    for name in ("is_causal", "bottom_right", "deterministic", "invariant"):
        given[name] = bool(given[name])
    parts = _attention.parts(q, k, **given)
    training = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, *parts.tensors))
    found = [Attention(described(parts.spec(), q, k, v, training or bool(options.get("return_lse"))))]
    if training:
        d_sink = "d_sink: yes" in parts.lines
        found.append(found[0].backward(deterministic=given["deterministic"], d_sink=d_sink))
    return found


def _gpu(q: Tensor) -> str:
    if q.device.type != "cuda":
        return _GPUS[0]
    name = torch.cuda.get_device_name(q.device).lower()
    return next((short for short in _GPUS if short in name), _GPUS[0])
