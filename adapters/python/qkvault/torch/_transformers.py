"""An attention function for models of transformers: `attn_implementation="qkvault"`."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from .._errors import Error
from . import _batching
from ._attention import attention
from ._packed import GROWS, Packed, given, restarted
from ._redirect import tell
from ._spec import Untraceable
from ._varlen import varlen_attention


def attention_interface(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor] = None,
    *,
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    sliding_window: Optional[int] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[Tensor] = None,
    is_causal: Optional[bool] = None,
    position_bias: Optional[Tensor] = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention of a layer, as transformers calls it: heads outside the sequence, a mask or None.

    Sequences packed in a row are told by `cu_seq_lens_q` and its like, by the mask, or by `position_ids` that begin
    anew. What qkvault does not take is logged once and goes on to SDPA, if that has what the layer asks for.
    """
    options: dict[str, Any] = {"softcap": softcap, "sinks": s_aux, "scale": scaling, "dropout_p": dropout}
    if kwargs.get("cache") is not None:
        return _batching.attend(module, query, key, value, sliding_window, options, kwargs), None
    decoder = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    causal = decoder and query.shape[2] > 1
    known = getattr(attention_mask, "_qkvault", None)
    if attention_mask is not None and attention_mask.dim() == 2:  # Which tokens there are, as flash-attention has it.
        attention_mask = attention_mask[:, None, None, :].bool()
    else:
        causal = causal and (attention_mask is None or isinstance(known, (Tensor, Packed)))
    # transformers counts the query itself. Without a mask the first query stands at the first key, as for SDPA: a
    # prompt in an empty static cache has more keys than queries, and those behind are unseen.
    window = sliding_window - 1 if causal and sliding_window and sliding_window < key.shape[2] else None
    if attention_mask is not None and attention_mask.shape[-1] > key.shape[2]:
        attention_mask = attention_mask[..., : key.shape[2]]
    sequences = _sequences(query, key, attention_mask, kwargs)
    grows = known is GROWS or (attention_mask is None and query.shape[2] == 1)
    try:
        if decoder and grows and position_bias is None and sequences is None and not _trained(query, key):
            o = _grown(query, key, value, attention_mask, options)
        else:
            o = _attend(query, key, value, attention_mask, known, sequences, causal, window, position_bias, options)
    except (Error, Untraceable) as why:
        if softcap is not None or s_aux is not None or torch.compiler.is_compiling():
            raise
        tell("attention of a model", query, why)
        return _as_sdpa(module, query, key, value, attention_mask, known, sequences, causal, window, position_bias, options)
    return o.transpose(1, 2).contiguous(), None


def _sequences(query: Tensor, key: Tensor, mask: Optional[Tensor], kwargs: dict[str, Any]) -> Optional[Packed]:
    """Sequences that are packed in rows."""
    told = given(kwargs, query, key)
    if told is None and mask is None and 1 < query.shape[2] == key.shape[2]:
        return restarted(kwargs.get("position_ids"), query)
    return told


def _trained(query: Tensor, key: Tensor) -> bool:
    return torch.compiler.is_compiling() or (torch.is_grad_enabled() and (query.requires_grad or key.requires_grad))


def _grown(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], options: dict[str, Any]) -> Tensor:
    """Attention over keys of a cache that grows with every token. A plan is for a number of keys, so there is one for
    many: those behind the last are unseen, as keys of later positions, or by the mask."""
    count, queries = key.shape[2], query.shape[2]
    step = max(64, 1 << max(0, (count - 1).bit_length() - 2))
    more = -count % step
    key, value = (F.pad(t, (0, 0, 0, more)) for t in (key, value))
    if mask is None:
        return attention(query, key, value, is_causal=True, query_origin=count - queries, **options)
    return attention(query, key, value, attn_mask=F.pad(mask, (0, more)), **options)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], known: Any, sequences: Optional[Packed],
    causal: bool, window: Optional[int], bias: Optional[Tensor], options: dict[str, Any],
) -> Tensor:  # fmt: skip
    lengths = known if isinstance(known, Tensor) else None
    if isinstance(known, Packed):
        sequences = known if sequences is None else sequences
    if sequences is not None and bias is None and (mask is None or isinstance(known, Packed)):
        few = sequences.few()
        q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (query, key, value))
        o = varlen_attention(
            q, k, v, *few, is_causal=causal, window=window, bottom_right=causal, **options
        )  # fmt: skip
        return o.unflatten(0, (query.shape[0], query.shape[2])).transpose(1, 2)
    mask = None if lengths is not None else mask
    if sequences is not None and not isinstance(known, Packed):
        mask = _both(mask, sequences.apart(query, key))
    return attention(
        query, key, value, attn_mask=mask, bias=bias, is_causal=causal, window=window, kv_lengths=lengths, **options
    )  # fmt: skip


def _both(mask: Optional[Tensor], seen: Tensor) -> Tensor:
    if mask is None:
        return seen
    return mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, torch.finfo(mask.dtype).min)


def _as_sdpa(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], known: Any,
    sequences: Optional[Packed], causal: bool, window: Optional[int], bias: Optional[Tensor], options: dict[str, Any],
) -> tuple[Tensor, None]:  # fmt: skip
    """The same with SDPA, whose only mask is a tensor or the causal one."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if sequences is not None:
        mask = _both(mask, sequences.apart(query, key))
    if causal and (mask is not None or window is not None) and known is None:
        row, column = (torch.arange(t.shape[2], device=t.device) for t in (query, key))
        away = row[:, None] - column
        mask = _both(mask, (away >= 0) & (away <= (key.shape[2] if window is None else window)))
    more = {} if bias is None else {"position_bias": bias}
    o: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, mask, options["dropout_p"], options["scale"], is_causal=causal and mask is None,
        **more,
    )  # fmt: skip
    return o


def register_transformers(name: str = "qkvault") -> str:
    """Makes the name an attention implementation of transformers, and returns it.

        model = AutoModelForCausalLM.from_pretrained(..., attn_implementation=qkvault.torch.register_transformers())

    `model.generate_batch(...)`, transformers' continuous batching over pages, is served too.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    from . import _masks

    AttentionInterface.register(name, attention_interface)
    AttentionMaskInterface.register(name, _masks.mask)
    _batching.register(name, attention_interface, _masks.flash_mask)
    return name
