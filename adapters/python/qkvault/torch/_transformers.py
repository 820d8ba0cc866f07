"""An attention function for models of transformers: `attn_implementation="qkvault"`."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from ._attention import attention


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
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention of a layer, as transformers calls it: heads outside the sequence, a mask or None."""
    causal, window, lengths = False, None, None
    if attention_mask is not None:
        # What `_mask` knows of padding behind the tokens. A model that makes another mask of it has that one.
        lengths = getattr(attention_mask, "_qkvault_lengths", None)
        attention_mask = attention_mask if lengths is None else None
    if attention_mask is None:
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal) and query.shape[2] > 1
        # transformers counts the query itself. Without a mask the first query stands at the first key, as for SDPA: a
        # prompt in an empty static cache has more keys than queries, and those behind are unseen.
        window = sliding_window - 1 if causal and sliding_window and sliding_window < key.shape[2] else None
    elif attention_mask.shape[-1] > key.shape[2]:
        attention_mask = attention_mask[..., : key.shape[2]]
    o = attention(
        query, key, value, attn_mask=attention_mask, is_causal=causal, window=window, softcap=softcap, sinks=s_aux,
        scale=scaling, dropout_p=dropout, kv_lengths=lengths,
    )  # fmt: skip
    return o.transpose(1, 2).contiguous(), None


def _mask(*args: Any, **kwargs: Any) -> Optional[Tensor]:
    """The mask of a layer: None where the layer's own properties say it, the lengths of sequences that are padded
    behind their tokens, else as for SDPA."""
    from transformers import masking_utils

    if kwargs.get("allow_is_causal_skip", True):
        rule = kwargs.get("mask_function", masking_utils.causal_mask_function)
        local = kwargs.get("local_size")
        plain = rule is masking_utils.causal_mask_function
        sliding = local is not None and _slides(rule, local)
        start = kwargs.get("q_offset", 0)
        if (plain or sliding) and isinstance(start, int) and start == 0:
            queries, keys = kwargs.get("q_length"), kwargs.get("kv_length")
            if queries is not None and queries == keys:
                padding = kwargs.get("attention_mask")
                if padding is None:
                    return None
                known, lengths = _padded_behind(padding, keys)
                if known and lengths is None:
                    return None
                if known:
                    mask = masking_utils.sdpa_mask(*args, **kwargs)
                    if mask is not None:
                        mask._qkvault_lengths = lengths
                    return mask
    return masking_utils.sdpa_mask(*args, **kwargs)


def _slides(rule: Any, local: int) -> bool:
    """Whether a rule is the causal one and a window of so many keys. Chunks have a size too, and are another mask."""
    from transformers import masking_utils

    if getattr(rule, "__qualname__", "") != "and_masks.<locals>.and_mask":
        return False
    held = dict(zip(rule.__code__.co_freevars, (cell.cell_contents for cell in rule.__closure__ or ())))
    others = [one for one in held.get("mask_functions", ()) if one is not masking_utils.causal_mask_function]
    if len(others) != 1 or len(held["mask_functions"]) != 2:
        return False
    (window,) = others
    if getattr(window, "__qualname__", "") != "sliding_window_overlay.<locals>.inner_mask":
        return False
    size = dict(zip(window.__code__.co_freevars, (cell.cell_contents for cell in window.__closure__)))
    return size.get("sliding_window") == local


def _padded_behind(padding: Tensor, keys: int) -> tuple[bool, Optional[Tensor]]:
    """Whether a mask of tokens only hides what is behind them, and the lengths if it hides anything. It waits for the
    GPU, once for all layers of a step, so not while a program is traced or a graph is recorded."""
    recording = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    if padding.dim() != 2 or padding.shape[1] != keys or recording or torch.compiler.is_compiling():
        return False, None
    seen = padding.bool()
    lengths = seen.sum(-1, dtype=torch.int32)
    behind = (seen == (torch.arange(keys, device=seen.device) < lengths[:, None])).all()
    behind, least = torch.stack([behind.int(), lengths.min()]).tolist()
    if not behind or least == 0:
        return False, None
    return True, None if least == keys else lengths


def register_transformers(name: str = "qkvault") -> str:
    """Makes the name an attention implementation of transformers, and returns it.

        model = AutoModelForCausalLM.from_pretrained(..., attn_implementation=qkvault.torch.register_transformers())
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(name, attention_interface)
    AttentionMaskInterface.register(name, _mask)
    return name
