"""Masks as transformers makes them: which are options of a call, and which stay tensors.

transformers is imported here, and this file by `register_transformers`: an import within a function breaks a program.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import Any, Optional

import torch
from torch import Tensor
from transformers import masking_utils

from ._packed import GROWS, begun, recording


def mask(*args: Any, **kwargs: Any) -> Optional[Tensor]:
    """The mask of a layer: None where the layer's own properties say it, else as for SDPA, and with what it is if it
    hides padding behind the tokens or keeps packed sequences apart."""
    rule = kwargs.get("mask_function", masking_utils.causal_mask_function)
    sequences = None if recording() else _apart(rule, kwargs.get("config"))
    if sequences is not None and kwargs.get("attention_mask") is None:
        made: Tensor = masking_utils.sdpa_mask(*args, **kwargs)
        begins = sequences.diff(prepend=sequences[:, :1] - 1) != 0
        made._qkvault = begun(begins)  # type: ignore[attr-defined]
        return made
    start, queries, keys = (kwargs.get(name) for name in ("q_offset", "q_length", "kv_length"))
    start = 0 if start is None else start
    if not kwargs.get("allow_is_causal_skip", True) or not isinstance(start, int):
        return masking_utils.sdpa_mask(*args, **kwargs)
    known: Any = GROWS if start else None
    if start == 0 and queries == keys and _known(rule, kwargs.get("local_size"), kwargs.get("config")):
        padding = kwargs.get("attention_mask")
        plain, known = (True, None) if padding is None else _padded_behind(padding, keys)
        if plain and known is None:
            return None
    made = masking_utils.sdpa_mask(*args, **kwargs)
    if made is not None and known is not None and not recording():
        made._qkvault = known
    return made


def flash_mask(*args: Any, **kwargs: Any) -> Optional[Tensor]:
    """The same for layers that are told sequences as flash-attention is: packed ones need no mask."""
    if kwargs.get("attention_mask") is None and not torch.compiler.is_compiling():
        if _apart(kwargs.get("mask_function"), kwargs.get("config")) is not None:
            return None
    return mask(*args, **kwargs)


def _held(function: Any, name: str) -> Optional[dict[str, Any]]:
    """What a function of this name holds."""
    if getattr(function, "__qualname__", "") != name:
        return None
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ())))


def _known(rule: Any, local: Optional[int], config: Any) -> bool:
    """Whether a rule is the causal one, if with a window of so many keys. Chunks have a size too, and are another
    mask."""
    causal = masking_utils.causal_mask_function
    if rule is causal or torch.compiler.is_compiling():  # What functions hold is not seen in a program.
        return rule is causal
    both = (_held(rule, "and_masks.<locals>.and_mask") or {}).get("mask_functions", ())
    others = [one for one in both if one is not causal]
    if local is None or len(both) != 2 or len(others) != 1 or not _tells_windows(type(config).__module__):
        return False
    size = _held(others[0], "sliding_window_overlay.<locals>.inner_mask")
    return size is not None and size.get("sliding_window") == local


@functools.cache
def _tells_windows(configuration: str) -> bool:
    """Whether the layers of the model of a configuration tell their window to the attention. Those of a few models, such
    as Phimoe and Qwen2Moe, leave it to the mask."""
    model = sys.modules.get(configuration.replace(".configuration_", ".modeling_"))
    try:
        return model is not None and _TOLD.search(inspect.getsource(model)) is not None
    except (OSError, TypeError):
        return False


_TOLD = re.compile(r"attention_interface\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*?\bsliding_window=")


def _apart(rule: Any, config: Any) -> Optional[Tensor]:
    """The number of the sequence of each token, if a rule only keeps sequences of a row apart, each with a mask that is
    known."""
    both = (_held(rule, "and_masks.<locals>.and_mask") or {}).get("mask_functions", ())
    if len(both) != 2:
        return None
    same = _held(both[0], "packed_sequence_mask_function.<locals>.inner_mask")
    within = _held(both[1], "remap_positions_for_packed_sequence.<locals>.inner_mask")
    if same is None or within is None:
        return None
    inner = within["mask_function"]
    if not _known(inner, _window(inner), config):
        return None
    found: Tensor = same["packed_sequence_mask"]
    return found


def _window(rule: Any) -> Optional[int]:
    """The window that a rule of two has."""
    for one in (_held(rule, "and_masks.<locals>.and_mask") or {}).get("mask_functions", ()):
        size = _held(one, "sliding_window_overlay.<locals>.inner_mask")
        if size is not None:
            return size.get("sliding_window")
    return None


def _padded_behind(padding: Tensor, keys: int) -> tuple[bool, Optional[Tensor]]:
    """Whether a mask of tokens only hides what is behind them, and the lengths if it hides anything. It waits for the
    GPU, once for all layers of a step, so not while a program is traced or a graph is recorded."""
    if padding.dim() != 2 or padding.shape[1] != keys or recording():
        return False, None
    seen = padding.bool()
    lengths = seen.sum(-1, dtype=torch.int32)
    behind = (seen == (torch.arange(keys, device=seen.device) < lengths[:, None])).all()
    behind, least = torch.stack([behind.int(), lengths.min()]).tolist()
    if not behind or least == 0:
        return False, None
    return True, None if least == keys else lengths
