"""Training calls that PyTorch differentiates in C++, through an operator of its own that has no kernel but qkvault's.

`adapters/c/src/torch/native.rs` says how. A call goes this way when its specification had a backward before, so that
errors of a first backward have their own classes.
"""

from __future__ import annotations

import ctypes
from typing import Optional

import torch

from .._errors import Error
from .._library import call

_kept: dict = {}
_NAME = "_scaled_dot_product_fused_attention_overrideable"
_packet = getattr(torch.ops.aten, _NAME, None)
_SCHEMA = (
    f"aten::{_NAME}(Tensor query, Tensor key, Tensor value, Tensor? attn_bias=None, float dropout_p=0., bool "
    "is_causal=False, bool return_debug_mask=False, *, float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor "
    "cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor philox_seed, Tensor philox_offset, Tensor "
    "debug_attn_mask)"
)
#: Whether this PyTorch has the operator as the library knows it.
known = _packet is not None and str(_packet.default._schema) == _SCHEMA
forward = _packet.default if known else None
_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: True)


def kept(spec: str, numbers: list) -> Optional[float]:
    """The number that stands for a specification and its numbers, if calls of it may go this way."""
    found = _kept.get((spec, *numbers))
    # What watches operators is to see qkvault's own. What takes saved tensors, as checkpointing does, is to see the
    # same when it computes a layer again: the other layers' backwards let calls go this way meanwhile.
    return found if found is not None and _modes() == 0 and _hooks(True) is None else None


def keep(spec: str, numbers: list) -> None:
    """Lets calls of a specification go this way from now on."""
    key = (spec, *numbers)
    if not known or key in _kept or len(_kept) >= 1024:
        return
    number, values = ctypes.c_double(), (ctypes.c_double * len(numbers))(*numbers)
    try:
        call("qkv_torch_keep", spec.encode(), values, ctypes.c_size_t(len(numbers)), ctypes.byref(number))
    except Error:
        return
    _kept[key] = number.value
