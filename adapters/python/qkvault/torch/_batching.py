"""Continuous batching of transformers, `model.generate_batch`: sequences behind each other, and pages of a cache."""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from .._errors import ArgumentError
from ._packed import Packed, rounded
from ._paged import paged_attention, places
from ._varlen import varlen_attention


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, sliding_window: Optional[int], options: dict[str, Any],
    kwargs: dict[str, Any],
) -> Tensor:  # fmt: skip
    """Attention of (1, head, token, head dim) with the cache of the batch, (1, token, head, head dim)."""
    cache = kwargs["cache"]
    if not hasattr(cache, "layer_to_allocator"):
        raise ArgumentError("a batch of this transformers has another cache; use transformers 5.23 or newer")
    if kwargs.get("attention_mask") is not None:
        raise ArgumentError("attention_mask is given with a cache of pages; sequences are told by cu_seq_lens_q")
    key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=kwargs)
    window = sliding_window - 1 if sliding_window else None
    ends, table = kwargs["cu_seq_lens_k"], kwargs.get("block_table")
    if table is not None:  # One token of each sequence, which the pages do not hold yet.
        # Layers lie behind each other in the pool, and see as many pages less: one number for all is one plan.
        owner = cache.layer_to_allocator[module.layer_idx]
        step, lengths = owner.block_physical_stride // owner.tokens_per_page, ends.diff()
        k_pages, v_pages = (t[: (t.shape[0] - 1) // step * step + 1] for t in (kwargs["k_cache"], kwargs["v_cache"]))
        place = places(table, lengths - 1, 1, k_pages.shape[1])
        k_pages[place], v_pages[place] = (t[0].transpose(0, 1).unsqueeze(1) for t in (key, value))
        q, lengths, table = (_padded(t) for t in (query[0].transpose(0, 1), lengths, table))
        o = paged_attention(
            q.unsqueeze(2), k_pages, v_pages, table, lengths, window=window,
            **{name: options[name] for name in ("softcap", "sinks", "scale")},
        )  # fmt: skip
        return o[: query.shape[2], :, 0].unsqueeze(0)
    few = Packed(kwargs["cu_seq_lens_q"], ends, int(kwargs["max_length_q"]), int(kwargs["max_length_k"])).few()
    q, k, v = (_padded(t[0].transpose(0, 1), n) for t, n in ((query, 8), (key, 64), (value, 64)))
    o = varlen_attention(q, k, v, *few, is_causal=True, window=window, bottom_right=True, **options)
    return o[: query.shape[2]].unsqueeze(0)


def _padded(rows: Tensor, least: int = 8) -> Tensor:
    """A number of rows of few: every step of a batch has others."""
    return F.pad(rows, (*(0, 0) * (rows.dim() - 1), 0, rounded(rows.shape[0], least) - rows.shape[0]))


def register(name: str, attend: Callable, mask: Callable) -> None:
    """Lets continuous batching take an implementation. It takes those that have flash in their name, and has tables of
    pages for version 2 and 3: while a model generates so, another name stands for its own."""
    try:
        from transformers import AttentionInterface, modeling_flash_attention_utils as flash
        from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
        from transformers.masking_utils import AttentionMaskInterface
    except ImportError:
        return
    before = getattr(ContinuousBatchingManager, "switch_to_cb_friendly_attn", None)
    imported = getattr(flash, "_lazy_imports", None)
    if before is None or imported is None:
        return
    served = f"{name}_flash_2"
    AttentionInterface.register(served, attend)
    AttentionMaskInterface.register(served, mask)
    if name in _SERVED:
        return
    _SERVED[name] = served

    @functools.wraps(before)
    def switch(self: Any, model: Any, *given: Any, **options: Any) -> None:
        if model.config._attn_implementation == name:
            model.config._attn_implementation = served
            self._original_attn_impl = name
        before(self, model, *given, **options)

    @functools.wraps(imported)
    def functions(implementation: Any, *given: Any, **options: Any) -> Any:
        if implementation != served:
            return imported(implementation, *given, **options)
        from . import flash_attn as own

        found = (own.flash_attn_func, own.flash_attn_varlen_func, own.flash_attn_with_kvcache)
        return (*found, flash._pad_input, flash._unpad_input)

    ContinuousBatchingManager.switch_to_cb_friendly_attn = switch
    flash._lazy_imports = functions


#: Names of implementations, and those that continuous batching is told.
_SERVED: dict[str, str] = {}
